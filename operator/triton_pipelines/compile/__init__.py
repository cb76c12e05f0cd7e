"""Compile a resource: spec → graph → model repository and Kubernetes objects → revision. Pure."""

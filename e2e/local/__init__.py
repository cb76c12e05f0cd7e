"""A real single-node Kubernetes cluster from packages alone: `python -m e2e.local up`."""

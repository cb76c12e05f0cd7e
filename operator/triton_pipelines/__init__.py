"""Kubernetes operator for NVIDIA Triton ensembles."""

__version__ = "0.1.0"

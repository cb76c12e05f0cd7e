"""A real one-node Kubernetes cluster from packages alone: `python -m e2e.local up`."""

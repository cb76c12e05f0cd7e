"""Access to Kubernetes: client, apply, comparison, caches, watches and work queue."""

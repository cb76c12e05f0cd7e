"""The Kubernetes side: client, resource registry, comparison with the live state and a store fed by watches."""

"""End-to-end suite: the product, installed from its chart, on any cluster with a kubeconfig."""

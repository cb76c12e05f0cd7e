"""End-to-end suite: the product, installed from its chart, on whatever cluster a kubeconfig names."""

"""Collect metrics from Prometheus or from the pods, and compute rates over time windows."""

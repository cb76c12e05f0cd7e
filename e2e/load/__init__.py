"""Send load from ordinary clients of every kind and record the outcome of every request."""

"""Signals of the pods: what is read, from Prometheus or from the pods themselves, and what follows from it over a window of time."""

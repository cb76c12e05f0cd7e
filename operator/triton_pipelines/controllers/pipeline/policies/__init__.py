"""Policies of a reconcile iteration, one file and one verb each, in the order of :mod:`~..plan`."""

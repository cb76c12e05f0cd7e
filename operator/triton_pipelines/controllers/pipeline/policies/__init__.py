"""The policies of a reconcile iteration: one file and one verb each. Their order is in :mod:`~..plan`."""

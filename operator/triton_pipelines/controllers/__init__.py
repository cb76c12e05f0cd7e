"""The two controllers: ``pipeline`` makes the cluster match the spec, ``autoscaler`` sets instance counts."""

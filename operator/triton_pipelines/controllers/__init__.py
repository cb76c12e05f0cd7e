"""The two controllers and what they publish for each other.

``pipeline`` makes the cluster match the spec, ``autoscaler`` sets instance counts.
"""

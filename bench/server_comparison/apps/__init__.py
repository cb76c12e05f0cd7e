"""The other servers' applications; each runs in its server's own environment."""

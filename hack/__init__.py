"""Tools for developing the project: generators, checks and test tiers."""

"""Texts for requests."""

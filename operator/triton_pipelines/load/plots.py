"""Curves as SVG."""

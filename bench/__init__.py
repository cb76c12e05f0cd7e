"""Benchmarks that compare results with goals.

Each is a side-by-side comparison on one machine in one run, and reports its spread.
"""

"""Benchmarks: figures against goals, each a side-by-side comparison on one machine in one run, with
its spread.
"""

"""Discrete-event simulation of pods with Triton's batching, load traces and control laws.

Pure: the seed determines every result.
"""

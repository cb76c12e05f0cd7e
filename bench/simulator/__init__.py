"""Discrete events: pods of stations with Triton's batching semantics, traces of load, control laws, measures. Pure, by seed."""

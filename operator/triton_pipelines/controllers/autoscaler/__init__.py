"""Autoscaler: sample metrics, decide instance counts and change the pods of every pipeline."""

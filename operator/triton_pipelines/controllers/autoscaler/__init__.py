"""The autoscaler: samples metrics, decides instance counts and applies them to the pods of every pipeline."""

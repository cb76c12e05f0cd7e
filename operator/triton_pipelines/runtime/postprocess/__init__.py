"""The postprocess step: ``model.py``."""

"""The postprocess step: ``model.py`` is copied into the model's version folder."""

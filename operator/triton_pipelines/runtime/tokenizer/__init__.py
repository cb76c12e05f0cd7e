"""The tokenizer step: ``model.py`` and its parts."""

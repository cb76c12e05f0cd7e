"""The ONNX Runtime step for servers without that backend: ``model.py`` is copied into the model's version folder."""

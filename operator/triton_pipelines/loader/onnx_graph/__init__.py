"""Analysis of ONNX models: walking graphs, the limits that they state, and running them."""

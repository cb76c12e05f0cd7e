"""A pipeline with a PyTorch step on a real NVIDIA GPU in a real Triton."""

"""What is tried before it is done to a server: a simulator of Triton's batching under load, with control laws in the loop."""

"""Step time of encoders on a GPU for each way to batch texts of different lengths."""

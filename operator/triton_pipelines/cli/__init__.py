"""The command line ``tritonpipe``."""

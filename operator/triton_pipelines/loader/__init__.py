"""The init container: fetch sources, write the model repository, check it and report."""

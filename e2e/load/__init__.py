"""Load on a pipeline from ordinary clients of every kind, with every request's outcome on record."""

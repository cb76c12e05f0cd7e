"""The operator process: configuration, start-up, logging and its own metrics."""

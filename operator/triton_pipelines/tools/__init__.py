"""Tools that the CLI and Jobs use and controllers never import.

The load generator, the tuner, the importer and the report of a pipeline.
"""

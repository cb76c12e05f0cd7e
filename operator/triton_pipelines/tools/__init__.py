"""Tools that the CLI and Jobs use and controllers never import: load generator, tuner, importer."""

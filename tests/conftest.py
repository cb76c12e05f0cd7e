"""Loads hypothesis before any test runs.

Its pytest plugin would otherwise import it in the terminal summary, where a garbage collection inside ``ast.parse`` (assertion rewriting) ends
pytest with "AST constructor recursion depth mismatch" on CPython 3.11.7, long after all tests have passed.
"""

import hypothesis  # noqa: F401

"""Files with expected output.

``python -m tests.golden`` rewrites those of rendering and the messages; review the difference.
"""

"""Files with expected output.

``python -m tests.golden`` rewrites those of rendering; read the difference before committing it.
"""

"""Files with expected output. ``python -m tests.golden`` writes those of rendering anew; read the difference before committing it."""

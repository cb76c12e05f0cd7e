"""Rewrite the expected output of rendering.

``PYTHONPATH=operator python -m tests.golden`` from the repository's root.
"""

from __future__ import annotations

from tests.support.golden import CASES, path_of, text_of

if __name__ == "__main__":
    for name in CASES:
        path_of(name).parent.mkdir(parents=True, exist_ok=True)
        path_of(name).write_text(text_of(name), encoding="utf-8")
        print(f"wrote {path_of(name).name}")

"""``python -m tests.corpus`` (with ``operator`` on the path): rewrite messages.txt."""

from tests.corpus import GOLDEN, messages

GOLDEN.write_text(messages(), encoding="utf-8")

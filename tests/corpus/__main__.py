"""``python -m tests.corpus`` (with ``operator`` on the path): rewrite messages.txt and refusals.txt."""

from tests.corpus import GOLDEN, REFUSALS, messages
from tests.support.meaning import refusals

GOLDEN.write_text(messages(), encoding="utf-8")
REFUSALS.write_text(refusals(), encoding="utf-8")

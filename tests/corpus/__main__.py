"""Rewrite messages.txt and refusals.txt: ``python -m tests.corpus``.

``operator`` must be on the path.
"""

from tests.corpus import GOLDEN, REFUSALS, messages
from tests.support.meaning import refusals

GOLDEN.write_text(messages(), encoding="utf-8")
REFUSALS.write_text(refusals(), encoding="utf-8")

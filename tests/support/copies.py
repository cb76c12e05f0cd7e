"""Copy what tests hand from one side to the other, in a tenth of the time of ``copy.deepcopy``."""

from __future__ import annotations

import pickle
from typing import Any


def copied(value: Any) -> Any:
    """Return a deep copy of plain values: documents, dataclasses, enums."""
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

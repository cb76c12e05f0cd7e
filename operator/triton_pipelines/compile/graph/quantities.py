"""Convert quantities of Kubernetes to numbers and back."""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIX = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def millis(quantity: str) -> int:
    """Return a CPU quantity in thousandths of a core."""
    if quantity.endswith("m"):
        return _ceiling(Decimal(quantity[:-1]))
    return _ceiling(_number(quantity) * 1000)


def bytes_of(quantity: str) -> int:
    """Return a memory quantity in bytes."""
    if quantity.endswith("m"):
        return _ceiling(Decimal(quantity[:-1]) / 1000)
    return _ceiling(_number(quantity))


def _ceiling(value: Decimal) -> int:
    """Round up, as Kubernetes does with digits that it cannot store."""
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def _number(quantity: str) -> Decimal:
    match = re.match(r"^([0-9.]+)([A-Za-z]*)$", quantity)
    if match is None or match[2] not in _SUFFIX:
        raise ValueError(f"{quantity!r} is not a quantity")
    return Decimal(match[1]) * _SUFFIX[match[2]]


def cpu(thousandths: int) -> str:
    """Return the canonical spelling of a CPU quantity, as the API server stores it."""
    return _decimal(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def memory(count: int) -> str:
    """Return the canonical spelling of a memory quantity in bytes."""
    for power, suffix in enumerate(("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")):
        unit = 1024 ** (6 - power)
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return _decimal(count)


def _decimal(count: int) -> str:
    for power, suffix in enumerate(("E", "P", "T", "G", "M", "k")):
        unit = 1000 ** (6 - power)
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)

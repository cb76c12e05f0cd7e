"""Field types that the models of the status share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

COUNT_MAX: Final = 2**31 - 1
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Short = Annotated[str, Field(max_length=512)]
Long = Annotated[str, Field(max_length=4096)]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]

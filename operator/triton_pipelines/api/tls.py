"""TLS of the gRPC endpoint."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, ObjectName


class TlsMode(StrEnum):
    """Whose certificate is verified."""

    SIMPLE = "Simple"
    MUTUAL = "Mutual"


class Tls(ApiModel):
    """TLS for gRPC. HTTP then answers health checks only, because Triton has no HTTPS."""

    secret_name: Annotated[
        ObjectName,
        Field(
            description=(
                "A Secret in the namespace with tls.crt, tls.key and, for mode Mutual, ca.crt, as"
                " cert-manager writes it. Changed content is rolled out."
            )
        ),
    ]
    mode: Annotated[
        TlsMode,
        Field(
            description=(
                "Simple: clients verify the server. Mutual: clients also need a certificate that"
                " was issued by ca.crt."
            )
        ),
    ] = TlsMode.SIMPLE

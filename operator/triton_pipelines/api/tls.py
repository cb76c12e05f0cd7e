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
    """TLS for gRPC.

    HTTP then responds only to health checks, because Triton does not support HTTPS.
    """

    secret_name: Annotated[
        ObjectName,
        Field(
            description=(
                "Secret in the namespace with the keys tls.crt, tls.key and,"
                " for mode Mutual, ca.crt, as written by cert-manager. When the certificates"
                " change, the pods are replaced."
            )
        ),
    ]
    mode: Annotated[
        TlsMode,
        Field(
            description=(
                "If Simple, clients verify the server. If Mutual, clients also need a "
                "certificate that was issued by ca.crt."
            )
        ),
    ] = TlsMode.SIMPLE

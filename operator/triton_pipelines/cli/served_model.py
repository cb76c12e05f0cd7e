"""The model that ``tritonpipe bench`` loads: at a URL, or served here from a file."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.tools.loadgen import ClientTls

from .errors import EXIT_USAGE, CommandError
from .grpc_model import GrpcModel, grpc_address
from .http_model import fetch_metadata, http_client
from .infer import model_url
from .local_pipeline import serve_locally
from .model_metadata import ModelMetadata
from .tls_options import is_grpc


@dataclass(frozen=True)
class ServedModel:
    """Where a model is served."""

    server: str
    """HTTP address of the server; ``grpc(s)://`` if it is reached over gRPC only."""
    model: str
    """Name of the model, as in URLs."""
    grpc: str
    """gRPC address of the server."""
    tls: ClientTls | None = None
    """TLS for gRPC; ``None``: plaintext."""

    @property
    def url(self) -> str:
        """HTTP address of the model."""
        return f"{self.server}/v2/models/{self.model}"


def served_model(
    target: str,
    grpc: str | None,
    stack: contextlib.ExitStack,
    options: dict[str, Any],
    source_map: list[str],
) -> ServedModel:
    """Return the model at a URL, or serve the pipeline of a file while the stack is open."""
    if "://" in target or ("/v2/models/" in target and not Path(target).exists()):
        if "@" in target.partition("/v2/models/")[0]:
            # They would be in the report, and requests would be sent without them.
            raise CommandError(
                "the URL contains a username or password, which bench does not send; remove "
                "the credentials from the URL",
                EXIT_USAGE,
            )
        url = model_url(target, "")
        server, _, model = url.partition("/v2/models/")
        if is_grpc(url):
            if grpc is not None:
                raise CommandError(
                    "--grpc-address: the URL is already a gRPC address; omit the option", EXIT_USAGE
                )
            return ServedModel(server, model, grpc_address(url))
        host = urlsplit(server).hostname or ""
        address = f"{f'[{host}]' if ':' in host else host}:{PORT_GRPC}"
        return ServedModel(server, model, grpc or address)
    if grpc is not None:
        raise CommandError(
            "--grpc-address: allowed only with a URL, because a file is served on this machine",
            EXIT_USAGE,
        )
    running = stack.enter_context(serve_locally(Path(target), source_map, **options))
    return ServedModel(
        running.server.http_url, running.graph.model_name, running.server.grpc_address
    )


def model_metadata(served: ServedModel, timeout: float) -> ModelMetadata:
    """Return the metadata of the model, read from its server.

    Raises:
        CommandError: the model streams its answers.
    """
    if is_grpc(served.server):
        with GrpcModel(served.url, timeout, served.tls) as remote:
            model = remote.metadata()
    else:
        with http_client(served.server, timeout) as client:
            model = fetch_metadata(client, served.url)
    if model.decoupled:
        raise CommandError(
            f"{served.model}: streams its responses, but bench supports only pipelines with one "
            "response per request",
            EXIT_USAGE,
        )
    return model

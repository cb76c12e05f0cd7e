"""A repository of a model hub, file by file: resolved once to a commit, and of its files only those that are asked for."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from triton_pipelines.api.loadplan import FetchKind, PlanFetch
from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.listing import check_name
from triton_pipelines.loader.sources import Folders, SourceAccess, open_source
from triton_pipelines.loader.sources.web import TIMEOUT
from triton_pipelines.loader.uris import HubUri, SourceMap, parse_hub

from .file_digest import Meter


class HubError(Exception):
    """The repository cannot be read; ``retryable`` where another try may help."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class HubFiles:
    """The repository at ``uri`` (``hf://org/name[@revision]``), through the same source map as the loader's."""

    def __init__(self, uri: str, mapped: SourceMap, token: str | None) -> None:
        self._given, self._map, self._token = uri, mapped, token
        self.commit: str | None = None

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        try:
            parsed = parse_hub(self._given)
            if parsed.path:
                raise SourceError(
                    "names a file in a repository; name the repository, and the file with --onnx-path"
                )
            self._open(parsed)
        except BaseException as error:
            self._stack.close()
            if isinstance(error, SourceError):
                raise HubError(str(error), retryable=error.retryable) from error
            raise
        return self

    def _open(self, parsed: HubUri) -> None:
        self.uri = f"hf://{parsed.repo}"
        # A folder of this machine has no revisions: what a rule maps there is taken as it is.
        located = self._map.apply(self.uri)
        credentials = SourceCredentials(token=self._token)
        client = self._stack.enter_context(
            httpx.Client(verify=credentials.ssl_context(), timeout=TIMEOUT)
        )
        workspace = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tritonpipe-hub-"))
        )
        item = PlanFetch(
            step="model",
            uri=self.uri,
            target="model",
            kind=FetchKind.FOLDER,
            revision=parsed.revision,
            field="spec.source",
        )
        folders = Folders(workspace, workspace, workspace, workspace)
        opened = open_source(
            item,
            located,
            SourceAccess(credentials, folders, client, None, lambda _: None, workspace),
        )
        self._source, self._place = opened.source, (opened.place or "").strip("/")
        self.commit = self._source.resolve()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        if isinstance(error, SourceError):
            raise HubError(str(error), retryable=error.retryable) from error

    def names(self) -> tuple[str, ...]:
        """Every file of the repository."""
        return self._source.list(f"{self._place}/" if self._place else "").names

    def fetch(
        self, name: str, folder: Path, meter: Callable[[int | None], Meter]
    ) -> tuple[Path, str]:
        """Fetch one file into ``folder``: its path there and its SHA-256."""
        check_name(name)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with (
            self._source.open(f"{self._place}/{name}".lstrip("/")) as body,
            target.open("wb") as file,
        ):
            told = meter(body.size)
            for chunk in body.chunks:
                file.write(chunk)
                digest.update(chunk)
                told(len(chunk))
        return target, digest.hexdigest()

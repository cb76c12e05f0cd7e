"""Read single files of a model hub's repository, all from the same commit."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from triton_pipelines.api.loadplan import FetchKind, PlanFetch
from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.listing import check_name
from triton_pipelines.loader.sources import Folders, SourceAccess, open_source
from triton_pipelines.loader.sources.web import TIMEOUT
from triton_pipelines.loader.uris import HubUri, SourceMap, parse_hub

from .file_digest import ByteProgress


class HubError(Exception):
    """The repository cannot be read.

    Attributes:
        retryable: whether the same request may succeed later.
        credentials_may_help: whether the repository may be private, and no token was given.
    """

    def __init__(
        self, message: str, *, retryable: bool = False, credentials_may_help: bool = False
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.credentials_may_help = credentials_may_help


class HubFiles:
    """Access to a repository, a context manager; applies the same source map as the loader.

    Args:
        uri: ``hf://org/name[@revision]``.
        rules: where sources are read from.
        token: for private repositories.

    Raises:
        HubError: the repository cannot be read.
    """

    def __init__(self, uri: str, rules: SourceMap, token: str | None) -> None:
        self._given, self._map, self._token = uri, rules, token
        self.commit: str | None = None

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        try:
            parsed = parse_hub(self._given)
            if parsed.path:
                raise SourceError(
                    "the address is that of a file in a repository; specify the repository, "
                    "and select the file with --onnx-path"
                )
            self._open(parsed)
        except BaseException as error:
            self._stack.close()
            if isinstance(error, SourceError):
                raise self._hub_error(error) from error
            raise
        return self

    def _open(self, parsed: HubUri) -> None:
        self.uri = f"hf://{parsed.repo}"
        # A local folder has no revisions: if a rule maps to one, its files are used as they are.
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
        folders = Folders(workspace, workspace, workspace, workspace, workspace)
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
            raise self._hub_error(error) from error

    def _hub_error(self, error: SourceError) -> HubError:
        missing = isinstance(error.__cause__, RepositoryNotFoundError)
        if missing and self._token is None and not isinstance(error.__cause__, GatedRepoError):
            return HubError(
                f"the hub has no public repository {self.uri.removeprefix('hf://')!r}; "
                "check the name",
                credentials_may_help=True,
            )
        return HubError(str(error), retryable=error.retryable)

    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        return self._source.list(f"{self._place}/" if self._place else "").names

    def fetch(
        self, name: str, folder: Path, meter: Callable[[int | None], ByteProgress]
    ) -> tuple[Path, str]:
        """Fetch one file; return its path and SHA-256.

        Args:
            name: file in the repository.
            folder: where to write it.
            meter: returns a progress callback for a size in bytes (``None``: unknown).
        """
        check_name(name)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with (
            self._source.open(f"{self._place}/{name}".lstrip("/")) as body,
            target.open("wb") as file,
        ):
            progress = meter(body.size)
            for chunk in body.chunks:
                file.write(chunk)
                digest.update(chunk)
                progress(len(chunk))
        return target, digest.hexdigest()

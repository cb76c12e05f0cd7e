"""Read model hub repositories: huggingface_hub resolves them, the loader downloads the files.

``hf_hub_download`` is not used: it keeps a cache of its own layout, and cannot resume, hash and
check for space as the loader does.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
import huggingface_hub
from huggingface_hub import get_session
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling

from triton_pipelines.loader.errors import PROXY_REFUSED, SourceError
from triton_pipelines.loader.listing import ListedFile, SourceListing, listing_at
from triton_pipelines.loader.source import FileBody
from triton_pipelines.loader.sources.transport_errors import (
    certificate_error,
    is_proxy_auth_error,
)
from triton_pipelines.loader.sources.web import TIMEOUT, WebSource

# Otherwise the library queries huggingface.co itself for its User-Agent, whichever hub is
# configured. A pod without access to that host would wait in vain; any other pod would reveal to a
# third party what it does.
huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
_RETRYABLE_FROM: Final = 500


class HubSource:
    """Files of a repository at one commit."""

    def __init__(
        self,
        client: httpx.Client,
        repo: str,
        revision: str | None,
        folder: str,
        *,
        endpoint: str | None,
        token: str | None,
        context: ssl.SSLContext,
    ) -> None:
        """Create the source.

        Args:
            client: HTTP client for the files.
            repo: ``org/name``.
            revision: branch, tag or commit; ``None`` for the default branch.
            folder: folder of all names.
            endpoint: address of the hub; ``None`` for the public one.
            token: token for the hub.
            context: trusted CAs.
        """
        self._client, self._repo, self._revision, self._context = client, repo, revision, context
        self._folder = f"{folder.strip('/')}/" if folder.strip("/") else ""
        self._endpoint = (endpoint or DEFAULT_ENDPOINT).rstrip("/")
        # False: never use a token that happens to be in the environment.
        self._token: str | bool = token or False
        self._commit: str | None = None
        self._files: dict[str, RepoSibling] = {}

    def resolve(self) -> str | None:
        """Return the commit, which is requested once."""
        if self._commit is None:
            info = self._info()
            self._commit = info.sha
            self._files = {item.rfilename: item for item in info.siblings or ()}
            if self._commit is None:
                raise SourceError("the hub did not return a commit for the revision")
        return self._commit

    def list(self, place: str) -> SourceListing:
        """Return the file ``folder + place`` at the resolved commit, or everything below it."""
        self.resolve()
        entries = {
            name: ListedFile(name, item.size, self._commit) for name, item in self._files.items()
        }
        path = self._folder + place
        return listing_at(path, entries, f"no file or directory {path} at {self._commit}")

    @contextmanager
    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> Iterator[FileBody]:
        """Read ``name`` at the resolved commit."""
        commit = self.resolve()
        path = self._folder + name
        if path not in self._files:
            raise SourceError(f"no file {path} at {commit}", missing=True)
        url = huggingface_hub.hf_hub_url(self._repo, path, revision=commit, endpoint=self._endpoint)
        base, _, last = url.rpartition("/")
        source = WebSource(self._client, f"{base}/", self._headers(), {last: url})
        with source.open(last, offset=offset, validator=validator) as body:
            # The ETag is the blob's; the commit is what can be fetched again. Large files have a
            # digest of their own; for others Git's object name is that of the content.
            listed = self._files[path]
            yield FileBody(
                body.chunks,
                body.offset,
                body.size,
                body.validator,
                commit,
                identity=commit,
                digest=listed.lfs.sha256 if listed.lfs is not None else None,
                git_blob=listed.blob_id if listed.lfs is None else None,
            )

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _info(self) -> huggingface_hub.ModelInfo:
        client_type = type(get_session())
        hooks: dict[str, list[Any]] = {"request": [self._check_request]}
        huggingface_hub.set_client_factory(
            lambda: client_type(verify=self._context, follow_redirects=True, event_hooks=hooks)
        )
        api = huggingface_hub.HfApi(
            endpoint=self._endpoint, token=self._token, library_name="triton-pipelines"
        )
        try:
            return api.model_info(
                self._repo, revision=self._revision, timeout=TIMEOUT.read, files_metadata=True
            )
        except SourceError:
            raise
        except (HfHubHTTPError, HFValidationError) as error:
            raise self._hub_error(error) from error
        except Exception as error:
            raise _connection_error(error) from error

    def _check_request(self, request: httpx.Request) -> None:
        """Refuse a redirect from https to http; other origins get no token (httpx sees to that)."""
        if self._endpoint.startswith("https://") and request.url.scheme != "https":
            raise SourceError(
                f"the hub redirects from https to {request.url.scheme}://, which is not allowed"
            )

    def _hub_error(self, error: HfHubHTTPError | HFValidationError) -> SourceError:
        """Translate what the hub answered."""
        match error:
            case HFValidationError():
                return SourceError(
                    f"{self._repo!r} is not a valid repository name ({str(error).rstrip('.')}); "
                    "use a URI such as hf://org/name"
                )
            case GatedRepoError():
                return SourceError(
                    f"{self._repo} is gated; accept its terms, and provide a token with "
                    "access in source.secretRef"
                )
            case RevisionNotFoundError():
                return SourceError(f"{self._repo} has no revision {self._revision}", missing=True)
            case RepositoryNotFoundError():
                advice = (
                    "check the name and the permissions of the token"
                    if self._token
                    else "check the name, or set source.secretRef if it is private"
                )
                return SourceError(f"the hub has no accessible repository {self._repo}; {advice}")
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            return SourceError(
                f"the hub rejected the token ({status}); check the Secret in source.secretRef"
            )
        return SourceError(
            f"the hub returned {status}",
            retryable=status >= _RETRYABLE_FROM or status in (0, 408, 429),
        )


def _connection_error(error: Exception) -> SourceError:
    """Translate a transport error of the HTTP client that huggingface_hub is built on."""
    if is_proxy_auth_error(error):
        return SourceError(PROXY_REFUSED)
    if certificate_error(error) is not None:
        return SourceError("the hub's certificate is not trusted; set its CA in source.caRef")
    return SourceError(
        f"the hub cannot be reached ({type(error).__name__}: {error}); check the network and "
        "proxy settings",
        retryable=True,
    )

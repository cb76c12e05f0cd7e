"""A simulated model hub.

It has the part of the HTTP API that huggingface_hub's model_info and file download use.

No package contains a real hub. Simulated are ``/api/models/<repo>[/revision/<rev>]`` (commit and
list of files), ``/<repo>/resolve/<rev>/<path>`` with ``ETag``, ``X-Repo-Commit`` and ranges, the
``X-Error-Code`` header of refusals, tokens, and, with ``cdn``, the redirect of file content to
another origin.

``python -m tests.support.hub FOLDER [ADDRESS]`` serves ``FOLDER/<org>/<name>/…`` and prints its
URL.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from tests.support.web import LoopbackServer, Request, Response, file_response


class HubServer:
    """Repositories by name (``org/name``), each with branches and commits, on loopback.

    Args:
        root: a folder ``<org>/<name>/<files>``; each repository becomes the first commit of its
            branch ``main``.
        token: what clients must present for every repository; None: all are public.
        host: the address to listen on: loopback, or one of a test's own network namespace.
        cdn: send clients on to another port for file content, as the real hub does for large files.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        token: str | None = None,
        cdn: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self._token = token
        self._commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self._branches: dict[tuple[str, str], str] = {}
        self.gated: set[str] = set()
        self._server = LoopbackServer(self.answer, address=(host, 0))
        self.cdn = LoopbackServer(self._content, address=(host, 0)) if cdn else None
        self._blobs: dict[str, bytes] = {}
        for folder in sorted(root.glob("*/*")) if root else ():
            if folder.is_dir():
                self.publish(f"{folder.parent.name}/{folder.name}", folder)

    @property
    def url(self) -> str:
        """The endpoint to give to clients."""
        return self._server.url

    @property
    def requests(self) -> list[Request]:
        """All requests to the hub itself (not its CDN) so far."""
        return self._server.requests

    def publish(self, repo: str, files: Path | Mapping[str, bytes], branch: str = "main") -> str:
        """Commit ``files`` to a branch and replace its content.

        Returns the commit's 40 hexadecimal digits.
        """
        if isinstance(files, Path):
            files = {
                str(path.relative_to(files)): path.read_bytes()
                for path in sorted(files.rglob("*"))
                if path.is_file()
            }
        state = hashlib.sha1(repo.encode())
        for name, data in sorted(files.items()):
            state.update(f"{name}\0{hashlib.sha1(data).hexdigest()}\n".encode())
        commit = state.hexdigest()
        self._commits.setdefault(repo, {})[commit] = dict(files)
        self._branches[repo, branch] = commit
        return commit

    def forget(self, repo: str, commit: str) -> None:
        """Remove a commit, as a history rewrite does."""
        del self._commits[repo][commit]

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._server)
        if self.cdn is not None:
            self._stack.enter_context(self.cdn)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def answer(self, request: Request) -> Response:
        """The answer to one request, for servers that hold more than a hub."""
        parts = [unquote(part) for part in urlsplit(request.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            revision = parts[5] if parts[4:5] == ["revision"] else "main"
            return self._info(request, "/".join(parts[2:4]), revision)
        if parts[2:3] == ["resolve"] and len(parts) > 4:
            return self._file(request, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return _refusal(404, "", "no such route")

    def _commit(self, request: Request, repo: str, revision: str) -> str | Response:
        if (
            self._token is not None
            and request.headers.get("authorization") != f"Bearer {self._token}"
        ):
            return _refusal(401, "RepoNotFound", "Invalid username or password.")
        if repo in self.gated:
            return _refusal(403, "GatedRepo", "Access to this model is restricted.")
        if repo not in self._commits:
            return _refusal(
                401 if self._token is None else 404, "RepoNotFound", "Repository not found"
            )
        commit = self._branches.get((repo, revision), revision)
        return (
            commit
            if commit in self._commits[repo]
            else _refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        )

    def _info(self, request: Request, repo: str, revision: str) -> Response:
        commit = self._commit(request, repo, revision)
        if isinstance(commit, Response):
            return commit
        sized = "blobs=true" in urlsplit(request.path).query.lower()
        siblings = [
            {"rfilename": name, **(_metadata(name, data) if sized else {})}
            for name, data in self._commits[repo][commit].items()
        ]
        body = {
            "_id": commit[:24],
            "id": repo,
            "modelId": repo,
            "sha": commit,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        return Response(
            200,
            {"Content-Type": "application/json"},
            json.dumps({**body, "siblings": siblings}).encode(),
        )

    def _file(self, request: Request, repo: str, revision: str, path: str) -> Response:
        commit = self._commit(request, repo, revision)
        if isinstance(commit, Response):
            return commit
        data = self._commits[repo][commit].get(path)
        if data is None:
            return _refusal(404, "EntryNotFound", "Entry not found")
        digest = hashlib.sha256(data).hexdigest()
        if self.cdn is None:
            response = file_response(request, data, f'"{digest}"')
        else:
            self._blobs[digest] = data
            linked = {
                "Location": f"{self.cdn.url}/{digest}?Signature=cdn-signature",
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(data)),
            }
            response = Response(302, linked)
        response.headers["X-Repo-Commit"] = commit
        return response

    def _content(self, request: Request) -> Response:
        digest = urlsplit(request.path).path.strip("/")
        data = self._blobs.get(digest)
        return (
            _refusal(404, "", "no such blob")
            if data is None
            else file_response(request, data, f'"{digest}"')
        )


def _metadata(name: str, data: bytes) -> dict[str, object]:
    """What ``blobs=true`` adds for a file; weights are stored with Git LFS."""
    if not name.endswith((".bin", ".onnx", ".safetensors")):
        return {"size": len(data), "blobId": _git_blob(data)}
    digest = hashlib.sha256(data).hexdigest()
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n"
    ).encode()
    lfs = {"sha256": digest, "size": len(data), "pointerSize": len(pointer)}
    return {"size": len(data), "blobId": _git_blob(pointer), "lfs": lfs}


def _git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\x00" % len(data) + data).hexdigest()


def _refusal(status: int, code: str, message: str) -> Response:
    headers = {"Content-Type": "application/json", "X-Error-Message": message}
    if code:
        headers["X-Error-Code"] = code
    return Response(status, headers, json.dumps({"error": message}).encode())


def main(arguments: list[str]) -> int:
    """Serve a folder until interrupted."""
    with HubServer(
        Path(arguments[0]), host=arguments[1] if len(arguments) > 1 else "127.0.0.1"
    ) as hub:
        print(hub.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

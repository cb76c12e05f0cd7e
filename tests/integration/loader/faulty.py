"""A faulty web server for the loader's tests.

The module defines the content that it serves, how it fails, and a plan item of a file on it.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable

from tests.integration.loader.conftest import Pod
from tests.support.web import Request, Response, file_response
from triton_pipelines.api.loadplan import PlanFetch

DATA = os.urandom(3_000_000)
SHA = hashlib.sha256(DATA).hexdigest()
ETAG = '"v1"'
BUFFER = io.DEFAULT_BUFFER_SIZE
"""Bytes that may be on their way to an unfinished file."""
TOKEN, PASSWORD = "s3cret-token-41d8", "s3cret-pass/word+9f00"


class Faulty:
    """Answers from a list, one each; then whole files."""

    def __init__(self) -> None:
        self.script: list[Callable[[Request], Response]] = []
        self.data, self.etag, self.ranges = DATA, ETAG, True

    def __call__(self, request: Request) -> Response:
        if self.script:
            return self.script.pop(0)(request)
        return self.whole(request)

    def whole(self, request: Request) -> Response:
        return file_response(request, self.data, self.etag, ranges=self.ranges)

    def cut(self, count: int) -> Callable[[Request], Response]:
        """A body that ends early; the connection closes."""

        def answer(request: Request) -> Response:
            response = self.whole(request)
            response.cut = count
            return response

        return answer

    def status(self, code: int, **headers: str) -> Callable[[Request], Response]:
        return lambda _: Response(
            code, {key.replace("_", "-"): value for key, value in headers.items()}
        )


def item(url: str, **rest: object) -> PlanFetch:
    return PlanFetch(
        **{"step": "model", "uri": url, "target": "model/1/model.bin", "ca": True, **rest}
    )  # type: ignore[arg-type]


def fetched(pod: Pod) -> bytes:
    return (pod.models / "model/1/model.bin").read_bytes()

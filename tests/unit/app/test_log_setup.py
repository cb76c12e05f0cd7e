"""Log lines are JSON and hold no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from triton_pipelines.app.log_setup import configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure_logging("info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_own_and_foreign_records_have_one_shape(stream: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(pipeline="p"):
        structlog.get_logger("own").info("applied", objects=3)
        logging.getLogger("kopf.core").warning("retry %d", 2)
    for name in ("kopf.objects", "httpx", "httpcore.http11", "grpc._cython.cygrpc"):
        logging.getLogger(name).info("chatter")
    logging.getLogger("x").debug("hidden")
    own, foreign = lines(stream)
    assert (own["event"], own["objects"], own["logger"], own["level"], own["pipeline"]) == (
        "applied",
        3,
        "own",
        "info",
        "p",
    )
    assert (foreign["event"], foreign["logger"], foreign["level"], foreign["pipeline"]) == (
        "retry 2",
        "kopf.core",
        "warning",
        "p",
    )
    assert own["timestamp"].endswith("Z")


def test_secrets_are_blacked_out_wherever_they_stand(stream: io.StringIO) -> None:
    secret = "hunter2hunter2"
    log = structlog.get_logger("x")
    log.info(
        "a",
        token=secret,
        control_key=secret,
        headers={"Authorization": f"Bearer {secret}"},
        nested=[{"password": secret}],
    )
    log.info(f"GET https://user:{secret}@host/path?X-Amz-Signature={secret} with Bearer {secret}")
    log.info("b", url=f"s3://id:{secret}@bucket/key", admin_key=secret)
    logging.getLogger("y").warning("authorization: Basic %s", secret)
    try:
        raise ValueError(f"https://x:{secret}@h/")
    except ValueError:
        log.exception("c")
    assert secret not in stream.getvalue()
    assert len(lines(stream)) == 5


def test_names_of_keys_and_secrets_stay_readable(stream: io.StringIO) -> None:
    structlog.get_logger("x").info(
        "a", key="ns/name", secret="ns/secret-name", tokenizer="tokenizer"
    )
    (line,) = lines(stream)
    assert (line["key"], line["secret"], line["tokenizer"]) == (
        "ns/name",
        "ns/secret-name",
        "tokenizer",
    )

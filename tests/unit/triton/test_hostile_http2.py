"""gRPC servers that break the protocol, or keep within it and never let a call succeed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.support import http2
from tests.support.http2 import GRPC, Answer, field, headers, serving
from triton_pipelines.controllers.pipeline.prober import REASON_CHARACTERS_MAX
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import TritonError
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe_connections import PodEndpoint, ProbeConnections

REQUEST = ProbeRequest({"X": np.zeros((1, 1), np.float32)})
KEY = "s3cret-c0ntrol-key"


def rejected(status: bytes, message: bytes, *more: bytes) -> Answer:
    """End each call with this status and message."""

    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        fields = [GRPC, field("grpc-status", status), field("grpc-message", message), *more]
        writer.write(headers(stream, *fields))

    return answer


def written(*frames: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        writer.write(b"".join(frames))

    return answer


def reset(code: int) -> Answer:
    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        writer.write(http2.reset(stream, code))

    return answer


async def go_away_and_close(writer: asyncio.StreamWriter, stream: int) -> None:
    writer.write(http2.goaway())
    writer.close()


async def without_status(writer: asyncio.StreamWriter, stream: int) -> None:
    writer.write(headers(stream, GRPC))


async def endless_headers(writer: asyncio.StreamWriter, stream: int) -> None:
    writer.write(http2.frame(http2.HEADERS, b"\x88", stream=stream))
    while True:
        writer.write(http2.frame(http2.CONTINUATION, field("a", b"b" * 16_000), stream=stream))
        await writer.drain()
        await asyncio.sleep(0)


STATUSES = ["0", "2", "14", "17", "99", "-1", "2147483648", "9" * 30, "abc", "", "7.5"]
ANSWERS: dict[str, Answer] = {
    "goaway": written(http2.goaway()),
    "goaway and close": go_away_and_close,
    "refused stream": reset(7),
    "canceled stream": reset(8),
    "calm down": reset(11),
    "no status": without_status,
    "endless headers": endless_headers,
    "message of a MiB": rejected(b"2", b"x" * 1024**2),
    "many fields": rejected(b"2", b"x", *(field(f"k{number}", b"v") for number in range(20_000))),
    "no text": rejected(b"2", b"%FF%FE%00%1b[31m\xff\xfe"),
    **{f"status {status}": rejected(status.encode(), b"no") for status in STATUSES},
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_a_call_that_cannot_succeed_is_a_fault_of_the_pod(case: str) -> None:
    """It is reported as such, and not tried again and again until the deadline."""
    connections = ProbeConnections()
    async with serving(ANSWERS[case]) as pod:
        endpoint = PodEndpoint("nlp", pod.address, "m", KEY)
        found = await connections.probe("uid", endpoint, REQUEST, 5.0)
        assert not found.healthy
        assert found.error or found.inference_error
        assert len(found.error or "") < REASON_CHARACTERS_MAX + 100
        assert pod.calls <= 2
        assert pod.connections <= 2
        assert len(connections) == 0
        await asyncio.gather(*connections._closing)
        async with asyncio.timeout(10):
            await pod.is_closed.wait()
        assert pod.open == 0


@pytest.mark.parametrize("status", ["2", "14"])
async def test_the_control_key_is_masked_in_what_a_pod_says(status: str) -> None:
    answer = rejected(status.encode(), b"unexpected triton-control-key: " + KEY.encode())
    async with serving(answer) as pod, TritonClient(pod.address, KEY) as client:
        with pytest.raises(TritonError, match="unexpected triton-control-key: \\*\\*\\*") as caught:
            await client.repository_index()
    assert KEY not in str(caught.value) + str(getattr(caught.value, "reason", ""))

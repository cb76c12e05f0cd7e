"""Read a page of a pod through the API server's port-forward.

A port-forward ends inside the pod, as that of kubectl does: NetworkPolicies do not apply, and the
right to it is ``pods/portforward``.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient

from triton_pipelines.autoscaling.metrics.metrics_client import PAGE_BYTES_MAX, TIMEOUT_SECONDS

# Data and errors of the only port, as kubelet's binary protocol numbers them. The first frame of
# each channel is the number of the port.
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_BYTES: Final = 2


class PortForwardError(Exception):
    """A page cannot be read; the message says why."""


async def read_page(api: ApiClient, namespace: str, pod: str, port: int, path: str) -> str:
    """Return a page of a pod.

    Raises:
        PortForwardError: the page is not complete in time, too large, or cannot be read.
    """
    try:
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            return _body(await _exchange(api, namespace, pod, port, path))
    except TimeoutError as error:
        raise PortForwardError("no complete response in time") from error
    except aiohttp.WSServerHandshakeError as error:
        raise PortForwardError(
            f"the API server returned status {error.status} for pods/portforward; ask the "
            "cluster's administrator for this permission"
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise PortForwardError(f"{type(error).__name__}: {error}") from error


async def _exchange(api: ApiClient, namespace: str, pod: str, port: int, path: str) -> bytes:
    target = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/portforward"
    headers = {"Sec-WebSocket-Protocol": _PROTOCOL}
    await api.update_params_for_auth(headers, None, ["BearerToken"], target, "GET", None)
    pool = api.rest_client.pool_manager or api.rest_client._create_pool_manager()
    api.rest_client.pool_manager = pool
    url = f"{api.configuration.host}{target}?ports={port}"
    request = f"GET {path} HTTP/1.0\r\nHost: {pod}\r\nAccept-Encoding: identity\r\n\r\n"
    answer, opened = bytearray(), set[int]()
    async with pool.ws_connect(url, headers=headers, max_msg_size=PAGE_BYTES_MAX) as stream:
        await stream.send_bytes(bytes([_DATA]) + request.encode())
        async for message in stream:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, content = message.data[0], message.data[1:]
            if channel not in opened:
                opened.add(channel)
                content = content[_PORT_BYTES:]
            if channel == _ERROR and content:
                raise PortForwardError(content.decode(errors="replace")[:200])
            if channel == _DATA:
                answer += content
            if len(answer) > PAGE_BYTES_MAX:
                raise PortForwardError(f"the page is longer than {PAGE_BYTES_MAX} bytes")
            if _is_complete(answer):
                break
    return bytes(answer)


def _is_complete(answer: bytearray) -> bool:
    """Return whether the body is as long as its header says; the stream may stay open after it."""
    head, blank, body = bytes(answer).partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n")[1:] if blank else ():
        name, _, value = line.partition(b":")
        if name == b"content-length" and value.strip().isdigit():
            return len(body) >= int(value)
    return False


def _body(answer: bytes) -> str:
    head, blank, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].split(b" ")
    if not blank or len(status) < 2 or not status[0].startswith(b"HTTP/"):
        raise PortForwardError("the response is not HTTP")
    if status[1] != b"200":
        raise PortForwardError(f"returned HTTP status {status[1].decode(errors='replace')}")
    return body.decode(errors="replace")

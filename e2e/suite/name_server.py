"""A DNS server that resolves headless Services, as a cluster's own does.

The local cluster has none. It answers questions for ``SERVICE.NAMESPACE`` with the addresses of the
ready endpoints at that moment, and any other question with no address. Answers must not be cached
(TTL 0).
"""

import contextlib
import ipaddress
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator

HEADER = struct.Struct("!6H")
QUESTION = struct.Struct("!2H")
ANSWER = struct.Struct("!3HIH")
RESPONSE, TYPE_A, CLASS_IN = 0x8400, 1, 1
NAME_OF_QUESTION = 0xC000 | HEADER.size
"""A compressed name: that of the question, which follows the header (RFC 1035, 4.1.4)."""

Resolve = Callable[[str, str], set[str]]
"""Namespace and Service → IPv4 addresses of its ready pods."""


def respond(query: bytes, resolve: Resolve) -> bytes:
    """Return the response to a query with one question (RFC 1035, 4.1)."""
    identifier, *_ = HEADER.unpack_from(query)
    labels, at = [], HEADER.size
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    kind, _ = QUESTION.unpack_from(query, at + 1)
    question = query[HEADER.size : at + 1 + QUESTION.size]
    found = resolve(labels[1], labels[0]) if kind == TYPE_A and len(labels) == 2 else set()
    answers = [
        ANSWER.pack(NAME_OF_QUESTION, TYPE_A, CLASS_IN, 0, 4)
        + ipaddress.IPv4Address(address).packed
        for address in sorted(found)
    ]
    return b"".join([HEADER.pack(identifier, RESPONSE, 1, len(answers), 0, 0), question, *answers])


@contextlib.contextmanager
def name_server(resolve: Resolve) -> Iterator[str]:
    """Run the server on loopback (UDP) for the duration of the context; give ``host:port``."""

    class Handler(socketserver.DatagramRequestHandler):
        def handle(self) -> None:
            self.wfile.write(respond(self.rfile.read(), resolve))

    with socketserver.ThreadingUDPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="DNS", daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

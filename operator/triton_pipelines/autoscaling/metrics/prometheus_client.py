"""Query Prometheus through prometheus-api-client.

Adds what that client lacks: a total deadline, strict checks of responses and our own error
messages. Calls block, so they belong in a thread. By itself the client retries, limits the time of
each read but not of the whole request, drops the envelope of a response and raises bare KeyErrors
for errors inside a 200. It therefore gets a policy without retries and a session that reads and
checks responses.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import requests
import urllib3
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.util.retry import Retry

from triton_pipelines.redaction import Redactor

from .connection import Connection, QueryCredentials, Security
from .prometheus_response import TEXT_MAX, PrometheusError, PrometheusResponse, QueryResult
from .secret_files import SecretFileError

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 5.0
# The samples of 1 000 pipelines over 75 s are 23 MB. Parsed, a response takes several times its
# size.
ANSWER_BYTES_MAX: Final = 32 * 1024**2
_ERROR_BYTES_MAX: Final = 16 * 1024
_BLOCK: Final = 256 * 1024
_SHORTEST: Final = 0.05


class Prometheus:
    """One connection, for one thread at a time."""

    def __init__(
        self, connection: Connection, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._certificates: object = None
        self._client: PrometheusConnect | None = None
        self._session = _Session(monotonic)

    def query(self, text: str, deadline: float) -> QueryResult:
        """Return the result of an instant query.

        Args:
            text: The PromQL expression.
            deadline: Monotonic time by which everything must be done, from connecting to the last
                byte.

        Raises:
            PrometheusError: The query returned no usable result.
        """
        left = deadline - self._monotonic()
        if left < _SHORTEST:
            raise PrometheusError(self._late(), is_timeout=True)
        try:
            credentials = self._connection.credentials()
            client: Any = self._connected()
        except SecretFileError as error:
            raise PrometheusError(str(error), final=True, has_remedy=True) from None
        client.headers = dict(credentials.headers)
        client.auth = credentials.basic
        self._session.deadline = deadline
        self._session.redact = redact = _redactor(credentials)
        try:
            # The server also gives up at the deadline, because the result is useless after it.
            client.custom_query(
                text,
                params={"timeout": f"{left * 1000:.0f}ms"},
                timeout=(min(CONNECT_SECONDS, left), min(READ_SECONDS, left)),
            )
        except PrometheusError as error:
            raise PrometheusError(
                redact(str(error)), final=error.final, has_remedy=error.has_remedy
            ) from None
        except PrometheusApiClientException:
            message, remedy = self._refused()
            is_timeout = self._session.is_timeout
            raise PrometheusError(
                redact(message + remedy),
                final=not (self._session.of_query or is_timeout),
                is_timeout=is_timeout,
                has_remedy=bool(remedy),
            ) from None
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            ValueError,
        ) as error:
            message, remedy = self._failed(error)
            raise PrometheusError(
                redact(message + remedy),
                final=not _is_timeout(error),
                is_timeout=_is_timeout(error),
                has_remedy=bool(remedy),
            ) from None
        answer = self._session.answer
        if answer is None:
            raise PrometheusError("the server did not respond")
        return answer.envelope()

    def close(self) -> None:
        """Close connections."""
        self._session.close()

    def _connected(self) -> PrometheusConnect:
        """Return the client, recreated if a certificate file has changed."""
        certificates = self._connection.certificates()
        if self._client is not None and certificates == self._certificates:
            return self._client
        self._session.close()
        self._session = _Session(self._monotonic)
        tls = self._connection.tls
        if self._connection.security is Security.INSECURE:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            self._session.verify = False
        elif tls.ca_file is not None:
            self._session.verify = str(tls.ca_file)
        if tls.cert_file is not None and tls.key_file is not None:
            self._session.cert = (str(tls.cert_file), str(tls.key_file))
        self._client = PrometheusConnect(
            url=self._connection.url, session=self._session, retry=Retry(total=0)
        )
        self._certificates = certificates
        return self._client

    def _late(self) -> str:
        return f"no complete response within {self._connection.timeout_seconds:g} s"

    def _refused(self) -> tuple[str, str]:
        """Return what a status other than 200 means, and the remedy; "" if there are several."""
        answer = self._session.answer
        if answer is None:
            return "the server rejected the query", ""
        message, detail = f"HTTP {answer.status_code}", answer.detail()
        if answer.status_code in (401, 403):
            shown = f" ({detail})" if detail else ""
            return (
                f"{message}: the credentials are missing or were rejected{shown}",
                "; check bearerTokenFile, basicAuth, tls.certFile and tenant",
            )
        if 300 <= answer.status_code < 400:
            return (
                f"{message}: the response redirects to "
                f"{answer.location or 'another address'}, but redirects are not followed",
                "; set the connection's url to the final address",
            )
        if answer.status_code == 404:
            return (
                f"{message}: there is no API at {self._connection.url}/api/v1/query",
                "; check the path prefix in the connection's url",
            )
        return f"{message}: {detail}" if detail else message, ""

    def _failed(self, error: Exception) -> tuple[str, str]:
        """Return why there is no response, and the remedy; "" if there are several."""
        chain = list(_causes(error))
        if _has(chain, ssl.SSLError, requests.exceptions.SSLError, urllib3.exceptions.SSLError):
            return (
                f"TLS: {_tls_detail(chain, self._session.redact)}",
                "; check tls.caFile (certificate authority), and tls.certFile and tls.keyFile "
                "(client certificate)",
            )
        if _has(chain, socket.gaierror, urllib3.exceptions.NameResolutionError):
            return "the host name cannot be resolved", ""
        system = next(
            (
                one.strerror
                for one in chain
                if isinstance(one, OSError) and not isinstance(one, TimeoutError) and one.strerror
            ),
            "",
        )
        if system:
            return f"the server cannot be reached: {system}", ""
        if _has(chain, requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
            return self._late(), ""
        if _has(chain, urllib3.exceptions.ProtocolError, ConnectionError):
            return "the response ended early", ""
        return f"the query failed: {_short(chain[-1], self._session.redact)}", ""


def _is_timeout(error: Exception) -> bool:
    """Return whether the server was reached, but did not respond in time."""
    chain = list(_causes(error))
    return _has(
        chain, requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError
    ) and not _has(chain, requests.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError)


def _has(chain: Iterable[BaseException], *kinds: type[BaseException]) -> bool:
    """Return whether one of the causes is of one of these kinds."""
    return any(isinstance(one, kinds) for one in chain)


def _tls_detail(chain: Sequence[BaseException], redact: Callable[[str], str]) -> str:
    """Return why the certificate was not accepted, or else the innermost cause."""
    messages = (
        one.verify_message for one in chain if isinstance(one, ssl.SSLCertVerificationError)
    )
    return next(messages, "") or _short(chain[-1], redact)


class _Session(requests.Session):
    """A session for the client that limits the time and size of responses.

    It does not follow redirects and ignores the environment.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__()
        # Otherwise .netrc would replace the token, and proxy variables meant for downloads would
        # apply to queries.
        self.trust_env = False
        # The size of a compressed response is known only once it is unpacked.
        self.headers["Accept-Encoding"] = "identity"
        self.deadline = 0.0
        self.redact: Callable[[str], str] = str
        self.answer: PrometheusResponse | None = None
        self._monotonic = monotonic

    def request(self, *arguments: Any, **options: Any) -> Any:
        self.answer = None
        response = super().request(
            *arguments, **{**options, "stream": True, "allow_redirects": False}
        )
        try:
            self.answer = PrometheusResponse(
                response.status_code,
                self._body(response),
                response.headers.get("location", ""),
                self.redact,
            )
        finally:
            response.close()
        return self.answer

    @property
    def of_query(self) -> bool:
        """Return whether the last response rejected the query itself, rather than the client.

        Another query may then succeed.
        """
        return self.answer is not None and self.answer.status_code in (400, 422)

    @property
    def is_timeout(self) -> bool:
        """Return whether the server, or a proxy, gave up the query because it took too long."""
        answer = self.answer
        if answer is None:
            return False
        return answer.status_code == 504 or (
            answer.status_code == 503 and answer.error_type() == "timeout"
        )

    def _body(self, response: requests.Response) -> bytes:
        """Return the whole body, read within the deadline.

        The connection's own timeout applies per read, so a body that trickles in would never end.
        """
        data = bytearray()
        raw = response.raw
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise PrometheusError(
                "the response is compressed, although no compression was requested; disable"
                " compression in the proxy in front of Prometheus",
                final=True,
                has_remedy=True,
            )
        while block := raw.read1(_BLOCK, decode_content=False):
            data += block
            if response.status_code != requests.codes.ok and len(data) > _ERROR_BYTES_MAX:
                return bytes(data[:_ERROR_BYTES_MAX])
            if len(data) > ANSWER_BYTES_MAX:
                raise PrometheusError(
                    f"the response is longer than {ANSWER_BYTES_MAX // 1024**2} MiB; limit the "
                    "samples of each target in Prometheus (sample_limit)",
                    has_remedy=True,
                )
            if self._monotonic() > self.deadline:
                raise requests.Timeout
        return bytes(data)


def _redactor(credentials: QueryCredentials) -> Redactor:
    """Return what masks the secrets of a query, which a server may repeat."""
    redactor = Redactor()
    redactor.add(*credentials.secrets)
    if credentials.basic is not None:
        redactor.add_basic(*credentials.basic)
    return redactor


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes.

    Requests and urllib3 wrap each other's errors as arguments and reasons.
    """
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and not any(one is other for other in seen):
            seen.append(one)
            yield one
            waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]


def _short(error: BaseException, redact: Callable[[str], str]) -> str:
    return " ".join(redact(str(error)).split())[:TEXT_MAX] or type(error).__name__

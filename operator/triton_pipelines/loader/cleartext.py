"""Keep credentials off unencrypted connections. There is no setting that allows them there."""

from __future__ import annotations

from urllib.parse import urlsplit

from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.uris import LOOPBACK, SourceLocation, scheme_of


def cleartext_host(url: str | None) -> str | None:
    """Return the host to which ``url`` leads unencrypted; ``None`` for https and loopback."""
    if url is None or scheme_of(url) != "http":
        return None
    host = urlsplit(url).hostname or ""
    return None if host in LOOPBACK else host


def source_cleartext_host(location: SourceLocation, endpoint: str | None) -> str | None:
    """Return the host from which a source is fetched unencrypted.

    ``None`` for https, for sources that are not on a network, and on loopback.

    Args:
        location: where the source is.
        endpoint: the endpoint that the resource names; that of the source map takes precedence.
    """
    return cleartext_host(location.endpoint or endpoint or location.uri)


def refuse_cleartext(
    location: SourceLocation, endpoint: str | None, credentials: SourceCredentials, owner: str
) -> None:
    """Refuse to send a secret over ``http://``, before the first request.

    Keys of S3 and of Azure accounts only sign requests and are not sent themselves.

    Args:
        location: where the source is.
        endpoint: the endpoint that the resource names.
        credentials: what would be sent.
        owner: the field of the source, for the message.

    Raises:
        SourceError: a secret would be sent unencrypted.
    """
    host = source_cleartext_host(location, endpoint)
    if host is None:
        return
    if credentials.sends_secret:
        raise SourceError(
            f"{host} uses http://, so others could read the credentials of "
            f"{owner}.secretRef; nothing was sent. Use https:// (with caRef for a private "
            "CA), or remove secretRef if the server needs no credentials"
        )
    if _has_userinfo(location.endpoint or endpoint or location.uri):
        raise SourceError(
            f"{host} uses http:// with user information, which others could read; nothing "
            "was sent. Use https://, or remove the username and password from the URL"
        )


def _has_userinfo(url: str) -> bool:
    return "@" in urlsplit(url).netloc

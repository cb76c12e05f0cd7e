"""Ignore environment variables that would change from where, and how safely, files are fetched.

The operator passes every setting of the loader as an argument. Who writes a pipeline can add
variables to the init container (``podTemplate``: ``env`` and ``envFrom``), for proxies and for a
cloud's identity. The libraries for buckets and hubs read many more: endpoints that replace that of
the resource, unsigned or unverified requests, a file for TLS keys.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final
from urllib.parse import urlsplit

from triton_pipelines.loader.uris import LOOPBACK

_OWN_PREFIX: Final = "TRITONPIPE_"
IGNORED: Final = frozenset(
    {
        # obstore reads these over its defaults; the resource's endpoint applies instead.
        *(
            f"AWS_{name}"
            for name in (
                "ENDPOINT",
                "ENDPOINT_URL",
                "ENDPOINT_URL_S3",
                "UNSIGNED_PAYLOAD",
                "VIRTUAL_HOSTED_STYLE_REQUEST",
            )
        ),
        "GOOGLE_BASE_URL",
        *(
            f"AZURE_{name}"
            for name in (
                "ENDPOINT",
                "STORAGE_ENDPOINT",
                "STORAGE_USE_EMULATOR",
                "USE_AZURE_CLI",
                "USE_FABRIC_ENDPOINT",
            )
        ),
        *(
            f"{cloud}_{name}"
            for cloud in ("AWS", "GOOGLE", "AZURE")
            for name in (
                "ALLOW_HTTP",
                "ALLOW_INVALID_CERTIFICATES",
                "PROXY_CA_CERTIFICATE",
                "PROXY_URL",
                "SKIP_SIGNATURE",
            )
        ),
        # huggingface_hub: another hub, and a log of whole requests.
        *("HF_ENDPOINT", "HF_DEBUG", "HUGGINGFACE_CO_STAGING"),
        # Python's ssl writes the keys of TLS connections to the file that this names.
        "SSLKEYLOGFILE",
    }
)
"""Names of the variables; with them, all that start with ``TRITONPIPE_`` are ignored."""


_HTTPS_ONLY: Final = frozenset({"AWS_ENDPOINT_URL_STS", "AZURE_AUTHORITY_HOST"})
"""Where the identity of the pod is presented: kept for private clouds, over https or loopback."""


def drop_ignored(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Remove the variables that the loader ignores, also for the libraries; return their names.

    Names are compared without case, as obstore does.

    Args:
        environment: the process's environment. It must be changed before the libraries read it.
    """
    dropped = sorted(
        name
        for name in environment
        if name.upper() in IGNORED
        or name.upper().startswith(_OWN_PREFIX)
        or (name.upper() in _HTTPS_ONLY and not _is_private(environment[name]))
    )
    for name in dropped:
        del environment[name]
    return dropped


def _is_private(url: str) -> bool:
    """Return whether a request to ``url`` is encrypted or stays on this host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)

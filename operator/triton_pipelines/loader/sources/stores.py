"""Create obstore's stores for buckets of S3, Google Cloud Storage and Azure Blob Storage.

The downloader retries and logs, so the stores do not. Proxies come from the environment
(HTTPS_PROXY, NO_PROXY).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from triton_pipelines.loader.cleartext import cleartext_host
from triton_pipelines.loader.errors import SourceError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Store = S3Store | GCSStore | AzureStore
DEFAULT_REGION: Final = "us-east-1"
_NO_RETRIES: Final[RetryConfig] = {"max_retries": 0}


def s3_store(
    bucket: str,
    *,
    endpoint: str | None,
    region: str | None,
    keys: tuple[str, str, str | None] | None,
    ca: Path | None,
) -> S3Store:
    """Return the store of an S3 bucket.

    With an endpoint the bucket is addressed by path, which every S3 server supports.

    Args:
        bucket: name.
        endpoint: address of the server; ``None`` for AWS.
        region: region; ``None`` for that of the environment, else :data:`DEFAULT_REGION`.
        keys: access key id, secret and session token; ``None`` for the pod's own identity.
        ca: CA bundle.
    """
    options: dict[str, Any] = {"virtual_hosted_style_request": endpoint is None}
    # The platform sets AWS_REGION for a pod with its own identity; the resource takes precedence.
    if region or not any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
        options["region"] = region or DEFAULT_REGION
    if endpoint is not None:
        options["endpoint"] = endpoint.rstrip("/")
    if keys is not None:
        access, secret, session = keys
        # A provider, not options: the environment's session token would otherwise mix with these
        # keys.
        options["credential_provider"] = lambda: {
            "access_key_id": access,
            "secret_access_key": secret,
            "token": session,
            "expires_at": None,
        }
    try:
        return S3Store(
            bucket, client_options=_client(endpoint, ca), retry_config=_NO_RETRIES, **options
        )
    except (BaseError, ValueError) as error:
        raise _unusable(error) from error


def gcs_store(
    bucket: str, *, endpoint: str | None, service_account: str | None, ca: Path | None
) -> GCSStore:
    """Return the store of a Google Cloud Storage bucket.

    Args:
        bucket: name.
        endpoint: address of the server; ``None`` for Google's.
        service_account: JSON of a key file; ``None`` for the pod's workload identity, which is not
            presented over http.
        ca: CA bundle.
    """
    options: dict[str, Any] = {}
    if endpoint is not None:
        options["base_url"] = endpoint.rstrip("/")
    if service_account is not None:
        options["service_account_key"] = service_account
    elif cleartext_host(endpoint) is not None:
        # The token of the pod's identity would be readable on the way: read without it.
        options["skip_signature"] = True
    try:
        return GCSStore(
            bucket, client_options=_client(endpoint, ca), retry_config=_NO_RETRIES, **options
        )
    except (BaseError, ValueError) as error:
        raise _unusable(error) from error


def azure_store(
    account: str,
    container: str,
    *,
    endpoint: str | None,
    account_key: str | None,
    sas_token: str | None,
    ca: Path | None,
) -> AzureStore:
    """Return the store of an Azure container.

    Without access key and SAS token the pod's workload identity is used, except over http.

    Args:
        account: storage account.
        container: name.
        endpoint: the account's blob address. One that addresses accounts by path (emulators) ends
            with the account.
        account_key: access key.
        sas_token: shared access signature.
        ca: CA bundle.
    """
    options: dict[str, Any] = {"account_name": account}
    if endpoint is not None:
        options["endpoint"] = endpoint.rstrip("/")
    # Providers, not options: credentials of the environment would otherwise mix with these.
    if sas_token is not None:
        options["credential_provider"] = lambda: {"sas_token": sas_token, "expires_at": None}
    elif account_key is not None:
        options["credential_provider"] = lambda: {"access_key": account_key, "expires_at": None}
    elif cleartext_host(endpoint) is not None:
        options["skip_signature"] = True
    try:
        return AzureStore(
            container, client_options=_client(endpoint, ca), retry_config=_NO_RETRIES, **options
        )
    except (BaseError, ValueError) as error:
        raise _unusable(error) from error


def _client(endpoint: str | None, ca: Path | None) -> ClientConfig:
    client: ClientConfig = {
        "connect_timeout": "10s",
        "read_timeout": "60s",
        "timeout": "7days",
        "allow_http": (endpoint or "").startswith("http://"),
    }
    if ca is not None:
        client["root_certificate"] = ca.read_bytes()
    return client


def _unusable(error: Exception) -> SourceError:
    # The first line is the message; the rest is the debug form, which may contain the
    # configuration.
    text = str(error).partition("\n")[0].strip()
    return SourceError(f"the store cannot be used as configured: {text}")

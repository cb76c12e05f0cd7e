"""Load the credentials of the API server, for the operator's own client and for Kopf's watches.

In a cluster the service account's token file is read again every minute (bound tokens rotate).
Outside, the usual kubeconfig rules apply: ``KUBECONFIG``, else ``~/.kube/config``, with an optional
context.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from triton_pipelines.cluster.errors import Unavailable


class LoginError(Unavailable):
    """No usable credentials; the message names the files that were tried.

    Retried, since the files may be in the middle of a rotation.
    """

    def __init__(self, message: str) -> None:
        super().__init__(0, "LoginFailed", message)


async def load_configuration(
    kubeconfig: str | None = None, context: str | None = None
) -> Configuration:
    """Read the API server's address and credentials.

    Args:
        kubeconfig: path of a kubeconfig; ``KUBECONFIG``, then ``~/.kube/config`` by default.
        context: a kubeconfig context. With either given, the kubeconfig is used even inside a pod.

    Returns:
        A fresh configuration of ``kubernetes.aio``; nothing global is changed.

    Raises:
        LoginError: neither a service account nor a usable kubeconfig was found.
    """
    configuration = Configuration()
    await _read_credentials(configuration, kubeconfig or os.environ.get("KUBECONFIG"), context)
    # The HTTP library would read the environment and ~/.netrc again for each request, in two
    # threads: a tenth of the CPU time of creating a pipeline.
    configuration.client_session_kwargs = {"trust_env": False}
    configuration.proxy = configuration.proxy or environment_proxy(configuration.host)
    return configuration


def environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment sets for an address (``HTTPS_PROXY``, ``NO_PROXY``).

    Proxies that are reached over TLS are ignored: the HTTP library does not support them.
    """
    address = urlsplit(url)
    proxy = getproxies().get(address.scheme)
    if not proxy or proxy.startswith("https:") or proxy_bypass(address.hostname or ""):
        return None
    return proxy


async def _read_credentials(
    configuration: Configuration, path: str | None, context: str | None
) -> None:
    if context is None and not path:
        try:
            kube_config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration,
            )
        except ConfigException:
            pass
        else:
            return
    try:
        await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path or str(Path("~/.kube/config").expanduser()),
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    except (ConfigException, OSError) as error:
        where = path or "~/.kube/config"
        chosen = f", context {context!r}" if context else ""
        raise LoginError(
            f"there is no service account, and the kubeconfig {where}{chosen} is not "
            f"usable: {error}"
        ) from error

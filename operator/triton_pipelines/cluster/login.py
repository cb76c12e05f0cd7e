"""Load the credentials of the API server, for the operator's own client and for Kopf's watches.

In a cluster the service account's token file is read again every minute (bound tokens rotate).
Outside, the usual kubeconfig rules apply: ``KUBECONFIG``, else ``~/.kube/config``, with an optional
context.
"""

from __future__ import annotations

import os
from pathlib import Path

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
    path = kubeconfig or os.environ.get("KUBECONFIG")
    if context is None and not path:
        try:
            kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except ConfigException:
            pass
        else:
            return configuration
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
            f"no service account, and the kubeconfig {where}{chosen} cannot be used: {error}"
        ) from error
    return configuration

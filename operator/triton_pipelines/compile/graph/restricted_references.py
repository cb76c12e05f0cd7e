"""Find service accounts and Secrets that a pipeline may not use while its pods are restricted.

The operator creates pods with its own rights. Without this check, whoever may create a pipeline
could act as every service account of the namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph
from .options import Options, PodTemplateMode

DEFAULT_ACCOUNT: Final = "default"
_HELM_RELEASE: Final = "sh.helm.release."
# Names that Kubernetes generates for tokens of service accounts (its alphabet has no vowels).
_ACCOUNT_TOKEN: Final = re.compile(r".+-token-[bcdfghjklmnpqrstvwxz2456789]{5}")
_REVISION_NAME: Final = re.compile(rf".+-([0-9a-f]{{{names.REVISION_LENGTH}}})")
# Kustomize's hash suffixes look the same but never contain these characters. One revision in 43
# does not contain them either; a Secret with such a name is not taken for a control Secret.
_NOT_IN_KUSTOMIZE_HASHES: Final = frozenset("013ae")


def forbidden(path: str, message: str) -> Finding:
    """Return a finding about something that only an unrestricted pod template may contain."""
    return Finding(
        path,
        f"{message}, or ask the operator's administrator to set --pod-template=allow",
        code=FindingCode.FORBIDDEN,
    )


def check_account(name: str, path: str, options: Options) -> Iterator[Finding]:
    """Yield a finding if pods may not use this service account.

    Args:
        name: Name of the account, in the namespace of the pipeline.
        path: Field that names it.
        options: The operator's options.
    """
    allowed = (DEFAULT_ACCOUNT, *options.service_accounts)
    if name and name not in allowed:
        yield Finding(
            path,
            f"pipelines cannot use service account {name!r}; use {' or '.join(allowed)}, or "
            f"ask the operator's administrator to add {name!r} to --service-accounts",
            code=FindingCode.FORBIDDEN,
        )


def check_secret(name: str, path: str, namespace: str, options: Options) -> Iterator[Finding]:
    """Yield a finding if pods may not contain this Secret.

    Args:
        name: Name of the Secret.
        path: Field that names it.
        namespace: Namespace of the pipeline.
        options: The operator's options.
    """
    revision = _REVISION_NAME.fullmatch(name)
    if name.startswith(_HELM_RELEASE):
        what = "is the Secret of a Helm release, which contains all values of the chart"
    elif _ACCOUNT_TOKEN.fullmatch(name):
        what = "contains the token of a service account"
    elif revision is not None and _NOT_IN_KUSTOMIZE_HASHES & set(revision[1]):
        what = "has the name of a pipeline's control key"
    elif name == options.operator_key_secret and namespace == options.operator_namespace:
        what = "is the operator key, from which all control keys are derived"
    else:
        return
    yield forbidden(path, f"Secret {name} {what}; use another Secret")


def check_references(
    pipeline: InferencePipeline, graph: Graph, options: Options
) -> Iterator[Finding]:
    """Yield findings about the service account and the Secrets that the spec names.

    Those in ``server.podTemplate`` are checked where it is merged.
    """
    if options.pod_template is PodTemplateMode.ALLOW:
        return
    server, namespace = pipeline.spec.server, pipeline.namespace
    yield from check_account(
        server.service_account_name or "", "spec.server.serviceAccountName", options
    )
    for index, variable in enumerate(server.env):
        reference = (variable.value_from or {}).get("secretKeyRef")
        if isinstance(reference, Mapping):
            path = f"spec.server.env[{index}].valueFrom.secretKeyRef.name"
            yield from check_secret(str(reference.get("name") or ""), path, namespace, options)
    if server.tls is not None:
        path = "spec.server.tls.secretName"
        yield from check_secret(server.tls.secret_name, path, namespace, options)
    for item in graph.fetches:
        if item.source.secret_ref is not None:
            path = f"{item.path}.secretRef.name"
            yield from check_secret(item.source.secret_ref.name, path, namespace, options)

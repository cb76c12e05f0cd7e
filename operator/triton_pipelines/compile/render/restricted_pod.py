"""Find what gives a pod access to its node, to other identities or to other Services.

The rules are those of Kubernetes' Pod Security Standard ``baseline``
(https://kubernetes.io/docs/concepts/security/pod-security-standards/). In addition, they restrict
volume types, service accounts and their tokens, Secrets, labels and annotations.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph.options import SAFE_POD_METADATA, Options
from triton_pipelines.compile.graph.restricted_references import (
    check_account,
    check_secret,
    forbidden,
)
from triton_pipelines.compile.graph.server_settings import (
    OWNED_ENVIRONMENT,
    RESERVED_GPU_ENVIRONMENT,
)

from .pod_schema import as_mapping, mapping_items

_HOST: Final = {
    "hostNetwork": "the field gives the pod access to the network of its node",
    "hostPID": "the field gives the pod access to the processes of its node",
    "hostIPC": "the field gives the pod access to the shared memory of its node",
    "nodeName": "the field bypasses the scheduler",
}
# Kinds of volumes that the standard "restricted" has, and images.
_VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_PROJECTED: Final = frozenset({"clusterTrustBundle", "configMap", "downwardAPI", "secret"})
_CAPABILITIES: Final = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
_PROFILES: Final = frozenset({"RuntimeDefault", "Localhost"})
_SELINUX_TYPES: Final = frozenset(
    {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
)
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_OWN_CONTAINERS: Final = (names.CONTAINER_SERVER, names.CONTAINER_LOADER)
_RESERVED_PREFIX: Final = "TRITONPIPE_"
_RESERVED: Final = OWNED_ENVIRONMENT | RESERVED_GPU_ENVIRONMENT


def restricted_fields(given: Any, namespace: str, options: Options, path: str) -> Iterator[Finding]:
    """Yield the fields of ``server.podTemplate`` that only ``--pod-template=allow`` permits.

    What the resource does not set comes from the operator, or from fields of the resource that
    have checks of their own.

    Args:
        given: The pod template of the resource.
        namespace: Namespace of the pipeline.
        options: The operator's options.
        path: Field of the resource that contains ``given``.
    """
    yield from _metadata(as_mapping(as_mapping(given).get("metadata")), options, f"{path}.metadata")
    pod, path = as_mapping(as_mapping(given).get("spec")), f"{path}.spec"
    for field, effect in _HOST.items():
        if pod.get(field):
            yield _refused(f"{path}.{field}", effect)
    for field in ("serviceAccountName", "serviceAccount"):
        yield from check_account(str(pod.get(field) or ""), f"{path}.{field}", options)
    yield from _security(as_mapping(pod.get("securityContext")), f"{path}.securityContext")
    for part in ("containers", "initContainers"):
        for where, item in mapping_items(pod.get(part), f"{path}.{part}"):
            yield from _container(item, namespace, options, where)
    for where, item in mapping_items(pod.get("volumes"), f"{path}.volumes"):
        yield from _volume(item, namespace, options, where)


def _refused(path: str, why: str) -> Finding:
    return forbidden(path, f"{why}; remove this setting")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _metadata(given: Mapping[str, Any], options: Options, path: str) -> Iterator[Finding]:
    patterns = (*SAFE_POD_METADATA, *options.pod_metadata)
    for part in ("labels", "annotations"):
        for key, value in as_mapping(given.get(part)).items():
            allowed = any(fnmatch.fnmatchcase(str(key), one) for one in patterns)
            # The operator's own keys have a check of their own.
            if allowed or value is None or str(key).startswith(f"{names.GROUP}/"):
                continue
            yield Finding(
                f"{path}.{part}[{key}]",
                "not allowed, because other Services and controllers select pods by "
                f"their {part}; remove this key, or ask the operator's administrator to add "
                "this key to --pod-metadata",
                code=FindingCode.FORBIDDEN,
            )


def _container(
    item: Mapping[str, Any], namespace: str, options: Options, path: str
) -> Iterator[Finding]:
    security, at = as_mapping(item.get("securityContext")), f"{path}.securityContext"
    yield from _security(security, at)
    if security.get("privileged"):
        yield _refused(
            f"{at}.privileged", "the field gives the container all privileges on its node"
        )
    for name in _list(as_mapping(security.get("capabilities")).get("add")):
        if name not in _CAPABILITIES:
            yield _refused(
                f"{at}.capabilities.add", f"{name} gives the container privileges on the node"
            )
    if (security.get("procMount") or "Default") != "Default":
        yield _refused(
            f"{at}.procMount", "the field exposes parts of /proc that are hidden for protection"
        )
    for where, port in mapping_items(item.get("ports"), f"{path}.ports"):
        if port.get("hostPort"):
            yield _refused(f"{where}.hostPort", "the field opens a port of the node")
    yield from _handlers(item, path)
    yield from _environment(item, namespace, options, path)


def _security(security: Mapping[str, Any], path: str) -> Iterator[Finding]:
    """Check what pods and containers have in common."""
    for field in ("seccompProfile", "appArmorProfile"):
        kind = as_mapping(security.get(field)).get("type")
        if kind is not None and kind not in _PROFILES:
            yield _refused(f"{path}.{field}.type", f"{kind} removes a protection of the node")
    selinux = as_mapping(security.get("seLinuxOptions"))
    for field in ("user", "role", "type"):
        value = selinux.get(field) or ""
        if value and not (field == "type" and value in _SELINUX_TYPES):
            yield _refused(
                f"{path}.seLinuxOptions.{field}", "the field removes a protection of the node"
            )
    if as_mapping(security.get("windowsOptions")).get("hostProcess"):
        yield _refused(
            f"{path}.windowsOptions.hostProcess", "the field runs the container on its node"
        )
    for where, item in mapping_items(security.get("sysctls"), f"{path}.sysctls"):
        if item.get("name") not in _SYSCTLS:
            yield _refused(where, f"{item.get('name')} is not a safe sysctl")


def _handlers(item: Mapping[str, Any], path: str) -> Iterator[Finding]:
    """Check probes and lifecycle hooks, which the kubelet sends from the node's network."""
    lifecycle = as_mapping(item.get("lifecycle"))
    handlers = [(f"{path}.{name}", item.get(name)) for name in _PROBES] + [
        (f"{path}.lifecycle.{name}", lifecycle.get(name)) for name in ("postStart", "preStop")
    ]
    for where, handler in handlers:
        for action in ("httpGet", "tcpSocket"):
            if as_mapping(as_mapping(handler).get(action)).get("host"):
                yield _refused(f"{where}.{action}.host", "sends requests from the node")


def _environment(
    item: Mapping[str, Any], namespace: str, options: Options, path: str
) -> Iterator[Finding]:
    for where, variable in mapping_items(item.get("env"), f"{path}.env"):
        reference = as_mapping(as_mapping(variable.get("valueFrom")).get("secretKeyRef"))
        at = f"{where}.valueFrom.secretKeyRef.name"
        yield from check_secret(str(reference.get("name") or ""), at, namespace, options)
    for where, source in mapping_items(item.get("envFrom"), f"{path}.envFrom"):
        secret = str(as_mapping(source.get("secretRef")).get("name") or "")
        yield from check_secret(secret, f"{where}.secretRef.name", namespace, options)
        prefix = str(source.get("prefix") or "").upper()
        if item.get("name") in _OWN_CONTAINERS and _can_be_reserved(prefix):
            yield forbidden(
                f"{where}.prefix",
                "the source can set variables that only the operator is allowed to set; "
                "set a prefix such as APP_, or list each variable in env",
            )


def _can_be_reserved(prefix: str) -> bool:
    """Return whether a variable with this prefix can be one that the operator reserves."""
    return prefix.startswith(_RESERVED_PREFIX) or any(
        name.startswith(prefix) for name in (_RESERVED_PREFIX, *_RESERVED)
    )


def _volume(
    item: Mapping[str, Any], namespace: str, options: Options, path: str
) -> Iterator[Finding]:
    kinds = {kind for kind, source in item.items() if kind != "name" and source is not None}
    for kind in sorted(kinds - _VOLUMES):
        why = (
            "is a directory of the node"
            if kind == "hostPath"
            else ("mounts storage with the node's credentials")
        )
        yield forbidden(f"{path}.{kind}", f"{why}; use a persistentVolumeClaim")
    secret = as_mapping(item.get("secret")).get("secretName")
    publish = as_mapping(as_mapping(item.get("csi")).get("nodePublishSecretRef")).get("name")
    for at, name in (("secret.secretName", secret), ("csi.nodePublishSecretRef.name", publish)):
        if name is not None:
            yield from check_secret(str(name), f"{path}.{at}", namespace, options)
    sources = as_mapping(item.get("projected")).get("sources")
    for where, source in mapping_items(sources, f"{path}.projected.sources"):
        for kind in sorted(set(source) - _PROJECTED):
            yield _refused(
                f"{where}.{kind}", "the field gives the pod the identity of its service account"
            )
        if name := as_mapping(source.get("secret")).get("name"):
            yield from check_secret(str(name), f"{where}.secret.name", namespace, options)

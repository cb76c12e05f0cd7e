"""Who may reach the pods of a pipeline, and what they may reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.server import ServiceType
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.options import EVERYONE, Options

from .objects import child
from .passthrough import plain

Peer = Mapping[str, Any]
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
# Default address of NodeLocal DNSCache, which no pod selector matches (Kubernetes documentation,
# "Using NodeLocal DNSCache in Kubernetes Clusters").
_NODE_LOCAL_DNS: Final = "169.254.20.10/32"
_DNS_RULE: Final[Mapping[str, Any]] = {
    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
    "to": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": _NODE_LOCAL_DNS}}],
}


def operator_peer(namespace: str) -> dict[str, Any]:
    """Return the operator's pods as a peer.

    Args:
        namespace: The operator's namespace.
    """
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: namespace}},
        "podSelector": {
            "matchLabels": {names.LABEL_NAME: names.APP, names.LABEL_COMPONENT: "operator"}
        },
    }


def egress_fields(pipeline: InferencePipeline) -> dict[str, Any]:
    """Return the policy's ``egress``; nothing if the pipeline does not restrict it.

    Cluster DNS stays reachable, because without it every other rule by name fails.
    """
    declared = pipeline.spec.server.network_policy.egress
    return {"egress": [*(plain(rule) for rule in declared), dict(_DNS_RULE)]} if declared else {}


def network_policy(pipeline: InferencePipeline, options: Options) -> dict[str, Any] | None:
    """Return the network policy of the pods; ``None`` if the resource disables it."""
    server = pipeline.spec.server
    declared = server.network_policy
    if declared.mode is Switch.DISABLED:
        return None
    inference = _peers(declared.inference_from, options.inference_namespaces)
    if server.service.type is not ServiceType.CLUSTER_IP and not declared.inference_from:
        # Such a Service is created for clients outside the cluster, whose addresses are unknown.
        inference = None
    metrics = _peers(declared.metrics_from, options.metrics_namespaces)

    def rule(peers: Sequence[Peer] | None, *ports: str) -> dict[str, Any]:
        allowed: dict[str, Any] = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
        return (
            allowed
            if peers is None
            else {**allowed, "from": [*peers, operator_peer(options.operator_namespace)]}
        )

    egress = egress_fields(pipeline)
    return child(
        pipeline,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        pipeline.name,
        spec={
            "podSelector": {"matchLabels": names.selector(pipeline.name)},
            "policyTypes": ["Ingress", "Egress"] if egress else ["Ingress"],
            # With TLS, only the kubelet uses HTTP, and network policies do not apply to it.
            "ingress": [
                rule(inference, *(("http", "grpc") if server.tls is None else ("grpc",))),
                rule(metrics, "metrics"),
            ],
            **egress,
        },
    )


def _peers(declared: Sequence[Peer], namespaces: Sequence[str]) -> list[Any] | None:
    """Return who may reach a port besides the operator; ``None`` for everyone.

    Without declared peers these are the pods of the pipeline's namespace and those of the
    namespaces that the operator's options name.
    """
    if declared:
        return [plain(peer) for peer in declared]
    if EVERYONE in namespaces:
        return None
    others = [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: name}}} for name in namespaces
    ]
    return [{"podSelector": {}}, *others]

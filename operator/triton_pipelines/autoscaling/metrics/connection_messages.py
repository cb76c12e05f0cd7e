"""Messages about Prometheus connections that pipelines name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from triton_pipelines.api.wording import listed

from .samples import MetricsFailure, MetricsProblem

# Where users configure connections.
CONNECTIONS: Final = (
    "the chart's prometheus.url or prometheus.connections (--prometheus-url, --metrics-connections)"
)


def unknown_connection(name: str, connections: Iterable[str]) -> MetricsFailure:
    """Return the failure for a pipeline that names a connection the operator does not have.

    Args:
        name: The connection.
        connections: The connections that the pipeline may use.
    """
    known = [repr(one) for one in sorted(connections)]
    remedy = f", only {listed(known)}. Use {listed(known, 'or')}, or add" if known else ". Add"
    return MetricsFailure(
        MetricsProblem.ERROR,
        (
            f"spec.scaling.prometheusRef: the operator has no connection {name!r}{remedy} "
            f"{name!r} to {CONNECTIONS}"
        ),
        source_name(name),
    )


def forbidden_connection(name: str, namespace: str, permitted: Iterable[str]) -> MetricsFailure:
    """Return the failure for a pipeline whose namespace may not use the connection that it names.

    Args:
        name: The connection.
        namespace: The pipeline's namespace.
        permitted: The connections that this namespace may use.
    """
    known = listed([repr(one) for one in sorted(permitted)], "or")
    remedy = f"Use {known}, or add" if known else "Add"
    return MetricsFailure(
        MetricsProblem.ERROR,
        (
            f"spec.scaling.prometheusRef: connection {name!r} is not available to pipelines in "
            f"namespace {namespace}. {remedy} {namespace} to the namespaces of that connection "
            "in the chart's prometheus.connections (--metrics-connections)"
        ),
        source_name(name),
    )


def unused_connection_note(name: str) -> str:
    """Return a note for a pipeline that names a connection when the operator has none at all.

    The note is appended to the source. The pipeline's pods are then read directly.
    """
    return (
        f"; spec.scaling.prometheusRef: the operator has no connection {name!r}, because no "
        "connections are configured. Omit the field, or add the connection to the operator with "
        f"{CONNECTIONS}"
    )


def source_name(name: str) -> str:
    """Return how messages name the source of samples."""
    return f'Prometheus connection "{name}"'

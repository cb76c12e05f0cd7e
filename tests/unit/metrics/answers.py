"""Answers of Prometheus for tests, as its API gives them."""

from typing import Any

from hypothesis import strategies as st

from triton_pipelines.autoscaling.metrics.metrics_page import FIELDS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["metric", "values", "value", "pod", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
"""Anything that JSON can hold."""


def series(
    pod: str, model: str, samples: dict[float, float], *, namespace: str = "default", **labels: str
) -> list[dict[str, Any]]:
    """Every counter of a pod's model with the same values; labels beside Triton's own."""
    common = {
        "namespace": namespace,
        "pod": pod,
        "model": model,
        "version": "1",
        "instance": f"{pod}:8002",
        "job": "triton",
        **labels,
    }
    return [
        {
            "metric": {"__name__": name, **common},
            "values": [[at, str(value)] for at, value in samples.items()],
        }
        for name in FIELDS
        if name != "nv_cache_num_hits_per_model"
    ]

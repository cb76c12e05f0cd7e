"""Test the queries: as few as possible, exact in what they select, and safe with any name.

The integration tests check that Prometheus accepts them.
"""

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.autoscaling.metrics import queries
from triton_pipelines.autoscaling.metrics.connection import Connection

CONNECTION = Connection(url="http://a", matchers={"cluster": 'a"b'})
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,60}[a-z0-9])?", fullmatch=True)


def test_few_pods_are_asked_for_by_name() -> None:
    (group,) = queries.pod_groups([("b", "y-2"), ("a", "x.1")], ["model", "m+n"])
    assert group == queries.PodGroup(("a", "b"), ("x.1", "y-2"), ("m+n", "model"))
    text = queries.counters(CONNECTION, group, 7.5)
    assert text.endswith(
        r'cluster="a\"b",namespace=~"a|b",pod=~"x\\.1|y-2",model=~"m\\+n|model"}[7500ms]'
    )
    assert "nv_inference_pending_request_count" in text


def test_labels_are_those_of_the_connection() -> None:
    other = Connection.model_validate(
        {
            "url": "http://a",
            "labels": {"namespace": "ns", "pod": "p"},
            "containerLabels": {"namespace": "n", "pod": "q", "container": "c"},
        }
    )
    (group,) = queries.pod_groups([("a", "x")], ["m"])
    assert ',ns="a",p="x",model="m"}' in queries.counters(other, group, 5)
    (usage,) = queries.usage(other, group, 60)
    assert (
        'max by (n,q) (rate(container_cpu_usage_seconds_total{c="triton",n="a",q="x"}[60s]))'
        in usage
    )
    assert (
        "max by (n,q) (last_over_time("
        'container_memory_working_set_bytes{c="triton",n="a",q="x"}[60s]))'
    ) in usage
    assert 'exported_namespace="a",exported_pod="x"' in usage
    assert queries.targets(other, group) == 'max by (ns,p) (up{ns="a",p="x"})'
    assert queries.example_query(other, "a", ["x"]) == 'nv_inference_request_success{ns="a",p="x"}'


@given(
    st.sets(st.tuples(NAMES, NAMES), max_size=400),
    st.sets(st.text(min_size=1, max_size=40), max_size=60),
)
def test_no_query_is_too_long_and_none_is_left_out(
    pods: set[tuple[str, str]], models: set[str]
) -> None:
    found = queries.pod_groups(pods, models)
    asked = [namespace for group in found for namespace in group.namespaces]
    assert sorted(asked) == sorted({namespace for namespace, _ in pods})
    for group in found:
        assert not group.models or set(group.models) == models
        assert not group.pods or set(group.pods) == {pod for _, pod in pods}
        texts = [
            queries.counters(CONNECTION, group, 75),
            *queries.usage(CONNECTION, group, 150),
            queries.targets(CONNECTION, group),
        ]
        assert all(len(quote(text, safe="")) < 8000 for text in texts)


def test_many_pods_are_asked_for_by_namespace() -> None:
    found = queries.pod_groups(
        [(f"team-{index}", f"pipeline-{index}-6c7b8d-abcde") for index in range(1000)], ["model"]
    )
    assert 1 < len(found) <= 10
    assert all(not group.pods for group in found)


@given(st.text(max_size=20))
def test_no_value_leaves_its_quotes(value: str) -> None:
    text = queries.example_query(Connection(url="http://a", matchers={"x": value}), "n", [])
    inside = text.removeprefix('nv_inference_request_success{namespace="n"').removeprefix(
        'nv_inference_request_success{x="'
    )
    quoted = inside.rpartition('",namespace="n"}')[0]
    stripped = quoted.replace("\\\\", "")
    assert "\n" not in stripped
    assert '"' not in stripped.replace('\\"', "")
    assert not stripped.replace('\\"', "").replace("\\n", "").endswith("\\")

"""``server.podTemplate``: how it is merged, what it may not touch, and that a pod comes of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import built, options
from tests.support.podtemplates import SIDECAR, TRITON, WHOLE, WRONG, templated
from tests.support.schemas import validate
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.compile.render import review
from triton_pipelines.compile.render.errors import RefusedError
from triton_pipelines.compile.render.pod_owned_fields import PATH
from triton_pipelines.compile.render.pod_template import merge

FIELD = "spec.server.podTemplate"


def spec_of(template: Any, **changes: Any) -> dict[str, Any]:
    pod: dict[str, Any] = templated(template, **changes).render().template["spec"]
    return pod


def findings(template: Any, given_options: Options | None = None, **changes: Any) -> list[str]:
    one = templated(template, given_options, **changes)
    return [
        str(finding) for finding in (*one.findings, *review(one.pipeline, one.graph, one.options))
    ]


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [item for item in items if item["name"] == name]
    return found


# --- merging --------------------------------------------------------------------------------------


@pytest.mark.proves("spec.server.podTemplate", "applied")
def test_parts_are_merged_by_their_keys_and_stay_a_pod() -> None:
    one = templated(
        WHOLE,
        server={"env": [{"name": "A", "value": "1"}], "nodeSelector": {"pool": "gpu", "zone": "a"}},
    )
    whole = one.render().template
    plain = built(server={"env": [{"name": "A", "value": "1"}]}).render().template["spec"]
    assert (
        whole["metadata"]["labels"].items()
        >= {"team": "search", "tritonpipelines.io/pipeline": "sentiment"}.items()
    )
    assert whole["metadata"]["annotations"] == {"sidecar.example/inject": "true"}
    spec = whole["spec"]
    triton, proxy = spec["containers"]
    assert [item["name"] for item in spec["initContainers"]] == ["load", "after"]
    env = [(item["name"], item.get("value")) for item in triton["env"]]
    assert env[-3:] == [("HOME", "/tmp"), ("A", "2"), ("B", "3")]
    assert triton["volumeMounts"] == [
        *plain["containers"][0]["volumeMounts"],
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    assert triton["resources"]["limits"] == {
        **plain["containers"][0]["resources"]["limits"],
        "ephemeral-storage": "10Gi",
    }
    assert triton["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert triton["args"] == plain["containers"][0]["args"]
    assert proxy["image"] == "registry.example/proxy:1"
    loader = spec["initContainers"][0]
    assert loader["resources"] == {
        "requests": {"cpu": "100m", "memory": "256Mi"},
        "limits": {"memory": "8Gi"},
    }
    assert loader["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://p:1"}
    assert named(spec["volumes"], "tmp") == {"name": "tmp", "emptyDir": {"sizeLimit": "9Gi"}}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "mine", "operator": "Exists"},
    ]
    assert "topologySpreadConstraints" not in spec
    assert spec["nodeSelector"] == {"disk": "fast", "zone": "a"}
    assert spec["terminationGracePeriodSeconds"] == 300
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", **whole["metadata"]},
        "spec": spec,
    }
    validate(pod)


def test_the_template_is_part_of_the_revision_but_default_images_are_not() -> None:
    base = built().render().name
    with_sidecar = [
        built(
            options(server_image=f"t:24.{month}"),
            server={"podTemplate": {"spec": {"containers": [SIDECAR]}}},
        )
        for month in (10, 11)
    ]
    first, second = (one.render() for one in with_sidecar)
    assert base != first.name == second.name
    other = built(
        server={
            "podTemplate": {
                "spec": {"containers": [{**SIDECAR, "image": "registry.example/proxy:2"}]}
            }
        }
    ).render()
    assert other.name != first.name


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": {}},
        {"spec": {}},
        {"spec": {"containers": [], "volumes": []}},
        {"spec": {"hostname": None}},
    ],
)
def test_nothing_said_changes_nothing(template: Any) -> None:
    assert templated(template).render().template == built().render().template


words = st.sampled_from(["a", "b", "c"])
leaf = st.one_of(st.none(), st.booleans(), st.integers(0, 3), words)
keyed = st.sampled_from(
    [("env", "name"), ("containers", "name"), ("volumes", "name"), ("volumeMounts", "mountPath")]
)


def lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def item(key: str) -> st.SearchStrategy[Any]:
        return st.tuples(
            words,
            st.dictionaries(st.sampled_from(["x", "y", "env", "tolerations"]), inner, max_size=2),
        ).map(
            lambda pair: {
                **{
                    k: v
                    for k, v in pair[1].items()
                    if k not in ("env", "tolerations") or isinstance(v, list)
                },
                key: pair[0],
            }
        )

    return keyed.flatmap(
        lambda pair: st.lists(item(pair[1]), max_size=3, unique_by=lambda one: one[pair[1]]).map(
            lambda made: {pair[0]: made}
        )
    )


patches = st.recursive(
    st.dictionaries(words, leaf, max_size=3),
    lambda inner: st.one_of(
        lists(leaf),
        st.dictionaries(words, inner, max_size=3),
        st.lists(st.dictionaries(words, st.integers(0, 2)), max_size=3).map(
            lambda made: {"tolerations": made}
        ),
        st.lists(inner, max_size=2).map(lambda made: {"other": made}),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(base=patches, patch=patches)
def test_merging_twice_is_merging_once(base: Any, patch: Any) -> None:
    start = merge({}, base)
    before = copy.deepcopy((start, patch))
    once = merge(start, patch)
    assert merge(once, patch) == once
    assert (start, patch) == before


@settings(max_examples=300, deadline=None, derandomize=True)
@given(base=patches, patch=patches)
def test_empty_is_neutral_on_either_side(base: Any, patch: Any) -> None:
    start = merge({}, base)
    assert merge(start, {}) == start
    assert merge({}, start) == start
    assert merge(merge(start, {}), patch) == merge(start, patch)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(patch=patches)
def test_what_is_made_of_nothing_holds_no_null(patch: Any) -> None:
    def nulls(value: Any) -> bool:
        if isinstance(value, dict):
            return any(item is None or nulls(item) for item in value.values())
        return isinstance(value, list) and any(map(nulls, value))

    assert not nulls(merge({}, patch))


# --- what the operator owns -----------------------------------------------------------------------

OWNED: list[tuple[Any, str, str]] = [
    (
        {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}},
        "metadata.labels[app.kubernetes.io/name]",
        "set by the operator",
    ),
    (
        {"metadata": {"labels": {"tritonpipelines.io/revision": None}}},
        "metadata.labels[tritonpipelines.io/revision]",
        "set by the operator",
    ),
    (
        {"metadata": {"annotations": {"tritonpipelines.io/paused": "true"}}},
        "metadata.annotations[tritonpipelines.io/paused]",
        "set by the operator",
    ),
    ({"metadata": {"labels": None}}, "metadata.labels", "null would remove every key"),
    ({"metadata": {"name": "x"}}, "metadata.name", "no effect on pods"),
    ({"metadata": None}, "metadata", "null would remove the whole field"),
    ({"spec": None}, "spec", "null would remove the whole field"),
    ({"kind": "Pod"}, "kind", "the field does not exist in a pod template"),
    ({"spec": {"containers": None}}, "spec.containers", "null would also remove the operator's"),
    (
        {"spec": {"initContainers": None}},
        "spec.initContainers",
        "null would also remove the operator's",
    ),
    ({"spec": {"volumes": None}}, "spec.volumes", "null would also remove the operator's"),
    (
        {"spec": {"tolerations": None}},
        "spec.tolerations",
        "null would remove settings that the GPU requires",
    ),
    ({"spec": {"replicas": 3}}, "spec.replicas", "use spec.replicas"),
    (
        {"spec": {"automountServiceAccountToken": True}},
        "spec.automountServiceAccountToken",
        "projected volume",
    ),
    ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy", "always restarted"),
    (
        {"spec": {"activeDeadlineSeconds": 3}},
        "spec.activeDeadlineSeconds",
        "cannot have a deadline",
    ),
    (
        {"spec": {"terminationGracePeriodSeconds": 69}},
        "spec.terminationGracePeriodSeconds",
        "takes 70 s",
    ),
    (
        {"spec": {"terminationGracePeriodSeconds": None}},
        "spec.terminationGracePeriodSeconds",
        "takes 70 s",
    ),
    *[
        (
            {"spec": {"containers": [{**TRITON, field: value}]}},
            f"spec.containers[triton].{field}",
            words,
        )
        for field, value, words in [
            ("image", "x:1", "use spec.server.image instead"),
            ("image", None, "use spec.server.image instead"),
            ("imagePullPolicy", "Never", "use spec.server.imagePullPolicy instead"),
            ("command", ["sh"], "set by the operator; remove the field"),
            ("args", ["--x"], "use spec.server.args instead"),
            ("ports", [], "set by the operator"),
            ("readinessProbe", None, "set by the operator"),
            ("livenessProbe", {}, "set by the operator"),
            ("startupProbe", {}, "set by the operator"),
            ("lifecycle", {}, "use spec.rollout.drainSeconds instead"),
            ("env", None, "null would remove the whole field"),
            ("volumeMounts", None, "null would remove the whole field"),
            ("resources", None, "use spec.server.resources instead"),
        ]
    ],
    *[
        (
            {"spec": {"containers": [{**TRITON, "env": [{"name": name, "value": "x"}]}]}},
            f"spec.containers[triton].env[{name}]",
            words,
        )
        for name, words in [
            ("TRITONPIPE_CONTROL_KEY", "set by the operator"),
            ("AIP_MODE", "set by the operator"),
            ("NVIDIA_VISIBLE_DEVICES", "server.gpu"),
        ]
    ],
    *[
        (
            {
                "spec": {
                    "containers": [{**TRITON, "volumeMounts": [{"name": "tmp", "mountPath": path}]}]
                }
            },
            f"spec.containers[triton].volumeMounts[{path}]",
            "choose another mount path",
        )
        for path in (
            "/tritonpipe",
            "/tritonpipe/",
            "/tritonpipe/models/x",
            "/etc/tritonpipe/live",
            "/dev/shm",
            "/tritonpipe-engines",
            "/tmp",
            "/",
        )
    ],
    *[
        (
            {"spec": {"containers": [{**TRITON, "resources": {part: {name: "1"}}}]}},
            f"spec.containers[triton].resources.{part}[{name}]",
            field,
        )
        for part, name, field in [
            ("limits", "memory", "spec.server.resources"),
            ("requests", "nvidia.com/gpu", "spec.server.gpu"),
        ]
    ],
    (
        {"spec": {"initContainers": [{"name": "load", "image": "x"}]}},
        "spec.initContainers[load].image",
        "only env, envFrom, resources, volumeMounts",
    ),
    (
        {"spec": {"initContainers": [{"name": "load", "restartPolicy": "Always"}]}},
        "spec.initContainers[load].restartPolicy",
        "only env",
    ),
    (
        {
            "spec": {
                "initContainers": [
                    {"name": "load", "env": [{"name": "TRITONPIPE_SOURCE_MAP", "value": "x"}]}
                ]
            }
        },
        "spec.initContainers[load].env[TRITONPIPE_SOURCE_MAP]",
        "set by the operator",
    ),
    (
        {"spec": {"initContainers": [{"name": "triton", "image": "x"}]}},
        "spec.containers[triton]",
        "used by two",
    ),
    (
        {"spec": {"containers": [{"name": "load", "image": "x"}]}},
        "spec.containers[load]",
        "used by two",
    ),
    (
        {
            "spec": {
                "containers": [
                    {**SIDECAR, "volumeMounts": [{"name": "tritonpipe", "mountPath": "/m"}]}
                ]
            }
        },
        "spec.containers[proxy].volumeMounts[/m].readOnly",
        "must be true",
    ),
    (
        {"spec": {"volumes": [{"name": "tritonpipe", "emptyDir": {"medium": "Memory"}}]}},
        "spec.volumes[tritonpipe]",
        "only its emptyDir.sizeLimit",
    ),
    (
        {"spec": {"volumes": [{"name": "revision", "configMap": {"name": "x"}}]}},
        "spec.volumes[revision]",
        "choose another name",
    ),
    (
        {"spec": {"volumes": [{"name": "dshm", "emptyDir": {"sizeLimit": "9Gi"}}]}},
        "spec.volumes[dshm]",
        "use spec.server.sharedMemory instead",
    ),
]


@pytest.mark.parametrize(("template", "path", "words"), OWNED, ids=[path for _, path, _ in OWNED])
def test_what_the_operator_owns_is_refused_with_its_path(
    template: Any, path: str, words: str
) -> None:
    (reported,) = findings(template)
    assert reported.startswith(f"{FIELD}.{path}: ")
    assert words in reported


@pytest.mark.parametrize(("template", "path", "words"), WRONG, ids=[path for _, path, _ in WRONG])
def test_what_is_no_pod_is_refused_with_its_path(template: Any, path: str, words: str) -> None:
    (reported,) = findings(template, server={"env": [{"name": "A", "value": "1"}]})
    assert reported.startswith(f"{FIELD}.{path}: ")
    assert words in reported


def test_everything_wrong_is_told_at_once() -> None:
    template = {
        "spec": {
            "containers": [{**TRITON, "image": "x", "args": []}, {"name": "x"}],
            "hostNetwork": "yes",
        }
    }
    reported = findings(template, model={"parameters": {"TRITON_BATCH_STRATEGY_PATH": "/x"}})
    assert [line.split(":")[0].removeprefix(f"{FIELD}.") for line in reported] == [
        "spec.model.parameters",
        "spec.containers[triton].image",
        "spec.containers[triton].args",
        "spec.hostNetwork",
    ]  # what a container lacks is asked when every shape is right


def test_rendering_refuses_as_the_review_does() -> None:
    with pytest.raises(RefusedError, match=r"spec\.server\.podTemplate\.spec\.replicas"):
        built(server={"podTemplate": {"spec": {"replicas": 1}}}).render()
    assert PATH == FIELD


def test_what_gpus_need_is_not_replaced() -> None:
    affinity: dict[str, Any] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}
        }
    }
    (reported,) = findings({"spec": {"affinity": affinity}}, server={"gpu": {"products": ["A"]}})
    assert reported.startswith(f"{FIELD}.spec.affinity: ")
    assert "spec.server.affinity" in reported
    assert not findings({"spec": {"affinity": affinity}})
    dra = {"gpu": {"claimTemplate": "gpus"}}
    more = {"name": "nic", "resourceClaimTemplateName": "nics"}
    (reported,) = findings({"spec": {"resourceClaims": [more]}}, server=dra)
    assert reported.startswith(f"{FIELD}.spec.resourceClaims: ")
    (reported,) = findings(
        {"spec": {"containers": [{**TRITON, "resources": {"claims": [{"name": "nic"}]}}]}},
        server=dra,
    )
    assert reported.startswith(f"{FIELD}.spec.containers[triton].resources.claims: ")
    both = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}, more]
    container = {**TRITON, "resources": {"claims": [{"name": "gpu"}, {"name": "nic"}]}}
    assert (
        spec_of({"spec": {"resourceClaims": both, "containers": [container]}}, server=dra)[
            "resourceClaims"
        ]
        == both
    )


def test_the_operator_may_forbid_it() -> None:
    forbidden = options(pod_template=PodTemplateMode.FORBID)
    (reported,) = findings({"spec": {}}, forbidden)
    assert reported == (
        f"{FIELD}: this operator forbids podTemplate (--pod-template=forbid); use other "
        "fields of spec.server, or ask the operator's administrator to set "
        "--pod-template=allow"
    )
    assert not built(forbidden).findings


def test_own_containers_are_own_code() -> None:
    forbidden = options(custom_code_allowed=False)
    (reported,) = findings({"spec": {"containers": [{**TRITON, "env": []}, SIDECAR]}}, forbidden)
    assert reported.startswith(
        f"{FIELD}.spec.containers[proxy]: additional containers count as custom code"
    )
    assert not findings({"spec": {"containers": [{**TRITON, "env": []}]}}, forbidden)

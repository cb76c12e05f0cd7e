"""What fields of the server, the ensemble and observability make of the pod and the Service."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import SERVER_IMAGE, built, document, options
from tests.support.messages import Messages
from tests.support.schemas import validate
from triton_pipelines.api import Finding, parse
from triton_pipelines.compile.graph import build, check
from triton_pipelines.compile.graph.container_resources import sizes
from triton_pipelines.compile.graph.drain import exit_timeout_seconds
from triton_pipelines.compile.graph.quantities import bytes_of
from triton_pipelines.compile.graph.server_settings import feature_arguments
from triton_pipelines.compile.render import review
from triton_pipelines.compile.render.objects import deployment, headless_service, service
from triton_pipelines.compile.validation import RuleId

MI = 2**20


def spec_of(**changes: Any) -> dict[str, Any]:
    one = built(**changes)
    template = one.render().template
    validate(deployment(one.pipeline, template, one.pipeline.spec.rollout.strategy, 1))
    pod: dict[str, Any] = template["spec"]
    return pod


def findings(given: Any = None, **changes: Any) -> list[str]:
    one = built(given, **changes)
    return [str(finding) for finding in one.findings]


def args(**changes: Any) -> list[str]:
    given: list[str] = spec_of(**changes)["containers"][0]["args"]
    return given


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [item for item in items if item["name"] == name]
    return found


# --- GPUs by claim --------------------------------------------------------------------------------


@pytest.mark.proves("spec.server.gpu.claimTemplate", "applied")
def test_a_claim_takes_the_place_of_the_count() -> None:
    spec = spec_of(server={"gpu": {"claimTemplate": "one-gpu", "products": ["A"]}})
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    resources = spec["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpu"}]
    assert set(resources["limits"]) == set(resources["requests"]) == {"cpu", "memory"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    counted = spec_of()
    assert "resourceClaims" not in counted
    assert "claims" not in counted["containers"][0]["resources"]


# --- latencies ------------------------------------------------------------------------------------

LATENCIES = [
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001",
]


@pytest.mark.proves("spec.slo.p99Milliseconds", "applied")
def test_a_promise_makes_triton_tell_latencies() -> None:
    assert [
        item for item in args(slo={"p99Milliseconds": 50}) if item.startswith("--metrics-config")
    ] == LATENCIES
    assert not [
        item
        for item in args(slo={"minThroughputPerSecond": 5})
        if item.startswith("--metrics-config")
    ]
    revisions = {
        built(slo=slo).render().name
        for slo in (
            {"p99Milliseconds": 50},
            {"p99Milliseconds": 90, "networkAndQueueBudgetMilliseconds": 9},
        )
    }
    assert len(revisions) == 1, "another figure rolls no pod"


@pytest.mark.parametrize("own", ["summary_latencies=false", "summary_quantiles=0.99:0.1"])
def test_the_users_own_setting_of_latencies_stands(own: str) -> None:
    given = args(slo={"p99Milliseconds": 50}, server={"args": [f"--metrics-config={own}"]})
    assert [item for item in given if item.startswith("--metrics-config")] == [
        f"--metrics-config={own}"
    ]
    other = args(
        slo={"p99Milliseconds": 50}, server={"args": ["--metrics-config=counter_latencies=true"]}
    )
    assert [item for item in other if item.startswith("--metrics-config")] == [
        *LATENCIES,
        "--metrics-config=counter_latencies=true",
    ]


# --- model cache and engines ----------------------------------------------------------------------

ENGINES: dict[str, Any] = {
    "optimization": {"tensorrt": {"precision": "FP16", "engineCache": "Enabled"}}
}


@pytest.mark.proves("spec.server.modelCache.claimName", "applied")
def test_the_model_cache_is_written_by_the_loader_and_by_triton_below_its_own_folder() -> None:
    spec = spec_of(server={"modelCache": {"claimName": "models"}}, model=ENGINES)
    assert named(spec["volumes"], "model-cache") == {
        "name": "model-cache",
        "persistentVolumeClaim": {"claimName": "models"},
    }
    loader, triton = spec["initContainers"][0], spec["containers"][0]
    assert named(loader["volumeMounts"], "model-cache") == {
        "name": "model-cache",
        "mountPath": "/tritonpipe-cache",
    }
    assert loader["args"] == [
        "load",
        "--cache=/tritonpipe-cache",
        "--folder=/tritonpipe-cache/engines/sentiment",
    ]
    assert named(triton["volumeMounts"], "model-cache") == {
        "name": "model-cache",
        "mountPath": "/tritonpipe-engines",
        "subPath": "engines/sentiment",
    }
    assert (spec["securityContext"]["fsGroup"], spec["securityContext"]["fsGroupChangePolicy"]) == (
        1000,
        "OnRootMismatch",
    )
    assert "engines" not in [item["name"] for item in spec["volumes"]]


def test_without_engines_triton_does_not_see_the_cache() -> None:
    spec = spec_of(server={"modelCache": {"claimName": "models"}})
    assert spec["initContainers"][0]["args"] == ["load", "--cache=/tritonpipe-cache"]
    assert {item["name"] for item in spec["containers"][0]["volumeMounts"]} == {
        "tritonpipe",
        "dshm",
        "tmp",
    }


@pytest.mark.proves("spec.model.optimization.tensorrt.engineCache", "parsed")
def test_engines_lie_in_the_pod_without_a_cache() -> None:
    spec = spec_of(model=ENGINES)
    assert named(spec["volumes"], "engines") == {"name": "engines", "emptyDir": {}}
    assert named(spec["containers"][0]["volumeMounts"], "engines") == {
        "name": "engines",
        "mountPath": "/tritonpipe-engines",
    }
    assert "fsGroup" not in spec["securityContext"]
    config = built(model=ENGINES).render().files["model/config.pbtxt"]
    assert '"/tritonpipe-engines/model"' in config
    other = spec_of(model={"optimization": {"tensorrt": {"engineCache": "Disabled"}}})
    assert "engines" not in [item["name"] for item in other["volumes"]]


def test_a_claim_is_one_volume_whatever_it_is_for() -> None:
    spec = spec_of(
        server={"modelCache": {"claimName": "a"}},
        tokenizer={"source": {"uri": "pvc://a/t"}},
        model={"source": {"uri": "pvc://b/m.onnx"}},
    )
    claims = {
        item["name"]: item["persistentVolumeClaim"]
        for item in spec["volumes"]
        if "persistentVolumeClaim" in item
    }
    assert claims == {
        "model-cache": {"claimName": "a"},
        "claim-1": {"claimName": "b", "readOnly": True},
    }
    mounts = {item["mountPath"]: item for item in spec["initContainers"][0]["volumeMounts"]}
    assert mounts["/etc/tritonpipe/claims/a"] == {
        "name": "model-cache",
        "mountPath": "/etc/tritonpipe/claims/a",
        "readOnly": True,
    }
    assert mounts["/etc/tritonpipe/claims/b"]["name"] == "claim-1"
    assert "readOnly" not in mounts["/tritonpipe-cache"]


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "4Gi"),
        ({"model": {"platform": "tensorrt_plan"}}, "4Gi"),
        (
            {
                "model": {
                    "platform": "python",
                    "source": None,
                    "python": {"code": {"inline": "x = 1"}},
                }
            },
            None,
        ),
        ({"model": {"platform": None, "backend": "fil"}}, None),
        ({"model": {"parameters": {"EXECUTION_ENV_PATH": "/x.tar.gz"}}}, None),
    ],
)
def test_temporary_files_are_bounded_where_their_size_is_known(
    changes: dict[str, Any], limit: str | None
) -> None:
    volumes = spec_of(**changes)["volumes"]
    assert named(volumes, "tmp")["emptyDir"] == ({"sizeLimit": limit} if limit else {})
    assert named(volumes, "tritonpipe")["emptyDir"] == {}


# --- auto-complete --------------------------------------------------------------------------------


@pytest.mark.proves("spec.server.autoComplete", "applied")
def test_auto_complete_leaves_the_flag_out_and_the_counts_alone() -> None:
    one = built(server={"autoComplete": "Enabled"})
    assert "--disable-auto-complete-config" in args()
    assert "--disable-auto-complete-config" not in args(server={"autoComplete": "Enabled"})
    assert not any(step.instances.scaled for step in one.graph.models)
    assert '"counts":[]' in one.render().data["plan.json"].replace(" ", "")
    # What cannot grow needs no room to grow.
    assert sizes(one.pipeline, one.graph).cpu_limit == sizes(one.pipeline, one.graph).cpu_request
    assert any(step.instances.scaled for step in built().graph.models)


def test_bounds_without_live_counts_are_refused() -> None:
    (reported,) = findings(server={"autoComplete": "Enabled"}, tokenizer={"instances": {"max": 3}})
    assert reported == (
        "spec.tokenizer.instances: server.autoComplete Enabled prevents live scaling; use count "
        "instead of initial, min and max"
    )
    assert not findings(server={"autoComplete": "Enabled"}, tokenizer={"instances": {"count": 3}})


# --- response cache -------------------------------------------------------------------------------

CACHED: dict[str, Any] = {"ensemble": {"responseCache": "Enabled"}}
LOCAL = "--cache-config=local,size=268435456"


@pytest.mark.proves("spec.ensemble.responseCache", "parsed")
@pytest.mark.parametrize(
    ("changes", "given", "bytes_added"),
    [
        ({}, [], 0),
        (CACHED, [LOCAL], 256 * MI),
        ({"model": {"configPatch": {"response_cache": {"enable": True}}}}, [LOCAL], 256 * MI),
        ({"model": {"configPatch": {"responseCache": {"enable": True}}}}, [LOCAL], 256 * MI),
        (
            CACHED | {"server": {"args": ["--cache-config=local,size=1048576"]}},
            ["--cache-config=local,size=1048576"],
            MI,
        ),
        (
            CACHED | {"server": {"args": ["--response-cache-byte-size=2097152"]}},
            ["--response-cache-byte-size=2097152"],
            2 * MI,
        ),
        (
            CACHED | {"server": {"args": ["--cache-config=redis,host=h"]}},
            ["--cache-config=redis,host=h"],
            0,
        ),
    ],
)
def test_the_response_cache_has_its_argument_and_its_memory(
    changes: dict[str, Any], given: list[str], bytes_added: int
) -> None:
    assert [item for item in args(**changes) if "cache" in item] == given
    one, plain = built(**changes), built()
    after, before = sizes(one.pipeline, one.graph), sizes(plain.pipeline, plain.graph)
    assert bytes_of(after.memory_request) - bytes_of(before.memory_request) == bytes_added
    assert bytes_of(after.memory_limit) - bytes_of(before.memory_limit) == bytes_added


# --- traces ---------------------------------------------------------------------------------------

TRACED: dict[str, Any] = {
    "observability": {
        "tracing": {"otlpEndpoint": "http://collector:4318/v1/traces", "sampleEvery": 7}
    }
}


@pytest.mark.proves("spec.observability.tracing.otlpEndpoint", "applied")
@pytest.mark.proves("spec.observability.tracing.sampleEvery", "applied")
def test_traces_are_arguments_and_a_new_revision() -> None:
    assert [item for item in args(**TRACED) if "trace" in item.split("=")[0]] == [
        "--trace-config=mode=opentelemetry",
        "--trace-config=opentelemetry,url=http://collector:4318/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=sentiment",
        "--trace-config=opentelemetry,resource=service.namespace=nlp",
        "--trace-config=rate=7",
        "--trace-config=level=TIMESTAMPS",
    ]
    assert not any("--trace" in item for item in args())
    assert built(**TRACED).render().name != built().render().name


TRACED_FILE = "tritonpipe_traced.py"
PYTHON_STEP = {
    "platform": "python",
    "source": None,
    "instances": {"count": 1, "kind": "CPU"},
}


@pytest.mark.parametrize(
    ("code", "traced"),
    [
        ({"inline": "x = 1"}, True),
        ({"configMapKeyRef": {"name": "code"}}, True),
        ({"source": {"uri": "https://example.com/model.py"}}, True),
        ({"source": {"uri": "s3://models/code"}}, False),  # perhaps a folder of versions
    ],
)
def test_a_python_step_is_traced_unless_its_versions_are_unknown(
    code: dict[str, Any], traced: bool
) -> None:
    model = PYTHON_STEP | {"python": {"code": code}}
    files = built(model=model, **TRACED).render().files
    assert (f"model/1/{TRACED_FILE}" in files) == traced
    config = files["model/config.pbtxt"]
    assert (f'default_model_filename: "{TRACED_FILE}"' in config) == traced
    assert ('value { string_value: "http://collector:4318/v1/traces" }' in config) == traced


def test_tracing_leaves_other_backends_and_untraced_pipelines_alone() -> None:
    files = built(**TRACED).render().files
    traced = [path for path in files if path.endswith(TRACED_FILE)]
    assert traced == [f"postprocess/1/{TRACED_FILE}"]
    assert "trace" not in files["model/config.pbtxt"]
    assert "trace" not in files["tokenizer/config.pbtxt"]
    assert not any("trace" in text for text in built().render().files.values())


@pytest.mark.parametrize(
    "argument",
    ["--trace-config=rate=1", "--trace-conf=rate=1", "--trace-file=/x", "--log-frequency=3"],
)
def test_a_second_setting_of_traces_is_refused(argument: str) -> None:
    (reported,) = findings(**TRACED, server={"args": [argument]})
    assert reported.startswith("spec.server.args[0]: --")
    assert "observability.tracing" in reported
    assert not findings(server={"args": [argument]})


# --- releases -------------------------------------------------------------------------------------


@pytest.mark.proves("spec.server.version", "behaviour")
@pytest.mark.parametrize(
    ("flag", "release", "refused"),
    [
        ("--grpc-max-response-pool-size=3", "25.02", True),
        ("--grpc-max-response-pool-size=3", "25.03", False),
        ("--grpc-infer-thread-count=4", "24.10", True),
        ("--http-max-input-size=9", "25.05", True),
        ("--http-max-input-size=9", "25.06", False),
        ("--allow-client-shm=true", "26.03", True),
        ("--allow-client-shm=true", "26.04", False),
    ],
)
def test_flags_that_a_release_does_not_know_are_refused(
    flag: str, release: str, refused: bool
) -> None:
    reported = findings(server={"args": [flag], "version": release})
    assert bool(reported) == refused
    if refused:
        assert reported[0].startswith("spec.server.args[0]: --")
        assert f"the server is Triton {release}" in reported[0]


@pytest.mark.proves("spec.ensemble.maxInflightRequests", "parsed")
@pytest.mark.parametrize(("release", "refused"), [("25.10", True), ("25.11", False)])
def test_in_flight_requests_are_bounded_from_25_11_on(release: str, refused: bool) -> None:
    reported = findings(server={"version": release}, ensemble={"maxInflightRequests": 8})
    assert [line.split(":")[0] for line in reported] == (
        ["spec.ensemble.maxInflightRequests"] if refused else []
    )
    if refused:
        assert "the server is Triton 25.10" in reported[0]
    assert not findings(server={"version": release}, ensemble={"maxInflightRequests": 0})


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("--disable-auto-complete-config", "use server.autoComplete instead"),
        ("--exit-timeout-secs=3", "use rollout.drainSeconds instead"),
        ("--http-port=3", "remove the flag"),
    ],
)
def test_arguments_of_the_operator_name_the_field(argument: str, instead: str) -> None:
    (reported,) = findings(server={"args": [argument]})
    assert reported.endswith(instead)


# --- sequences ------------------------------------------------------------------------------------

CONTROLS = [{"name": "START", "kind": "START", "dataType": "INT32"}]
CODE: dict[str, Any] = {
    "platform": "python",
    "source": None,
    "python": {"code": {"inline": "x = 1"}},
    "instances": {"count": 1, "kind": "CPU"},
}


def sequences(idle: int | None, **changes: Any) -> dict[str, Any]:
    batching: dict[str, Any] = {"strategy": "Direct", "controls": CONTROLS}
    if idle is not None:
        batching["maxSequenceIdleMicroseconds"] = idle
    return {"model": {**CODE, "sequenceBatching": batching}, **changes}


@pytest.mark.proves("spec.model.sequenceBatching.maxSequenceIdleMicroseconds", "parsed")
@pytest.mark.parametrize(
    ("idle", "drain", "sleep", "exit_timeout"),
    [
        (None, 30, 30, 30),
        (1, 0, 1, 6),
        (None, 0, 1, 6),
        (26_000_000, 30, 30, 31),
        (60_000_001, 30, 30, 66),
        (60_000_000, 90, 90, 90),
    ],
)
def test_a_pod_goes_when_its_last_sequence_may_have_ended(
    idle: int | None, drain: int, sleep: int, exit_timeout: int
) -> None:
    spec = spec_of(**sequences(idle, rollout={"drainSeconds": drain}))
    triton = spec["containers"][0]
    assert triton["lifecycle"] == {"preStop": {"sleep": {"seconds": sleep}}}
    assert f"--exit-timeout-secs={exit_timeout}" in triton["args"]
    assert spec["terminationGracePeriodSeconds"] == sleep + exit_timeout + 10
    # A client that is told to move in the middle of a sequence loses it.
    assert not any("max-connection-age" in item for item in triton["args"])


@pytest.mark.proves("spec.server.service.headless", "applied")
def test_a_headless_service_resolves_to_the_pods() -> None:
    assert headless_service(built().pipeline) is None
    one = built(server={"service": {"headless": "Enabled"}})
    made = headless_service(one.pipeline)
    assert made is not None
    validate(made)
    assert made["metadata"]["name"] == f"{one.pipeline.name}-headless"
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["selector"] == service(one.pipeline)["spec"]["selector"]
    # A ServiceMonitor selects both Services and must find the metrics port in one of them.
    assert [port["name"] for port in made["spec"]["ports"]] == ["http", "grpc"]


@pytest.mark.parametrize(("headless", "warned"), [("Enabled", True), ("Disabled", False)])
def test_sequences_behind_a_headless_service_are_warned_of(headless: str, warned: bool) -> None:
    said = built(**sequences(None, server={"service": {"headless": headless}})).warnings
    assert any("spec.server.service.headless" in str(one) for one in said) is warned


@pytest.mark.proves("spec.model.sequenceBatching.strategy", "parsed")
@pytest.mark.parametrize(
    ("idle", "seconds"),
    [(None, 10800), (7_200_000_000, 10800), (20_000_000_000, 20000), (86_400_000_000, 86400)],
)
def test_clients_of_sequences_stay_on_one_pod(idle: int | None, seconds: int) -> None:
    made = service(built(**sequences(idle)).pipeline)
    validate(made)
    assert made["spec"]["sessionAffinity"] == "ClientIP"
    assert made["spec"]["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": seconds}}


def test_other_clients_do_not() -> None:
    made = service(built().pipeline)
    assert made["spec"]["sessionAffinity"] == "None"
    assert "sessionAffinityConfig" not in made["spec"]


def test_sequences_of_auxiliary_models_count_as_well() -> None:
    resource = document()
    auxiliary = {
        "name": "memory",
        **CODE,
        "sequenceBatching": {
            "strategy": "Direct",
            "controls": CONTROLS,
            "maxSequenceIdleMicroseconds": 99_000_000,
        },
    }
    auxiliary |= {
        "inputs": [{"name": "X", "dataType": "INT32", "dims": [1]}],
        "outputs": [{"name": "Y", "dataType": "INT32", "dims": [1]}],
    }
    resource["spec"]["auxiliaryModels"] = [
        {key: value for key, value in auxiliary.items() if value is not None}
    ]
    pipeline, wrong = parse(resource)
    assert pipeline is not None
    assert not wrong
    assert exit_timeout_seconds(pipeline) == 104
    assert service(pipeline)["spec"]["sessionAffinity"] == "ClientIP"
    graph = build(pipeline, options())
    assert not [*check(pipeline, graph, options()), *review(pipeline, graph, options())]
    assert feature_arguments(pipeline, graph) == []


# --- image families -------------------------------------------------------------------------------


def test_a_step_of_another_family_decides_on_the_image() -> None:
    families = options(family_images={"vllm": "v:25.01", "tensorrtllm": "t:25.02"})
    model = {
        "platform": "vllm",
        "source": None,
        "outputs": None,
        "vllm": {"engineArgs": {"model": "org/name"}},
    }
    llm = built(families, tokenizer=None, postprocess=None, model=model)
    assert llm.render().server_image == "v:25.01"
    assert built(families).render().server_image == SERVER_IMAGE


# --- Rate limiter ---------------------------------------------------------------------------------


def limited(*arguments: str) -> list[Finding]:
    """Findings for a resource that only one of two steps shares between devices."""
    resource = {"name": "memory", "count": 4}
    shared, own = (
        {"configPatch": {"instanceGroup": [{"rateLimiter": {"resources": [item]}}]}}
        for item in ({**resource, "global": True}, resource)
    )
    one = built(tokenizer=shared, model=own, server={"args": list(arguments)})
    assert one.findings == []
    return review(one.pipeline, one.graph, one.options)


def test_a_resource_of_the_rate_limiter_is_global_in_all_steps_or_in_none(
    messages: Messages,
) -> None:
    (finding,) = limited("--rate-limit=execution_count")
    assert finding.path == "spec.model.configPatch.instance_group"
    assert finding.code == RuleId.RATE_LIMITER
    assert finding.config_place == "model: instance_group[0].rate_limiter.resources[0].global"
    messages.check(str(finding))


@pytest.mark.parametrize(
    ("arguments", "enabled"),
    [
        ((), False),
        (("--rate-limit=off",), False),
        (("--rate-limit-resource=memory:4",), False),
        (("--rate-limit=Execution_Count",), True),
        (("--rate-limit=off", "--log-verbose=1", "--rate-limit=execution_count"), True),
        (("--rate-limit=execution_count", "--rate-limit=OFF"), False),
    ],
)
def test_resources_matter_only_to_a_server_that_limits_rates(
    arguments: tuple[str, ...], enabled: bool
) -> None:
    assert bool(limited(*arguments)) is enabled

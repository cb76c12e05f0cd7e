"""What ``server.tls`` renders: TLS over gRPC, and nothing in plaintext but health checks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, options
from triton_pipelines.api import names
from triton_pipelines.compile.graph import check
from triton_pipelines.compile.graph.server_settings import without_tls
from triton_pipelines.compile.render import tuning_objects
from triton_pipelines.compile.render.network_policies import network_policy
from triton_pipelines.compile.render.objects import headless_service, service
from triton_pipelines.compile.render.pod_volumes import mounted_tls

SIMPLE = {"secretName": "certs"}
MUTUAL = {"secretName": "certs", "mode": "Mutual"}


def pod_of(tls: dict[str, Any] | None) -> dict[str, Any]:
    spec: dict[str, Any] = built(**({"server": {"tls": tls}} if tls else {})).render().template
    return dict(spec["spec"])


def arguments(tls: dict[str, Any] | None) -> list[str]:
    (server,) = pod_of(tls)["containers"]
    return list(server["args"])


def test_grpc_uses_the_files_of_the_secret() -> None:
    added = [item for item in arguments(SIMPLE) if item.startswith("--grpc-") and "ssl" in item]
    assert added == ["--grpc-use-ssl=true"]
    assert "--grpc-server-cert=/etc/tritonpipe/tls/tls.crt" in arguments(SIMPLE)
    assert "--grpc-server-key=/etc/tritonpipe/tls/tls.key" in arguments(SIMPLE)
    assert not any("root-cert" in item for item in arguments(SIMPLE))
    assert "--grpc-use-ssl-mutual=true" in arguments(MUTUAL)
    assert "--grpc-root-cert=/etc/tritonpipe/tls/ca.crt" in arguments(MUTUAL)


def test_http_rejects_everything_but_health_without_the_key() -> None:
    (restricted,) = [item for item in arguments(SIMPLE) if "--http-restricted-api" in item]
    groups = restricted.split("=", 1)[1].split(":")[0].split(",")
    assert set(groups) == {
        *("metadata", "inference", "model-config", "statistics"),
        *names.CONTROL_GROUPS.split(","),
    }
    assert "health" not in groups


@pytest.mark.parametrize(
    ("tls", "keys"),
    [(SIMPLE, ["tls.crt", "tls.key"]), (MUTUAL, ["tls.crt", "tls.key", "ca.crt"])],
)
def test_the_secret_reaches_triton_alone(tls: dict[str, Any], keys: list[str]) -> None:
    pod = pod_of(tls)
    (volume,) = [item for item in pod["volumes"] if item["name"] == names.VOLUME_TLS]
    assert volume["secret"]["secretName"] == "certs"
    assert [item["key"] for item in volume["secret"]["items"]] == keys
    mounts = [
        (container["name"], mount["readOnly"])
        for container in (*pod["initContainers"], *pod["containers"])
        for mount in container["volumeMounts"]
        if mount["name"] == names.VOLUME_TLS
    ]
    assert mounts == [(names.CONTAINER_SERVER, True)]


@pytest.mark.parametrize("tls", [SIMPLE, MUTUAL, None])
def test_a_pod_tells_its_tls(tls: dict[str, Any] | None) -> None:
    one = built(server={"tls": tls})
    assert mounted_tls(one.render().template) == one.pipeline.spec.server.tls


def test_a_volume_that_was_edited_tells_nothing() -> None:
    template = built(server={"tls": SIMPLE}).render().template
    for volume in template["spec"]["volumes"]:
        if volume["name"] == names.VOLUME_TLS:
            volume["emptyDir"] = volume.pop("secret") and {}
    assert mounted_tls(template) is None


def test_clients_find_grpc_alone() -> None:
    one = built(server={"tls": SIMPLE, "service": {"headless": "Enabled"}})
    headless = headless_service(one.pipeline)
    assert headless is not None
    assert [item["name"] for item in headless["spec"]["ports"]] == ["grpc"]
    ports = {item["name"]: item for item in service(one.pipeline)["spec"]["ports"]}
    assert set(ports) == {"grpc", "metrics"}
    assert ports["grpc"]["appProtocol"] == "https"
    policy = network_policy(one.pipeline, options())
    assert policy is not None
    opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert opened == ["grpc", "metrics"]


@pytest.mark.parametrize("tls", [SIMPLE, MUTUAL])
def test_a_tuning_run_measures_the_same_server_in_plaintext(tls: dict[str, Any]) -> None:
    one = built(server={"tls": tls})
    template = one.render().template
    canary = tuning_objects.canary(one.pipeline, "abcdefgh", template, 60)
    pod = canary["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    plain = pod_of(None)
    assert not [text for text in ("certs", names.VOLUME_TLS, names.PATH_TLS) if text in str(pod)]
    assert len(pod["volumes"]) == len(plain["volumes"])
    assert server["volumeMounts"] == plain["containers"][0]["volumeMounts"]
    assert [item.split(":", 1)[0] for item in server["args"]] == [
        item.split(":", 1)[0] for item in arguments(None)
    ]
    mode = one.pipeline.spec.server.tls
    assert mode is not None
    assert without_tls(arguments(None), mode.mode) == arguments(None)


def test_a_control_key_is_no_certificate() -> None:
    one = built(server={"tls": {"secretName": "other-0123456789"}})
    found = [item for item in check(one.pipeline, one.graph, options()) if "tls" in item.path]
    assert [item.path for item in found] == ["spec.server.tls.secretName"]


@pytest.mark.parametrize("flag", ["--grpc-server-cert=/x", "--grpc-root-cert=/x"])
def test_arguments_for_tls_are_the_operators(flag: str) -> None:
    one = built(server={"args": [flag]})
    assert [item.path for item in check(one.pipeline, one.graph, options())] == [
        "spec.server.args[0]"
    ]

"""Values of ``server.podTemplate`` that tests of rendering and of the API server share."""

from __future__ import annotations

from typing import Any

from tests.support.builders import Built, document, options
from triton_pipelines.api import parse
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.options import PodTemplateMode

SIDECAR = {"name": "proxy", "image": "registry.example/proxy:1"}
TRITON = {"name": "triton"}


def templated(template: Any, given_options: Options | None = None, **changes: Any) -> Built:
    """The sentiment resource with this podTemplate, nulls and all.

    Unless the options say otherwise, the template is unrestricted.
    """
    resource = document(**changes)
    resource["spec"].setdefault("server", {})["podTemplate"] = template
    parsed, wrong = parse(resource)
    assert parsed is not None
    assert not wrong, wrong
    chosen = given_options or options(pod_template=PodTemplateMode.ALLOW)
    return Built(parsed, chosen, build(parsed, chosen))


# Something of every kind of part, over the resource's own env A and nodeSelector pool.
WHOLE: dict[str, Any] = {
    "metadata": {"labels": {"team": "search"}, "annotations": {"sidecar.example/inject": "true"}},
    "spec": {
        "containers": [
            {
                "name": "triton",
                "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "resources": {"limits": {"ephemeral-storage": "10Gi"}},
                "securityContext": {
                    "readOnlyRootFilesystem": None,
                    "capabilities": {"add": ["IPC_LOCK"]},
                },
            },
            {
                **SIDECAR,
                "volumeMounts": [{"name": "tritonpipe", "mountPath": "/m", "readOnly": True}],
            },
        ],
        "initContainers": [
            {
                "name": "load",
                "env": [{"name": "HTTPS_PROXY", "value": "http://p:1"}],
                "resources": {"limits": {"memory": "8Gi"}},
            },
            {"name": "after", "image": "x:1", "restartPolicy": "Always"},
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "9Gi"}},
        ],
        "tolerations": [
            {"key": "mine", "operator": "Exists"},
            {"key": "nvidia.com/gpu", "operator": "Exists"},
        ],
        "topologySpreadConstraints": None,
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
        "terminationGracePeriodSeconds": 300,
        "nodeSelector": {"disk": "fast", "pool": None},
    },
}

# What no API server accepts, with the reported path and words of the message, applied over the
# resource's own env A.
WRONG: list[tuple[Any, str, str]] = [
    ({"spec": []}, "spec", "must be a mapping with fields of Kubernetes' PodSpec"),
    ({"specs": {}}, "specs", "unknown field of Kubernetes' PodTemplateSpec; did you mean spec?"),
    ({"spec": {"containers": {}}}, "spec.containers", "must be a list"),
    ({"spec": {"containers": ["x"]}}, "spec.containers[1]", "must be a mapping"),
    ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[1].name", "required"),
    ({"spec": {"containers": [{"name": "x"}]}}, "spec.containers[x].image", "required"),
    (
        {"spec": {"containers": [{"name": "X", "image": "x"}]}},
        "spec.containers[X].name",
        "lowercase",
    ),
    (
        {"spec": {"containers": [SIDECAR], "initContainers": [SIDECAR]}},
        "spec.containers[proxy]",
        "used by two",
    ),
    (
        {"spec": {"containers": [{**SIDECAR, "imagePullPolcy": "x"}]}},
        "spec.containers[proxy].imagePullPolcy",
        "did you mean imagePullPolicy?",
    ),
    (
        {"spec": {"containers": [{**SIDECAR, "env": [{"name": "A", "value": 1}]}]}},
        "spec.containers[proxy].env[A].value",
        "put the value in quotes",
    ),
    (
        {"spec": {"containers": [{**SIDECAR, "tty": "yes"}]}},
        "spec.containers[proxy].tty",
        "true or false",
    ),
    (
        {"spec": {"containers": [{**SIDECAR, "args": "x"}]}},
        "spec.containers[proxy].args",
        "must be a list",
    ),
    (
        {"spec": {"containers": [{**SIDECAR, "ports": [{"containerPort": "80"}]}]}},
        "spec.containers[proxy].ports[0].containerPort",
        "integer",
    ),
    (
        {"spec": {"containers": [{**SIDECAR, "ports": [{}]}]}},
        "spec.containers[proxy].ports[0].containerPort",
        "required",
    ),
    ({"spec": {"hostNetwork": 1}}, "spec.hostNetwork", "true or false"),
    ({"spec": {"priority": True}}, "spec.priority", "integer"),
    ({"spec": {"nodeSelector": {"a": 1}}}, "spec.nodeSelector[a]", "put the value in quotes"),
    ({"spec": {"nodeSelector": []}}, "spec.nodeSelector", "must be a mapping"),
    (
        {"spec": {"volumes": [{"name": "x", "emptyDir": {}, "hostPath": {"path": "/"}}]}},
        "spec.volumes[x]",
        "has emptyDir and hostPath",
    ),
    (
        {
            "spec": {
                "containers": [{**SIDECAR, "volumeMounts": [{"name": "none", "mountPath": "/x"}]}]
            }
        },
        "spec.containers[proxy].volumeMounts[/x].name",
        "'none' is not a volume of the pod; use one of: dshm, live",
    ),
    (
        {"metadata": {"labels": {"a": "not a value"}}},
        "metadata.labels[a]",
        "is not a valid label value",
    ),
    ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations[a]", "put the value in quotes"),
    (
        {
            "spec": {
                "containers": [
                    {
                        **TRITON,
                        "env": [
                            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
                        ],
                    }
                ]
            }
        },
        "spec.containers[triton].env[A]",
        "value and valueFrom cannot be combined",
    ),
]

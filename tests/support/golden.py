"""The golden files of rendering: one text per resource.

It contains the model repository and all objects of the resource.

What a new operator release changes without changing a decision is left out: runtime ``model.py``
files are named, not repeated, and the revision's name, which hashes over them, is a placeholder.
The Deployment contains the whole pod template.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support import libyaml
from tests.support.builders import LOADER_IMAGE, SERVER_IMAGE
from triton_pipelines.api import parse
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Options, build, check, lint
from triton_pipelines.compile.graph.graph import Implementation
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.compile.render.model_repository import runtime_file
from triton_pipelines.compile.render.network_policies import network_policy
from triton_pipelines.compile.render.objects import (
    control_secret,
    deployment,
    disruption_budget,
    live_config_map,
    revision_config_map,
    service,
)

FOLDER = Path(__file__).parent.parent / "golden" / "render"
CASES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
REVISION = "REVISION"


def path_of(name: str) -> Path:
    """Where the expected output of a case lies."""
    return FOLDER / f"{name}.golden.txt"


def deployment_of(pipeline: InferencePipeline, revision: Revision) -> dict[str, Any]:
    """The Deployment, as if the rollout had not to ask for room."""
    mode = (
        RolloutStrategy.SURGE
        if pipeline.spec.rollout.strategy is RolloutStrategy.AUTO
        else pipeline.spec.rollout.strategy
    )
    return deployment(pipeline, revision.template, mode, pipeline.spec.replicas)


def objects_of(
    pipeline: InferencePipeline, revision: Revision, options: Options
) -> list[dict[str, Any]]:
    """All other objects of a pipeline; the revision's ConfigMap comes first."""
    made = [
        revision_config_map(pipeline, revision.name, revision.data),
        live_config_map(pipeline, {}),
        control_secret(pipeline, revision.name, "KEY"),
        service(pipeline),
        network_policy(pipeline, options),
        disruption_budget(pipeline),
    ]
    return [item for item in made if item is not None]


def text_of(name: str) -> str:
    """What rendering gives for a case now."""
    case = libyaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    given = dict(case.get("options") or {})
    options = Options(
        **{
            "server_image": SERVER_IMAGE,
            "loader_image": LOADER_IMAGE,
            **given,
            "source_map": tuple(given.get("source_map", ())),
            "service_accounts": tuple(given.get("service_accounts", ())),
            "pod_template": PodTemplateMode(given.get("pod_template", "restricted")),
            "substitute_runner": frozenset(given.get("substitute_runner", ())),
        }
    )
    pipeline, findings = parse(case["resource"])
    assert pipeline is not None, findings
    assert not findings, findings
    graph = build(pipeline, options)
    assert not (wrong := check(pipeline, graph, options)), wrong
    revision = render(pipeline, graph, options)
    ours = [
        step.implementation
        for step in graph.models
        if step.implementation
        not in (Implementation.BACKEND, Implementation.CODE, Implementation.TOKENIZER)
    ]
    runtime = {runtime_file(implementation): implementation.value for implementation in ours}
    parts = [
        (
            "padding",
            f"{graph.padding.chosen.value}: {graph.padding.reason}\n"
            if graph.padding
            else "none\n",
        )
    ]
    parts.append(
        (
            "warnings",
            "".join(f"{item.path}: {item.code}\n" for item in lint(pipeline, graph)) or "none\n",
        )
    )
    for path, text in revision.files.items():
        parts.append(
            (f"models/{path}", f"(runtime file {runtime[text]})\n" if text in runtime else text)
        )
    parts.append(("plan.json", revision.data["plan.json"]))
    stored, *objects = objects_of(pipeline, revision, options)
    stored["data"] = dict.fromkeys(stored["data"], "…")
    for item in (deployment_of(pipeline, revision), stored, *objects):
        parts.append(
            (
                f"{item['kind']} {item['metadata']['name']}",
                yaml.safe_dump(item, sort_keys=True, allow_unicode=True, width=150),
            )
        )
    text = "\n".join(f"===== {title}\n{body}" for title, body in parts)
    return text.replace(revision.name, REVISION)

"""The model repository of a graph as text files, and the load plan that lays it out in a pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from triton_pipelines.api.loadplan import FetchKind, LoadPlan, PlanCheck, PlanCount, PlanFetch, PlanFile, PlanTensor
from triton_pipelines.api.source import Source
from triton_pipelines.api.steps import Platform
from triton_pipelines.pipeline.build import FILE_NAMES
from triton_pipelines.pipeline.graph import Graph, Implementation, Step, Tensor

from .errors import RenderError
from .modelconfig import configs

VERSION_FOLDER = "1"
# Python packages that the loader copies for the stock Triton image, which carries numpy only.
SITE_PACKAGES = ("tokenizers",)


def runtime_file(implementation: Implementation) -> str:
    """Text of a runtime ``model.py`` that comes with the operator."""
    return (resources.files("triton_pipelines.runtime") / implementation.value / "model.py").read_text(encoding="utf-8")


def repository(graph: Graph) -> dict[str, str]:
    """Path below the repository → content of every file that is rendered (sources are fetched beside them)."""
    files = {f"{name}/config.pbtxt": text for name, text in configs(graph).items()}
    for step in graph.steps:
        path = f"{step.model_name}/{VERSION_FOLDER}/model.py"
        if step.implementation is Implementation.CODE:
            files[path] = step.code or ""
        elif step.implementation is not Implementation.BACKEND:
            files[path] = runtime_file(step.implementation)
    return dict(sorted(files.items()))


def keys(files: Mapping[str, str]) -> dict[str, str]:
    """Path → ConfigMap key: the path with dots, made a valid and distinct key, so that people can read the ConfigMap."""
    result: dict[str, str] = {}
    taken: set[str] = set()
    for path in files:
        key = re.sub(r"[^-._a-zA-Z0-9]", "_", path.replace(f"/{VERSION_FOLDER}/", "/").replace("/", "."))[:240]
        candidate, number = key, 1
        while candidate in taken:
            number += 1
            candidate = f"{key}.{number}"
        taken.add(candidate)
        result[path] = candidate
    return result


def load_plan(graph: Graph, files: Mapping[str, str], namespace: str, revision: str) -> LoadPlan:
    """What the init container does for a pod of this revision."""
    return LoadPlan(
        pipeline=graph.pipeline,
        namespace=namespace,
        revision=revision,
        files=tuple(PlanFile(key=key, path=path) for path, key in keys(files).items()),
        empty_dirs=(f"{graph.model_name}/{VERSION_FOLDER}",),
        counts=tuple(
            PlanCount(
                step=step.name,
                path=f"{step.model_name}/config.pbtxt",
                initial=step.instances.count,
                min=step.instances.low,
                max=step.instances.high,
            )
            for step in graph.steps
            if step.instances.scaled
        ),
        fetch=tuple(_fetch(step, step.source) for step in graph.steps if step.source is not None),
        checks=tuple(_check(step) for step in graph.steps if step.source is not None and _is_onnx(step)),
        site=SITE_PACKAGES,
    )


def _is_onnx(step: Step) -> bool:
    return step.file_name == FILE_NAMES[Platform.ONNX] and step.implementation is not Implementation.CODE


def _fetch(step: Step, source: Source) -> PlanFetch:
    if step.file_name is None:
        raise RenderError(f"{step.name}: no name is known for the file of {source.uri}")
    return PlanFetch(
        step=step.name,
        uri=source.uri,
        target=f"{step.model_name}/{VERSION_FOLDER}/{step.file_name}",
        kind=FetchKind.TOKENIZER if step.implementation is Implementation.TOKENIZER else FetchKind.FILE,
        revision=source.revision,
        path=source.path,
        sha256=source.sha256,
        endpoint=source.endpoint,
        region=source.region,
        credentials=source.secret_ref is not None,
        ca=source.ca_ref is not None,
        field=step.source_path,
    )


def _check(step: Step) -> PlanCheck:
    def tensors(items: list[Tensor]) -> tuple[PlanTensor, ...]:
        return tuple(PlanTensor(name=item.name, data_type=item.data_type.value, dims=item.dims) for item in items)

    return PlanCheck(
        step=step.name,
        path=f"{step.model_name}/{VERSION_FOLDER}/{step.file_name}",
        field=step.path,
        max_batch_size=step.max_batch_size,
        inputs=tensors([entry.tensor for entry in step.inputs]),
        outputs=tensors(list(step.outputs)),
    )

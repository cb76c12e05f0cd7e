"""The model repository of a graph as text files, and the load plan that lays it out in a pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from triton_pipelines import runtime
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadPlan,
    PlanAdapt,
    PlanCheck,
    PlanCount,
    PlanFetch,
    PlanFile,
    PlanLibrary,
    PlanPool,
    PlanRaggedInput,
    PlanTensor,
    PlanTokens,
    PlanVersions,
)
from triton_pipelines.api.sequence_batching import control_type
from triton_pipelines.api.tensors import TokenTensor
from triton_pipelines.compile.graph.defaults import VERSION_FOLDER
from triton_pipelines.compile.graph.graph import (
    Fetch,
    Graph,
    Implementation,
    ModelPooling,
    Step,
    Tensor,
)
from triton_pipelines.compile.graph.model_pooling import file_outputs, has_onnx_file
from triton_pipelines.compile.graph.ragged_config import ragged_config
from triton_pipelines.compile.validation import ServerFacts

from .model_config import configs

_WITHOUT_RUNTIME_FILE = frozenset(
    {Implementation.BACKEND, Implementation.CODE, Implementation.TOKENIZER}
)


def runtime_file(implementation: Implementation) -> str:
    """Return the text of a runtime ``model.py`` that comes with the operator."""
    return runtime.source(implementation.value)


def repository(graph: Graph, facts: ServerFacts | None = None) -> dict[str, str]:
    """Return the content of every rendered file, by its path in the repository.

    The loader adds the files of the sources.
    """
    files = {f"{name}/config.pbtxt": text for name, text in configs(graph, facts).items()}
    for step in graph.models:
        folder = f"{step.model_name}/{VERSION_FOLDER}"
        if step.code is not None:
            files[f"{folder}/model.py"] = step.code
        elif step.implementation not in _WITHOUT_RUNTIME_FILE:
            files[f"{folder}/model.py"] = runtime_file(step.implementation)
        if step.python_file is not None:
            files[f"{folder}/{step.python_file}"] = runtime.tracing_source()
        files |= {f"{folder}/{name}": text for name, text in step.files.items()}
    return dict(sorted(files.items()))


def keys(files: Mapping[str, str]) -> dict[str, str]:
    """Return the ConfigMap key of each path: a valid and distinct key.

    A key is the path with dots for slashes, so that the ConfigMap is easy to read.
    """
    result: dict[str, str] = {}
    taken: set[str] = set()
    for path in files:
        key = re.sub(
            r"[^-._a-zA-Z0-9]", "_", path.replace(f"/{VERSION_FOLDER}/", "/").replace("/", ".")
        )[:240]
        candidate, number = key, 1
        while candidate in taken:
            number += 1
            candidate = f"{key}.{number}"
        taken.add(candidate)
        result[path] = candidate
    return result


def load_plan(graph: Graph, files: Mapping[str, str], namespace: str, revision: str) -> LoadPlan:
    """Return the plan of the init container for a pod of this revision."""
    settings = graph.tokenizer.tokenizer if graph.tokenizer else None
    max_length = settings.max_length if settings else None
    return LoadPlan(
        pipeline=graph.pipeline,
        namespace=namespace,
        revision=revision,
        files=tuple(PlanFile(key=key, path=path) for path, key in keys(files).items()),
        empty_dirs=_empty_dirs(graph, files),
        counts=tuple(
            PlanCount(
                step=step.name,
                path=f"{step.model_name}/config.pbtxt",
                initial=step.instances.counts.initial,
                min=step.instances.counts.min,
                max=step.instances.counts.max,
            )
            for step in graph.models
            if step.instances.scaled and not graph.auto_complete
        ),
        fetch=tuple(_fetch(item, step) for step in graph.models for item in step.fetches),
        checks=tuple(check for step in graph.models if (check := _check(step, graph)) is not None),
        pool=tuple(_pool(step, step.pooling) for step in graph.models if step.pooling is not None),
        adapt=tuple(_adapt(step, max_length) for step in graph.models if step.flat),
        libraries=tuple(
            PlanLibrary(
                step=step.name,
                path=f"{step.model_name}/{VERSION_FOLDER}/{names.NATIVE_TOKENIZER_LIBRARY}",
                field=step.path,
            )
            for step in graph.models
            if step.native
        ),
    )


def _place(step: Step) -> dict[str, Any]:
    """Return where the loader finds the ONNX files of a step, as fields of a ``PlanPlace``."""
    main = next(item for item in step.fetches if not item.slot)
    folder = main.kind is FetchKind.MODEL
    return {
        "step": step.name,
        "path": None if folder else main.target,
        "model": step.model_name if folder else None,
        "file": step.file_name if folder else None,
    }


def _pool(step: Step, pooling: ModelPooling) -> PlanPool:
    """Return the pooling that the loader adds to the ONNX files of a step."""
    return PlanPool(
        **_place(step),
        tokens=pooling.tokens.name,
        mask=pooling.mask,
        embedding=pooling.embedding.name,
        width=pooling.embedding.dims[-1],
        normalize=pooling.normalize,
    )


def _adapt(step: Step, longest: int | None) -> PlanAdapt:
    """Return how to rewrite an ONNX file so that requests of different length share a batch."""
    flat = [entry.tensor for entry in step.inputs if entry.tensor.name in (step.flat or {})]
    config = ragged_config(flat, step.outputs)
    return PlanAdapt(
        **_place(step),
        inputs=tuple(
            PlanRaggedInput(name=name, pad_value=(step.flat or {})[name]) for name in config.flat
        ),
        token_outputs=tuple(entry.target for entry in config.batch_outputs),
        max_length=longest,
    )


def _empty_dirs(graph: Graph, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the version folders that stay empty.

    The ensemble's, and those of backends without a file. Triton needs one to see a version.
    """
    filled = {path.split("/", 1)[0] for path in files if path.count("/") > 1} | {
        item.target.split("/", 1)[0] for item in graph.fetches
    }
    names = [step.model_name for step in graph.models if step.model_name not in filled]
    return tuple(
        f"{name}/{VERSION_FOLDER}"
        for name in ([graph.model_name] if graph.entry is None else []) + names
    )


def _fetch(item: Fetch, step: Step) -> PlanFetch:
    source = item.source
    # The versions of a step are those of its model, or those of its custom code.
    versioned = item.kind is FetchKind.MODEL and item.slot in ("", "code")
    policy = step.version_policy if versioned else None
    versions = None
    if policy is not None and not policy.default:
        versions = PlanVersions(
            latest=policy.latest,
            all=True if policy.all else None,
            specific=tuple(sorted(policy.specific)) or None,
        )
    return PlanFetch(
        step=item.step,
        slot=item.slot,
        uri=source.uri,
        target=item.target,
        kind=item.kind,
        file=item.file,
        source_file=item.source_file,
        whole=item.whole,
        versions=versions,
        pinned=step.version if versioned else None,
        revision=source.revision,
        path=source.path,
        sha256=source.sha256,
        endpoint=source.endpoint,
        region=source.region,
        credentials=source.secret_ref is not None,
        ca=source.ca_ref is not None,
        cuts_pairs=item.kind is FetchKind.TOKENIZER
        and step.tokenizer is not None
        and step.tokenizer.cuts_pairs,
        field=item.path,
    )


def _tokens(step: Step, graph: Graph) -> PlanTokens | None:
    """Return the tokens that the operator's tokenizer sends to a step.

    ``None`` with custom code, which may emit anything.
    """
    tokenizer = graph.tokenizer
    if tokenizer is None or tokenizer.tokenizer is None:
        return None
    settings = tokenizer.tokenizer
    file = next(
        (item.target for item in tokenizer.fetches if item.kind is FetchKind.TOKENIZER), None
    )
    read = {
        entry.tensor.name: settings.outputs.get(entry.source.tensor)
        for entry in step.inputs
        if entry.source is not None and entry.source.step == tokenizer.name
    }

    def named(*kinds: TokenTensor) -> tuple[str, ...]:
        return tuple(name for name, kind in read.items() if kind in kinds)

    if file is None or not (ids := named(TokenTensor.INPUT_IDS)):
        return None
    return PlanTokens(
        tokenizer=file,
        ids=ids,
        masks=named(TokenTensor.ATTENTION_MASK),
        others=named(TokenTensor.TOKEN_TYPE_IDS, TokenTensor.SPECIAL_TOKENS_MASK),
        max_length=settings.max_length,
    )


def _check(step: Step, graph: Graph) -> PlanCheck | None:
    """Return the check of an ONNX file for Triton's backend, or for the runner that replaces it."""
    if not has_onnx_file(step):
        return None

    def tensors(items: list[Tensor]) -> tuple[PlanTensor, ...]:
        return tuple(
            PlanTensor(
                name=item.name,
                data_type=item.data_type.value,
                dims=item.dims if item.reshape is None else item.reshape,
            )
            for item in items
        )

    controls, state_inputs, state_outputs = _sequence_tensors(step)
    return PlanCheck(
        **_place(step),
        field=step.path,
        max_batch_size=step.max_batch_size,
        inputs=tensors([entry.tensor for entry in step.inputs]),
        outputs=tensors(list(file_outputs(step))),
        controls=controls,
        state_inputs=state_inputs,
        state_outputs=state_outputs,
        tokens=_tokens(step, graph),
    )


def _sequence_tensors(
    step: Step,
) -> tuple[tuple[PlanTensor, ...], tuple[PlanTensor, ...], tuple[PlanTensor, ...]]:
    """Return the tensors of the file that the sequence batcher handles.

    They are not declared as inputs and outputs of the step. The runner does not know them.

    Returns:
        Controls, states that the file reads, and states that it writes and clients do not get.
    """
    if step.sequences is None or step.implementation is not Implementation.BACKEND:
        return (), (), ()
    declared = {tensor.name for tensor in step.outputs}
    states = step.sequences.states
    return (
        tuple(
            PlanTensor(name=one.name, data_type=control_type(one).value, dims=(1,))
            for one in step.sequences.controls
        ),
        tuple(
            PlanTensor(name=one.input_name, data_type=one.data_type.value, dims=one.dims)
            for one in states
        ),
        tuple(
            PlanTensor(name=one.output_name, data_type=one.data_type.value, dims=one.dims)
            for one in states
            if one.output_name not in declared
        ),
    )

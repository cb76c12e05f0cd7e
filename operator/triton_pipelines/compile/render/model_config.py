"""Render ``config.pbtxt`` of every model from templates.

Each file is parsed with Triton's own ModelConfig proto and checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import jinja2
from google.protobuf import text_format
from google.protobuf.text_encoding import CEscape

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.loadfetch import FetchKind
from triton_pipelines.compile.graph.defaults import VERSION_FOLDER
from triton_pipelines.compile.graph.graph import PIPELINE, Graph, Reference, Step
from triton_pipelines.compile.graph.ragged_config import ragged_config
from triton_pipelines.compile.model_config_proto import model_config_pb2
from triton_pipelines.compile.validation import ServerFacts, validate_repository

from .config_patch import patch
from .errors import RefusedError, RenderError
from .findings import as_finding

# Triton's word for the latest version that is ready.
LATEST_VERSION = -1
# Parsing text takes a third of the time of a compilation, and pipelines of one kind have equal
# texts. At most 8 MiB are cached, with longer texts left out.
_CACHED_CONFIGS: Final = 1024
_CACHED_CHARACTERS_MAX: Final = 4096


def _pb_string(value: str) -> str:
    """Return a protobuf text-format string literal (UTF-8 stays readable)."""
    return f'"{CEscape(value.encode(), as_utf8=True)}"'


def _pb_word(value: str) -> str:
    """Return an identifier unchanged; anything else is a defect of the renderer."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", value):
        raise RenderError(f"{value!r} is not a protobuf enum name")
    return value


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("triton_pipelines.compile.render"),
    undefined=jinja2.StrictUndefined,
    # Protobuf text, not HTML; every scalar passes a filter of its own.
    autoescape=False,  # noqa: S701
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {"pb_string": _pb_string, "pb_word": _pb_word}


def parse(text: str) -> Any:
    """Return the ModelConfig message of a ``config.pbtxt``.

    Unknown fields and wrong types raise :class:`RenderError`.
    """
    if len(text) > _CACHED_CHARACTERS_MAX:
        return _parse(text)
    return model_config_pb2.ModelConfig.FromString(_encoded(text))


@lru_cache(maxsize=_CACHED_CONFIGS)
def _encoded(text: str) -> bytes:
    encoded: bytes = _parse(text).SerializeToString()
    return encoded


def _parse(text: str) -> Any:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise RenderError(f"the rendered config is not a ModelConfig: {error}") from error


def configs(graph: Graph, facts: ServerFacts | None = None) -> dict[str, str]:
    """Return the text of each model's ``config.pbtxt`` by name, the ensemble last.

    Raises :class:`RefusedError` with the fields of the resource where Triton would not load what
    they ask for.
    """
    texts = {step.model_name: step_config(step) for step in graph.models}
    if graph.entry is None:
        texts[graph.model_name] = ensemble_config(graph)
    messages = {name: parse(text) for name, text in texts.items()}
    findings: list[Finding] = []
    for step in graph.models:
        if step.config_patch:
            findings += patch(
                messages[step.model_name], step.config_patch, f"{step.path}.configPatch"
            )
            texts[step.model_name] = text_format.MessageToString(
                messages[step.model_name], as_utf8=True
            )
    known = replace(facts or ServerFacts(), files=_known_files(graph))
    findings += [as_finding(violation, graph) for violation in validate_repository(messages, known)]
    if findings:
        raise RefusedError(findings)
    return texts


def _known_files(graph: Graph) -> dict[str, dict[str, int]]:
    """Return the files of each model whose folder no source fills, with their sizes in bytes.

    A fetched file has an unknown size, which counts as sufficient. A model with a source that is a
    folder is left out, because its files are not known before they are fetched.
    """
    result = {}
    for step in graph.models:
        if any(item.kind in (FetchKind.MODEL, FetchKind.FOLDER) for item in step.fetches):
            continue
        result[step.model_name] = {
            f"{VERSION_FOLDER}/": 0,
            **{
                item.target.removeprefix(f"{step.model_name}/"): sys.maxsize
                for item in step.fetches
            },
            **{f"{VERSION_FOLDER}/{name}": len(text.encode()) for name, text in step.files.items()},
            **(
                {f"{VERSION_FOLDER}/{names.NATIVE_TOKENIZER_LIBRARY}": sys.maxsize}
                if step.native
                else {}
            ),
        }
    return result


def step_config(step: Step) -> str:
    """Return the config of one composing model.

    Its ``instance_group`` says kind and count always: Triton's own choice differs by backend.
    """
    template = _ENVIRONMENT.get_template("step.pbtxt.j2")
    flat = [entry.tensor for entry in step.inputs if entry.tensor.name in (step.flat or ())]
    ragged = ragged_config(flat, step.outputs if flat else ())
    return (
        template.render(
            step=step, batching=step.batching, accelerator=step.accelerator, ragged=ragged
        ).rstrip()
        + "\n"
    )


def ensemble_config(graph: Graph) -> str:
    """Return the config of the ensemble, with the maps of its steps in data-flow order."""
    tensors = tensor_names(graph)
    read = {entry.source for step in graph.steps for entry in step.inputs} | {
        output.source for output in graph.outputs
    }
    steps = [
        {
            "model_name": step.model_name,
            "version": step.version or LATEST_VERSION,
            "inputs": [
                (entry.tensor.name, tensors[entry.source])
                for entry in step.inputs
                if entry.source is not None
            ],
            # Unused outputs stay unmapped: Triton rejects a tensor that is written but never read.
            "outputs": [
                (tensor.name, tensors[ref])
                for tensor in step.outputs
                if (ref := Reference(step.name, tensor.name)) in read
            ],
        }
        for step in graph.steps
    ]
    return (
        _ENVIRONMENT.get_template("ensemble.pbtxt.j2").render(graph=graph, steps=steps).rstrip()
        + "\n"
    )


def tensor_names(graph: Graph) -> Mapping[Reference, str]:
    """Return the ensemble's own name of every tensor.

    Public names as written, the rest ``STEP.TENSOR``, made distinct.
    """
    names = {Reference(PIPELINE, tensor.name): tensor.name for tensor in graph.inputs}
    names |= {output.source: output.tensor.name for output in graph.outputs}
    taken = set(names.values())
    for step in graph.steps:
        for tensor in step.outputs:
            reference = Reference(step.name, tensor.name)
            if reference in names:
                continue
            name = str(reference)
            while name in taken:
                name += "_"
            taken.add(name)
            names[reference] = name
    return names


def with_count(config: Any, count: int) -> Any:
    """Return a copy of a parsed config in which only the instance count differs.

    What a live change sends, and all it sends.
    """
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    if len(changed.instance_group) != 1:
        raise RenderError(
            f"{config.name}: expected one instance_group, found {len(changed.instance_group)}"
        )
    changed.instance_group[0].count = count
    return changed

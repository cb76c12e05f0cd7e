"""Sources that a model needs, and where the loader stores them."""

from __future__ import annotations

from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.source import ModelSource
from triton_pipelines.api.steps import Platform
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .declared_steps import DeclaredStep
from .defaults import MODEL, STRATEGY_FILE, VERSION_FOLDER
from .graph import Fetch, Implementation
from .source_checks import file_name_of, names_file, python_fetches, side_source


def model_fetches(
    declared: DeclaredStep,
    spec: PipelineSpec,
    implementation: Implementation,
    default_file: str | None,
) -> tuple[Fetch, ...]:
    """Return what the loader fetches for a model: its own source, code, and batching library."""
    name, model_name, path = declared.name, declared.model_name, declared.path
    fields = declared.fields
    result: list[Fetch] = []
    source, field = fields.source, f"{path}.source"
    if (
        source is None
        and spec.source is not None
        and path == f"spec.{MODEL}"
        and implementation is not Implementation.CODE
    ):
        source, field = spec.source, "spec.source"
    if source is not None and implementation is Implementation.CODE:
        result.append(side_source(name, f"{model_name}/{VERSION_FOLDER}", source, field))
    elif source is not None:
        result.append(_model_file(declared, source, field, default_file))
    if fields.python is not None and implementation is Implementation.CODE:
        result += python_fetches(name, model_name, fields.python, f"{path}.python")
    if fields.batch_strategy is not None and fields.batch_strategy.source is not None:
        result.append(
            Fetch(
                name,
                "strategy",
                fields.batch_strategy.source,
                f"{path}.batchStrategy.source",
                FetchKind.FILE,
                f"{model_name}/{STRATEGY_FILE}",
            )
        )
    return tuple(result)


def _model_file(
    declared: DeclaredStep, source: ModelSource, field: str, default_file: str | None
) -> Fetch:
    """Return the fetch of the model itself: one file, or a folder."""
    name, model_name, fields = declared.name, declared.model_name, declared.fields
    if names_file(source):
        target = f"{model_name}/{VERSION_FOLDER}/{default_file or file_name_of(source)}"
        return Fetch(name, "", source, field, FetchKind.FILE, target)
    # The step's own folder is fetched completely. Of a shared folder, of a repository on a hub and
    # of a web server (which cannot be listed) only the model's file and the files that it names.
    repository = source.uri.startswith("hf://") and source.path is None
    own = field != "spec.source" and not repository and not source.uri.startswith("https://")
    file = source.file_name or default_file
    whole = own or fields.platform is Platform.VLLM or fields.backend is not None or file is None
    return Fetch(name, "", source, field, FetchKind.MODEL, model_name, file, whole=whole)

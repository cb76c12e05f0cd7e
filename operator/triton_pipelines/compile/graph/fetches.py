"""Sources that the steps need, and where the loader stores them in the model repository."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.python import Code, CodeParts
from triton_pipelines.api.source import ModelSource, SourceSpec
from triton_pipelines.api.steps import Platform
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .declared_steps import DeclaredStep
from .defaults import (
    ENVIRONMENT_FILE,
    ENVIRONMENT_PARAMETER,
    MODEL,
    STRATEGY_FILE,
    TOKENIZER,
    VERSION_FOLDER,
)
from .graph import Fetch, Implementation

CODE_FILE = "model.py"


def file_name_of(source: SourceSpec) -> str | None:
    """Return the name of the file that a source names; ``None`` if it names a folder."""
    if source.path is not None:
        return source.path.rsplit("/", 1)[-1] or None
    scheme, _, rest = source.uri.partition("://")
    if scheme == "https":
        return unquote(urlsplit(source.uri).path).rsplit("/", 1)[-1] or None
    if scheme in ("oci", "image"):
        return None
    parts = rest.partition("@")[0].split("/") if scheme == "hf" else rest.split("/")
    folder = {"hf": 2, "az": 2}.get(scheme, 1)
    return parts[-1] or None if len(parts) > folder else None


def names_file(source: SourceSpec) -> bool:
    """Return whether a source names a file rather than a folder.

    A file's address ends in a name with an extension.
    """
    name = file_name_of(source)
    return name is not None and "." in name.strip(".")


def inline_code(python: CodeParts | None) -> str | None:
    """Return the code that is written in the resource itself; ``None`` without any."""
    return python.code.inline if python is not None and python.code is not None else None


def tokenizer_fetches(spec: PipelineSpec) -> tuple[Fetch, ...]:
    """Return what the loader fetches for the tokenizer, except for parts of custom code.

    It is tokenizer.json, or everything in the tokenizer's source if it has custom code.
    """
    tokenizer = spec.tokenizer
    assert tokenizer is not None
    source, path = (
        (tokenizer.source, "spec.tokenizer.source")
        if tokenizer.source
        else (spec.source, "spec.source")
    )
    folder = f"{tokenizer.model_name}/{VERSION_FOLDER}"
    if tokenizer.python is not None:
        # Custom code brings what it needs; it does not get the pipeline's common source.
        return (
            (_side_source(TOKENIZER, folder, tokenizer.source, "spec.tokenizer.source"),)
            if tokenizer.source
            else ()
        )
    if source is None:
        return ()
    return (Fetch(TOKENIZER, "", source, path, FetchKind.TOKENIZER, f"{folder}/tokenizer.json"),)


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
        result.append(_side_source(name, f"{model_name}/{VERSION_FOLDER}", source, field))
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


def _side_source(step: str, folder: str, source: SourceSpec, path: str) -> Fetch:
    """Return the source of a step with custom code: a file next to model.py, or a whole folder."""
    if not names_file(source):
        return Fetch(step, "", source, path, FetchKind.FOLDER, folder)
    return Fetch(step, "", source, path, FetchKind.FILE, f"{folder}/{file_name_of(source)}")


def python_fetches(
    step: str, model_name: str, python: CodeParts | None, path: str
) -> tuple[Fetch, ...]:
    """Return the sources of custom code: the code, its side files, its packed environment."""
    if python is None:
        return ()
    folder = f"{model_name}/{VERSION_FOLDER}"
    result: list[Fetch] = []
    if python.code is not None:
        result += _code_fetches(step, model_name, python.code, f"{path}.code")
    for index, side in enumerate(python.files):
        single = names_file(side.source)
        name = side.path or (file_name_of(side.source) if single else None)
        kind = FetchKind.FILE if single else FetchKind.FOLDER
        target = f"{folder}/{name}" if name else folder
        field = f"{path}.files[{index}].source"
        result.append(Fetch(step, f"file-{index}", side.source, field, kind, target))
    if python.environment is not None:
        source, field = python.environment.source, f"{path}.environment.source"
        target = f"{model_name}/{ENVIRONMENT_FILE}"
        result.append(Fetch(step, "env", source, field, FetchKind.FILE, target))
    return tuple(result)


def python_parameters(python: CodeParts | None) -> dict[str, str]:
    """Return the parameters of a step with custom code: the path of its packed environment.

    Triton replaces the variable in it (python_backend README).
    """
    if python is None or python.environment is None:
        return {}
    return {ENVIRONMENT_PARAMETER: f"$$TRITON_MODEL_DIRECTORY/{ENVIRONMENT_FILE}"}


def _code_fetches(step: str, model_name: str, code: Code, path: str) -> Iterator[Fetch]:
    """Return the fetch of model.py: a key of a ConfigMap, a file, or a folder that contains it."""
    file = f"{model_name}/{VERSION_FOLDER}/{CODE_FILE}"
    if code.config_map_key_ref is not None:
        reference = code.config_map_key_ref
        source = SourceSpec(uri=f"configmap://{reference.name}/{reference.key}")
        yield Fetch(step, "code", source, f"{path}.configMapKeyRef", FetchKind.FILE, file)
    if code.source is not None and names_file(code.source):
        yield Fetch(step, "code", code.source, f"{path}.source", FetchKind.FILE, file)
    elif code.source is not None:
        yield Fetch(
            step,
            "code",
            code.source,
            f"{path}.source",
            FetchKind.MODEL,
            model_name,
            CODE_FILE,
            code.source.file_name,
            whole=True,
        )

"""Complete a config as Triton does: from the files, and with its defaults."""

from __future__ import annotations

from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.defaults import BACKENDS, FILE_NAMES
from triton_pipelines.loader.onnx_file import OnnxFile, read_onnx

from .import_notes import ImportNote, ModelRepositoryError, NoteSeverity
from .repository import RepositoryModel

# Default file of a version → platform and backend that Triton derives from it if the config has
# neither (core: model_config_utils.cc, AutoComplete).
_BY_FILE = {
    "model.onnx": ("onnxruntime_onnx", "onnxruntime"),
    "model.plan": ("tensorrt_plan", "tensorrt"),
    "model.pt": ("pytorch_libtorch", "pytorch"),
    "model.py": ("", "python"),
    "model.xml": ("", "openvino"),
    "model.json": ("", "vllm"),
}
# Platforms that imply a backend (core: model_config_utils.cc). Only TensorFlow's contain more than
# the backend's name.
_BY_PLATFORM = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_PLATFORM_OF = {
    "onnxruntime": "onnxruntime_onnx",
    "tensorrt": "tensorrt_plan",
    "pytorch": "pytorch_libtorch",
}
_DEFAULT_FILES = {BACKENDS[platform]: name for platform, name in FILE_NAMES.items()}
# Triton's max_batch_size for a model that sets none
# (--backend-config=default-max-batch-size).
_DEFAULT_BATCH = 4
_TYPES = {f"TYPE_{item.value}" for item in DataType}


def complete(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Complete the config as Triton does from the files, as far as they can be read here."""
    _add_backend(model, notes)
    config = model.config
    if not (config.input and config.output) and config.backend == "onnxruntime":
        _from_graph(model, notes)
    for kind, tensors in (("input", config.input), ("output", config.output)):
        if not tensors and config.backend != "vllm":
            raise ModelRepositoryError(
                f"{model.origin}: {kind} is missing and cannot be derived from "
                f"{config.backend} models; copy {kind} from /v2/models/{model.name}/config "
                "of a running server"
            )


def _add_backend(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Derive the backend from the platform or the files, and its platform from the backend."""
    config = model.config
    if not config.backend and not config.platform:
        files = model.versions.get(model.latest or 0, ())
        main = config.default_model_filename or next(
            (name for name in _BY_FILE if name in files), ""
        )
        found = next(
            (
                platform_and_backend
                for name, platform_and_backend in _BY_FILE.items()
                if main and main.endswith(name.removeprefix("model"))
            ),
            None,
        )
        if found is None:
            raise ModelRepositoryError(
                f"{model.origin}: backend is missing and cannot be derived from the files "
                f"of the version directory ({', '.join(files) or 'none'}); set backend, for "
                'example backend: "python"'
            )
        config.platform, config.backend = found
        notes.append(
            ImportNote(
                model.origin,
                f"backend {config.backend} was derived from {main}",
                NoteSeverity.INFO,
            )
        )
    if not config.backend:
        if config.platform not in _BY_PLATFORM:
            raise ModelRepositoryError(
                f"{model.origin}: platform: {config.platform!r} is not a Triton platform; "
                f"use one of {', '.join(_BY_PLATFORM)}, or set backend instead"
            )
        config.backend = _BY_PLATFORM[config.platform]
    config.platform = config.platform or _PLATFORM_OF.get(config.backend, "")


def _from_graph(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Complete inputs, outputs and batching from the ONNX file, as its backend does."""
    config, name = model.config, model.config.default_model_filename or "model.onnx"
    path = model.file(name)
    if path is None:
        raise ModelRepositoryError(
            f"{model.origin}: input is missing, and so is "
            f"{model.name}/{model.latest or 1}/{name}, from which Triton would derive it; "
            "set input, or add the file"
        )
    try:
        graph: OnnxFile = read_onnx(path)
    except ValueError as error:
        raise ModelRepositoryError(f"{model.name}/{model.latest}/{name}: {error}") from error
    tensors = (*graph.inputs, *graph.outputs)
    if odd := [
        tensor.name
        for tensor in tensors
        if tensor.dims is None or f"TYPE_{tensor.data_type}" not in _TYPES
    ]:
        raise ModelRepositoryError(
            f"{model.name}/{model.latest}/{name}: {', '.join(odd)} has no shape or a type "
            "that Triton does not support; add input and output to "
            f"{model.name}/config.pbtxt"
        )
    batched = all(tensor.dims and not isinstance(tensor.dims[0], int) for tensor in tensors)
    if not config.max_batch_size and batched and not (config.input or config.output):
        config.max_batch_size = _DEFAULT_BATCH
        if config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    for tensors_of_graph, declared in (
        (graph.inputs, config.input),
        (graph.outputs, config.output),
    ):
        if not declared:
            for tensor in tensors_of_graph:
                dims = [
                    dim if isinstance(dim, int) else -1
                    for dim in (tensor.dims or ())[1 if config.max_batch_size else 0 :]
                ]
                declared.add(name=tensor.name, data_type=f"TYPE_{tensor.data_type}", dims=dims)
    notes.append(
        ImportNote(
            model.origin,
            f"inputs, outputs and batching were derived from {name}, as Triton does",
            NoteSeverity.INFO,
        )
    )


def fill_defaults(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Fill in Triton's defaults, so that both sides of a comparison have them."""
    config = model.config
    _remove_duplicates(model, notes)
    if model.ensemble:
        config.platform = "ensemble"
        notes += drop_equivalent_policy(model)
        for step in config.ensemble_scheduling.step:
            if step.model_version == 0:
                notes.append(
                    ImportNote(
                        f"{model.origin}: step {step.model_name}",
                        "model_version is missing, so Triton would look for version 0; the "
                        "latest version is used instead",
                        NoteSeverity.CHANGED,
                    )
                )
                step.model_version = -1
        return
    if config.default_model_filename == _DEFAULT_FILES.get(config.backend):
        config.default_model_filename = ""
    if not config.instance_group:
        config.instance_group.add(count=1)
    for group in config.instance_group:
        group.count = max(group.count, 1)
    if (
        config.WhichOneof("scheduling_choice") == "sequence_batching"
        and config.sequence_batching.WhichOneof("strategy_choice") is None
    ):
        config.sequence_batching.direct.SetInParent()


def drop_equivalent_policy(model: RepositoryModel) -> list[ImportNote]:
    """Remove a version policy that serves version 1 only, as no policy would; return a note."""
    policy = model.config.version_policy
    if (
        policy.WhichOneof("policy_choice") is None
        or not set(model.versions) <= {1}
        or not set(policy.specific.versions) <= {1}
    ):
        return []
    model.config.ClearField("version_policy")
    return [
        ImportNote(
            f"{model.origin}: version_policy",
            "removed, because the model has only version 1, which is served without it",
            NoteSeverity.INFO,
        )
    ]


def _remove_duplicates(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Remove tensors that are declared twice; Triton keeps the first of them, silently."""
    for kind in ("input", "output"):
        tensors = getattr(model.config, kind)
        names = [tensor.name for tensor in tensors]
        for index in reversed(range(len(names))):
            first = names.index(names[index])
            if names[index] and first != index:
                notes.append(
                    ImportNote(
                        f"{model.origin}: {kind}[{index}]",
                        f"{names[index]!r} is already declared in {kind}[{first}]; this "
                        "second declaration, which Triton ignores, was removed",
                        NoteSeverity.CHANGED,
                    )
                )
                del tensors[index]

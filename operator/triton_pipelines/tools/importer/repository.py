"""Read a local Triton model repository: models, configs, versions and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2

from triton_pipelines.api.tensors import DataType
from triton_pipelines.loader.onnx_file import OnnxFile, read_onnx

from .import_notes import ImportNote, ModelRepositoryError, NoteSeverity
from .textproto import read_config

CONFIG = "config.pbtxt"
CONFIGS = "configs"
_LEFT_OUT = ("__pycache__", ".git", ".ipynb_checkpoints")
# Default file of a version → platform and backend that Triton derives from it if the config has
# neither (core: model_config_utils.cc, AutoComplete).
_BY_FILE = {
    "model.onnx": ("onnxruntime_onnx", "onnxruntime"),
    "model.plan": ("tensorrt_plan", "tensorrt"),
    "model.pt": ("pytorch_libtorch", "pytorch"),
    "model.py": ("", "python"),
    "model.json": ("", "vllm"),
}
# Triton's max_batch_size for a model that sets none
# (--backend-config=default-max-batch-size).
_DEFAULT_BATCH = 4
_TYPES = {f"TYPE_{item.value}" for item in DataType}


@dataclass
class RepositoryModel:
    """One model: its config with Triton's defaults filled in, and its files."""

    name: str
    """Name of the model and of its folder."""
    folder: Path
    """Its folder."""
    config: Any
    """The ModelConfig."""
    origin: str
    """The config file, for messages."""
    versions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Version → files in the version's folder, relative to it."""
    other_files: tuple[str, ...] = ()
    """Files of the model's folder outside of versions and configs."""
    misplaced: Any = None
    """Batching of an ensemble, which Triton refuses."""

    @property
    def ensemble(self) -> bool:
        """Return whether it is an ensemble."""
        return bool(
            self.config.platform == "ensemble"
            or self.config.WhichOneof("scheduling_choice") == "ensemble_scheduling"
        )

    @property
    def backend(self) -> str:
        """Return the backend that runs it."""
        return str(self.config.backend)

    @property
    def latest(self) -> int | None:
        """Return the highest version; ``None`` if there is none."""
        return max(self.versions, default=None)

    def file(self, name: str) -> Path | None:
        """Return a file of the latest version; ``None`` if it is missing."""
        if self.latest is None or name not in self.versions[self.latest]:
            return None
        return self.folder / str(self.latest) / name

    def text(self, name: str) -> str | None:
        """Return the text of a file of the latest version; ``None`` if missing or not UTF-8."""
        path = self.file(name)
        try:
            return path.read_text(encoding="utf-8") if path is not None else None
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True)
class ModelRepository:
    """The models of a repository."""

    models: Mapping[str, RepositoryModel]
    """Models by name."""
    notes: tuple[ImportNote, ...]
    """Notes from reading them."""


def read_repository(
    folder: Path,
    values: Mapping[str, str] | None = None,
    config_name: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> ModelRepository:
    """Read every model of a repository.

    Args:
        folder: the model repository.
        values: values of templates (``${NAME}``) in configs.
        config_name: the config in ``configs/`` to use, as Triton's ``--model-config-name``.
        tell: called with the name of each model before it is read.

    Raises:
        ModelRepositoryError: the repository cannot be read; names file and field.
    """
    if not folder.is_dir():
        raise ModelRepositoryError(
            f"{folder}: is not a folder; give a Triton model repository,"
            " which has one folder per model"
        )
    models: dict[str, RepositoryModel] = {}
    notes: list[ImportNote] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith(".") and path.name not in _LEFT_OUT:
            tell(path.name)
            model = _model(path, values or {}, config_name, notes)
            if model is not None:
                models[model.name] = model
    if not models:
        one = (folder / CONFIG).is_file()
        hint = (
            f"; it is a single model: give the folder above it, {folder.resolve().parent}"
            if one
            else ""
        )
        raise ModelRepositoryError(
            f"{folder}: contains no model (a folder with {CONFIG} or a numbered version){hint}"
        )
    return ModelRepository(models, tuple(notes))


def _model(
    path: Path, values: Mapping[str, str], config_name: str | None, notes: list[ImportNote]
) -> RepositoryModel | None:
    versions = {
        int(entry.name): _files(entry)
        for entry in sorted(path.iterdir())
        if entry.is_dir() and entry.name.isdigit() and int(entry.name) > 0
    }
    file, origin = _config_file(path, config_name, notes)
    if file is None and not versions:
        notes.append(
            ImportNote(
                path.name,
                f"contains neither {CONFIG} nor a numbered version, so it is not a model"
                " and was skipped",
                NoteSeverity.INFO,
            )
        )
        return None
    config, misplaced = model_config_pb2.ModelConfig(), None
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelRepositoryError(f"{origin}: cannot be read: {error}") from error
        read = read_config(text, origin, values)
        config, misplaced = read.config, read.misplaced
        notes += read.notes
    if config.name and config.name != path.name:
        raise ModelRepositoryError(
            f"{origin}: name: {config.name!r} differs from the folder's name {path.name!r},"
            " so Triton does not load it; change one of them"
        )
    config.name = path.name
    own = {CONFIG, CONFIGS}
    other_files = tuple(
        name
        for name in _files(path)
        if name.split("/")[0] not in own and not name.split("/")[0].isdigit()
    )
    model = RepositoryModel(path.name, path, config, origin, versions, other_files, misplaced)
    if not model.ensemble:
        _complete(model, notes)
    _defaults(model, notes)
    return model


def _files(folder: Path) -> tuple[str, ...]:
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return tuple(
        str(path)
        for path in found
        if not set(path.parts) & set(_LEFT_OUT) and path.suffix != ".pyc"
    )


def _config_file(
    path: Path, config_name: str | None, notes: list[ImportNote]
) -> tuple[Path | None, str]:
    """Return the config that Triton uses and its name for messages."""
    plain = path / CONFIG
    named = sorted((path / CONFIGS).glob("*.pbtxt")) if (path / CONFIGS).is_dir() else []
    chosen = next((file for file in named if file.stem == config_name), None)
    if chosen is None and plain.is_file():
        if named:
            others = ", ".join(file.name for file in named)
            notes.append(
                ImportNote(
                    f"{path.name}/{CONFIGS}",
                    f"{CONFIG} is used; ignored: {others} (--config-name chooses one)",
                    NoteSeverity.INFO,
                )
            )
        chosen = plain
    if chosen is None and len(named) == 1:
        chosen = named[0]
    if chosen is None and named:
        listed = ", ".join(file.stem for file in named)
        raise ModelRepositoryError(
            f"{path.name}/{CONFIGS}: contains {listed} and there is no {CONFIG};"
            " choose one with --config-name"
        )
    return chosen, str(chosen.relative_to(path.parent)) if chosen is not None else path.name


def _complete(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Complete the config as Triton does from the files, as far as they can be read here."""
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
                f"{model.origin}: backend: is missing, and no file of the version folder"
                f" implies it ({', '.join(files) or 'it is empty'}); write it"
            )
        config.platform, config.backend = found
        notes.append(
            ImportNote(
                model.origin,
                f"backend {config.backend} is derived from {main}",
                NoteSeverity.INFO,
            )
        )
    # Only TensorFlow's platforms contain more than the backend's name.
    by_platform = {
        "onnxruntime_onnx": "onnxruntime",
        "tensorrt_plan": "tensorrt",
        "pytorch_libtorch": "pytorch",
    }
    config.backend = (
        config.backend
        or by_platform.get(config.platform)
        or ("tensorflow" if config.platform.startswith("tensorflow_") else config.platform)
    )
    if not config.platform:
        config.platform = {backend: platform for platform, backend in by_platform.items()}.get(
            config.backend, ""
        )
    if not (config.input and config.output) and config.backend == "onnxruntime":
        _from_graph(model, notes)
    for kind, tensors in (("input", config.input), ("output", config.output)):
        if not tensors and config.backend != "vllm":
            raise ModelRepositoryError(
                f"{model.origin}: {kind}: is missing, and {config.backend} models cannot be"
                " read here to complete it; copy it from the running server's"
                f" /v2/models/{model.name}/config"
            )


def _from_graph(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Complete inputs, outputs and batching from the ONNX file, as its backend does."""
    config, name = model.config, model.config.default_model_filename or "model.onnx"
    path = model.file(name)
    if path is None:
        raise ModelRepositoryError(
            f"{model.origin}: input: is missing, and so is"
            f" {model.name}/{model.latest or 1}/{name}, from which Triton would complete it"
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
            f"{model.name}/{model.latest}/{name}: {', '.join(odd)}: no shape, or a type that"
            f" Triton does not support; write input and output into {model.name}/{CONFIG}"
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
            f"inputs, outputs and batching were completed from {name}, as Triton does",
            NoteSeverity.INFO,
        )
    )


def _defaults(model: RepositoryModel, notes: list[ImportNote]) -> None:
    """Fill in Triton's defaults, so that both sides of a comparison have them."""
    config = model.config
    if model.ensemble:
        config.platform = "ensemble"
        for step in config.ensemble_scheduling.step:
            if step.model_version == 0:
                notes.append(
                    ImportNote(
                        f"{model.origin}: step {step.model_name}",
                        "without model_version Triton looks for version 0;"
                        " the latest version is used",
                        NoteSeverity.CHANGED,
                    )
                )
                step.model_version = -1
        return
    if not config.instance_group:
        config.instance_group.add(count=1)
    for group in config.instance_group:
        group.count = max(group.count, 1)
    if (
        config.WhichOneof("scheduling_choice") == "sequence_batching"
        and config.sequence_batching.WhichOneof("strategy_choice") is None
    ):
        config.sequence_batching.direct.SetInParent()

"""A Triton model repository on this machine: models, their configs, versions and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2

from triton_pipelines.api.tensors import DataType
from triton_pipelines.loader.onnx_file import OnnxFile, read_onnx

from .import_notes import ConfigError, Note, Weight
from .textproto import read_config

CONFIG = "config.pbtxt"
CONFIGS = "configs"
_LEFT_OUT = ("__pycache__", ".git", ".ipynb_checkpoints")
# Default file of a version → platform and backend that Triton takes from it where the config says neither (core: model_config_utils.cc, AutoComplete).
_BY_FILE = {
    "model.onnx": ("onnxruntime_onnx", "onnxruntime"),
    "model.plan": ("tensorrt_plan", "tensorrt"),
    "model.pt": ("pytorch_libtorch", "pytorch"),
    "model.py": ("", "python"),
    "model.json": ("", "vllm"),
}
# Triton's word for rows in a batch of a model that says nothing itself (--backend-config=default-max-batch-size).
_DEFAULT_BATCH = 4
_TYPES = {f"TYPE_{item.value}" for item in DataType}


@dataclass
class Model:
    """One model: its config with Triton's own defaults filled in, and its files.

    Attributes:
        name: folder, which is the model's name.
        origin: the config file as messages name it.
        versions: number → files of the version folder, relative to it.
        beside: files of the model's folder outside of versions and configs.
        misplaced: batching that stood on an ensemble, where Triton refuses it.
    """

    name: str
    folder: Path
    config: Any
    origin: str
    versions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    misplaced: Any = None

    @property
    def ensemble(self) -> bool:
        """Whether it is an ensemble."""
        return bool(
            self.config.platform == "ensemble"
            or self.config.WhichOneof("scheduling_choice") == "ensemble_scheduling"
        )

    @property
    def backend(self) -> str:
        """The backend that runs it."""
        return str(self.config.backend)

    @property
    def latest(self) -> int | None:
        """The highest version; None without any."""
        return max(self.versions, default=None)

    def file(self, name: str) -> Path | None:
        """A file of the latest version, where it is there."""
        if self.latest is None or name not in self.versions[self.latest]:
            return None
        return self.folder / str(self.latest) / name

    def text(self, name: str) -> str | None:
        """A text file of the latest version; None where it is not there or is no text."""
        path = self.file(name)
        try:
            return path.read_text(encoding="utf-8") if path is not None else None
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True)
class Repository:
    """All models by name, and what had to be said while reading them."""

    models: Mapping[str, Model]
    notes: tuple[Note, ...]


def read_repository(
    folder: Path,
    values: Mapping[str, str] | None = None,
    config_name: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Repository:
    """Every model of the repository at ``folder``.

    Args:
        folder: the model repository.
        values: what fills templates (``${NAME}``) in configs.
        config_name: the config of ``configs/`` that counts, as Triton's ``--model-config-name``.
        tell: told what is read.

    Raises :class:`ConfigError` with file and field.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: is no folder; give a Triton model repository, the folder that holds one folder per model"
        )
    models: dict[str, Model] = {}
    notes: list[Note] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith(".") and path.name not in _LEFT_OUT:
            tell(path.name)
            model = _model(path, values or {}, config_name, notes)
            if model is not None:
                models[model.name] = model
    if not models:
        one = (folder / CONFIG).is_file()
        hint = (
            f"; it is itself a model: give the folder above it, {folder.resolve().parent}"
            if one
            else ""
        )
        raise ConfigError(
            f"{folder}: holds no model (a folder with {CONFIG}, or with a numbered version){hint}"
        )
    return Repository(models, tuple(notes))


def _model(
    path: Path, values: Mapping[str, str], config_name: str | None, notes: list[Note]
) -> Model | None:
    versions = {
        int(entry.name): _files(entry)
        for entry in sorted(path.iterdir())
        if entry.is_dir() and entry.name.isdigit() and int(entry.name) > 0
    }
    file, origin = _config_file(path, config_name, notes)
    if file is None and not versions:
        notes.append(
            Note(
                path.name,
                f"holds neither {CONFIG} nor a numbered version, so it is no model and was passed over",
                Weight.INFO,
            )
        )
        return None
    config, misplaced = model_config_pb2.ModelConfig(), None
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{origin}: cannot be read: {error}") from error
        read = read_config(text, origin, values)
        config, misplaced = read.config, read.misplaced
        notes += read.notes
    if config.name and config.name != path.name:
        raise ConfigError(
            f"{origin}: name: {config.name!r} is not the folder's name {path.name!r}, so that Triton does not load it; write one for the other"
        )
    config.name = path.name
    own = {CONFIG, CONFIGS}
    beside = tuple(
        name
        for name in _files(path)
        if name.split("/")[0] not in own and not name.split("/")[0].isdigit()
    )
    model = Model(path.name, path, config, origin, versions, beside, misplaced)
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


def _config_file(path: Path, wanted: str | None, notes: list[Note]) -> tuple[Path | None, str]:
    """The config that counts and its name in messages."""
    plain = path / CONFIG
    named = sorted((path / CONFIGS).glob("*.pbtxt")) if (path / CONFIGS).is_dir() else []
    chosen = next((file for file in named if file.stem == wanted), None)
    if chosen is None and plain.is_file():
        if named:
            others = ", ".join(file.name for file in named)
            notes.append(
                Note(
                    f"{path.name}/{CONFIGS}",
                    f"{CONFIG} counts; not looked at: {others} (--config-name chooses one)",
                    Weight.INFO,
                )
            )
        chosen = plain
    if chosen is None and len(named) == 1:
        chosen = named[0]
    if chosen is None and named:
        listed = ", ".join(file.stem for file in named)
        raise ConfigError(
            f"{path.name}/{CONFIGS}: holds {listed} and there is no {CONFIG}; say which one counts with --config-name"
        )
    return chosen, str(chosen.relative_to(path.parent)) if chosen is not None else path.name


def _complete(model: Model, notes: list[Note]) -> None:
    """What Triton itself completes from the files, as far as they can be read here."""
    config = model.config
    if not config.backend and not config.platform:
        held = model.versions.get(model.latest or 0, ())
        main = config.default_model_filename or next(
            (name for name in _BY_FILE if name in held), ""
        )
        found = next(
            (
                made
                for name, made in _BY_FILE.items()
                if main and main.endswith(name.removeprefix("model"))
            ),
            None,
        )
        if found is None:
            raise ConfigError(
                f"{model.origin}: backend: is not there, and no file of the version folder tells it ({', '.join(held) or 'it is empty'}); write it"
            )
        config.platform, config.backend = found
        notes.append(
            Note(model.origin, f"backend {config.backend} follows from {main}", Weight.INFO)
        )
    # Only TensorFlow's platforms say more than the backend's name does.
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
            raise ConfigError(
                f"{model.origin}: {kind}: is not there, and {config.backend} models cannot be read here to complete it;"
                f" write what the running server says at /v2/models/{model.name}/config"
            )


def _from_graph(model: Model, notes: list[Note]) -> None:
    """Inputs, outputs and batching from the ONNX file, as the ONNX Runtime backend completes them."""
    config, name = model.config, model.config.default_model_filename or "model.onnx"
    path = model.file(name)
    if path is None:
        raise ConfigError(
            f"{model.origin}: input: is not there, and neither is {model.name}/{model.latest or 1}/{name}, from which Triton would complete it"
        )
    try:
        graph: OnnxFile = read_onnx(path)
    except ValueError as error:
        raise ConfigError(f"{model.name}/{model.latest}/{name}: {error}") from error
    tensors = (*graph.inputs, *graph.outputs)
    if odd := [
        tensor.name
        for tensor in tensors
        if tensor.dims is None or f"TYPE_{tensor.data_type}" not in _TYPES
    ]:
        raise ConfigError(
            f"{model.name}/{model.latest}/{name}: {', '.join(odd)}: no shape, or no type that Triton has; write input and output into {model.name}/{CONFIG}"
        )
    batched = all(tensor.dims and not isinstance(tensor.dims[0], int) for tensor in tensors)
    if not config.max_batch_size and batched and not (config.input or config.output):
        config.max_batch_size = _DEFAULT_BATCH
        if config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    for held, declared in ((graph.inputs, config.input), (graph.outputs, config.output)):
        if not declared:
            for tensor in held:
                dims = [
                    dim if isinstance(dim, int) else -1
                    for dim in (tensor.dims or ())[1 if config.max_batch_size else 0 :]
                ]
                declared.add(name=tensor.name, data_type=f"TYPE_{tensor.data_type}", dims=dims)
    notes.append(
        Note(
            model.origin,
            f"inputs, outputs and batching were completed from {name}, as Triton does it",
            Weight.INFO,
        )
    )


def _defaults(model: Model, notes: list[Note]) -> None:
    """What Triton means by what a config leaves out, so that both sides of a comparison say it."""
    config = model.config
    if model.ensemble:
        config.platform = "ensemble"
        for step in config.ensemble_scheduling.step:
            if step.model_version == 0:
                notes.append(
                    Note(
                        f"{model.origin}: step {step.model_name}",
                        "without model_version Triton looks for a version 0; the latest is meant",
                        Weight.CHANGED,
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

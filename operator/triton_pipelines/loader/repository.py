"""Write the model repository: the revision's files, empty folders and current instance counts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from triton_pipelines.api.loadplan import LoadPlan, LoadReason
from triton_pipelines.compile.model_config_proto import model_config_pb2
from triton_pipelines.loader.errors import LoaderError
from triton_pipelines.loader.files import write_atomically

_COUNT: Final = re.compile(r"(\binstance_group\b[^#]*?\bcount\s*:\s*)(\d+)", re.DOTALL)


def below(root: Path, path: str) -> Path:
    """Return ``root / path``.

    The file itself may be a link: the loader links files of mounted images.

    Raises:
        LoaderError: the path, or a folder in it that is a link, leaves ``root``.
    """
    target, top = root / path, root.resolve()
    place = Path(os.path.normpath(target.parent.resolve() / target.name))
    if not place.is_relative_to(top) or place == top:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR,
            (f"the load plan contains {path!r}, which is outside the model repository"),
        )
    return target


def prepare(root: Path, keep: Collection[Path], marker: Path) -> None:
    """Empty ``root`` except for ``keep`` (verified files of an earlier attempt).

    Args:
        root: the model repository.
        keep: files that stay.
        marker: exists if the loader has filled the folder before.

    Raises:
        LoaderError: the folder contains files that the loader did not write.
    """
    root.mkdir(parents=True, exist_ok=True)
    if not marker.exists() and any(root.iterdir()):
        raise LoaderError(
            LoadReason.INTERNAL_ERROR,
            f"{root} contains files that the loader did not write; use an empty directory",
        )
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    kept = {path.absolute() for path in keep}
    _empty(root.absolute(), kept, {parent for path in kept for parent in path.parents})


def _empty(folder: Path, kept: set[Path], parents: set[Path]) -> None:
    for path in folder.iterdir():
        if path.is_symlink() or path.is_file():
            if path not in kept:
                path.unlink()
        elif path in parents:
            _empty(path, kept, parents)
        else:
            shutil.rmtree(path)


def write_files(
    plan: LoadPlan,
    revision: Path,
    root: Path,
    counts: dict[str, int],
    places: Mapping[str, tuple[str, ...]],
) -> list[str]:
    """Write the plan's files to their places, and its folders.

    The config of a step with a live count gets that count.

    Returns:
        The counts that were changed, for the log.
    """
    planned = {item.path: item for item in plan.counts}
    changes = []
    for item in plan.files:
        try:
            data = (revision / item.key).read_bytes()
        except OSError as error:
            raise LoaderError(
                LoadReason.INTERNAL_ERROR,
                f"the revision's ConfigMap has no key {item.key}: {error.strerror}",
            ) from error
        if (count := planned.get(item.path)) is not None:
            number = count.clamp(counts.get(count.step))
            text = data.decode()
            changed = with_count(text, number, item.path)
            if changed != text:
                changes.append(f"{item.path}: {number} instances")
                data = changed.encode()
        for place in places[item.path]:
            write_atomically(below(root, place), data)
    for folder in plan.empty_dirs:
        below(root, folder).mkdir(parents=True, exist_ok=True)
    return changes


def with_count(config: str, count: int, path: str) -> str:
    """Return a config with ``instance_group.count`` set and nothing else changed.

    Args:
        config: a ModelConfig in text format; all other bytes stay the same.
        count: the number of instances.
        path: the config's path, for messages.

    Raises:
        LoaderError: the config has several instance groups, or none.
    """
    message = _parse(config, path)
    if len(message.instance_group) != 1:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR,
            f"{path} has {len(message.instance_group)} instance groups, but live scaling "
            "requires one; declare one group",
        )
    if message.instance_group[0].count == count:
        return config
    message.instance_group[0].count = count
    changed = _COUNT.sub(lambda match: f"{match[1]}{count}", config, count=1)
    # The pattern is a guess about the layout; the parsed message decides.
    return (
        changed
        if _parse(changed, path) == message
        else str(text_format.MessageToString(message, as_utf8=True))
    )


def runs_on_cpu(models: Path, model: str) -> bool:
    """Return whether all instances of a model run on CPUs, by its configuration.

    Args:
        models: the model repository.
        model: name of the model, which is the name of its folder.

    Raises:
        LoaderError: the configuration is not valid.
    """
    path = f"{model}/config.pbtxt"
    file = below(models, path)
    if not file.is_file():
        return False
    groups = _parse(file.read_text(encoding="utf-8"), path).instance_group
    cpu = model_config_pb2.ModelInstanceGroup.KIND_CPU
    return bool(groups) and all(group.kind == cpu for group in groups)


def _parse(config: str, path: str) -> model_config_pb2.ModelConfig:
    try:
        return text_format.Parse(config, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR, f"{path} is not a valid model configuration: {error}"
        ) from error

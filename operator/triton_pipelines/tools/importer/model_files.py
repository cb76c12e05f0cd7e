"""Files of an imported model: which become sources, and code that stands in the resource itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton_pipelines.api.python import MAX_FILES
from triton_pipelines.compile.graph.defaults import (
    ENVIRONMENT_PARAMETER,
    STRATEGY_FILE,
    STRATEGY_PARAMETER,
    VERSION_FOLDER,
)
from triton_pipelines.loader.onnx_file import read_onnx

from .file_digest import sha256_of
from .import_notes import ConfigError, Report
from .repository import Model
from .source_placement import located

# Longest code that a resource carries itself (api: Code.inline), in characters.
INLINE_LIMIT = 65536
CODE = "model.py"
_SHOWN = 6
_MODEL_FOLDER = "$$TRITON_MODEL_DIRECTORY/"
Meter = Callable[[str, int], Callable[[int], None]]


@dataclass(frozen=True)
class Files:
    """How files of the repository are named in the resource.

    Attributes:
        prefix: where the repository's folder will lie (``--source-uri``).
        report: gets what cannot be carried over.
        meter: progress of reading a file of so many bytes.
    """

    prefix: str
    report: Report
    meter: Meter

    def one(self, model: Model, place: str) -> dict[str, Any]:
        """The source of one file of a model's folder, with its digest where the file is there."""
        source = located(self.prefix, f"{model.name}/{place}")
        path = model.folder / place
        if not path.is_file():
            self.report.info(
                model.origin,
                f"{model.name}/{place} is not in the folder; it has to be at {source['uri']}",
            )
            return source
        return {
            **source,
            "sha256": sha256_of(
                path, self.meter(f"reading {model.name}/{place}", path.stat().st_size)
            ),
        }

    def folder(self, model: Model) -> dict[str, Any]:
        """The source that is a model's whole folder."""
        return located(self.prefix, f"{model.name}/")

    def main(self, model: Model, default: str, *, versions: bool) -> dict[str, Any]:
        """The source of a model's file: the file alone where that is all there is, else the folder.

        ``default`` is Triton's name of that file, ``versions`` whether the numbers of versions count.
        """
        name = model.config.default_model_filename or default
        if self.plain(model, name, default) and not versions:
            return self.one(model, f"{VERSION_FOLDER}/{name}")
        source = self.folder(model)
        return source if name == default else {**source, "fileName": name}

    @staticmethod
    def plain(model: Model, name: str, default: str) -> bool:
        """Whether version 1 holds this file, and data that an ONNX file names, and nothing else is there."""
        if name != default or set(model.versions) - {1}:
            return False
        held = set(model.versions.get(1, ())) - {name}
        path = model.folder / VERSION_FOLDER / name
        if held and name.endswith(".onnx") and path.is_file():
            try:
                held -= set(read_onnx(path).side_files)
            except ValueError as error:
                raise ConfigError(f"{model.name}/{VERSION_FOLDER}/{name}: {error}") from error
        return not held

    def python(self, model: Model, path: str, *, versions: bool) -> dict[str, Any]:
        """``python`` of a model with own code; ``path`` is the field of the resource that it becomes."""
        config = model.config
        made: dict[str, Any] = {}
        environment = (
            config.parameters[ENVIRONMENT_PARAMETER].string_value
            if ENVIRONMENT_PARAMETER in config.parameters
            else ""
        )
        inside = (
            environment.removeprefix(_MODEL_FOLDER) if environment.startswith(_MODEL_FOLDER) else ""
        )
        held = [name for name in model.versions.get(model.latest or 0, ()) if name != CODE]
        text = model.text(CODE)
        if (
            versions
            or set(model.versions) - {1}
            or len(held) > MAX_FILES
            or any("/" in name for name in held)
        ):
            made["code"] = {"source": self.folder(model)}
        elif text is not None and text and len(text) < INLINE_LIMIT and _writable(text):
            made["code"] = {"inline": text}
        else:
            if text == "":
                self.report.changed(
                    f"{model.name}/{VERSION_FOLDER}/{CODE}", "is empty", f"{path}.code"
                )
            made["code"] = {"source": self.one(model, f"{VERSION_FOLDER}/{CODE}")}
        if held and made["code"].get("source") != self.folder(model):
            made["files"] = [
                {"source": self.one(model, f"{VERSION_FOLDER}/{name}"), "path": name}
                for name in held
            ]
        if inside and (inside.endswith((".tar.gz", ".tgz")) or (model.folder / inside).is_file()):
            made["environment"] = {"source": self.one(model, inside)}
        elif environment:
            self.report.info(
                f"{model.origin}: parameters[{ENVIRONMENT_PARAMETER}]",
                f"names {environment}, which the server's image has to bring",
            )
        return made

    def strategy(self, model: Model) -> dict[str, Any] | None:
        """``batchStrategy``; None where the model has no batching library."""
        if STRATEGY_PARAMETER in model.config.parameters:
            value = model.config.parameters[STRATEGY_PARAMETER].string_value
            _, found, inside = value.partition(f"/{model.name}/")
            if found and "/" not in inside and (model.folder / inside).is_file():
                return {"source": self.one(model, inside)}
            if found:
                return {"path": inside}
        place = next(
            (
                name
                for name in (STRATEGY_FILE, f"{VERSION_FOLDER}/{STRATEGY_FILE}")
                if (model.folder / name).is_file()
            ),
            None,
        )
        return {"source": self.one(model, place)} if place is not None else None

    def beside(self, model: Model, path: str) -> None:
        """Say which files of the model's folder are not laid out: those that lie beside the versions and are nothing that is known."""
        held = {key: value.string_value for key, value in model.config.parameters.items()}
        environment, library = held.get(ENVIRONMENT_PARAMETER, ""), held.get(STRATEGY_PARAMETER, "")
        known = {
            environment.removeprefix(_MODEL_FOLDER).split("/")[0],
            library.rpartition("/")[2],
            STRATEGY_FILE,
        }
        labels = {output.label_filename for output in model.config.output if output.label_filename}
        for output in model.config.output:
            output.label_filename = ""
        if labels:
            self.report.lost(
                f"{model.origin}: output.label_filename",
                f"{', '.join(sorted(labels))}: label files lie beside the version folders and are not laid out; labels of the postprocess name classes to clients",
                f"{path}.outputs",
            )
        if left := [
            name for name in model.beside if name.split("/")[0] not in known and name not in labels
        ]:
            listed = ", ".join(left[:_SHOWN]) + (
                f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            )
            self.report.lost(
                model.name,
                f"{listed}: beside the version folders nothing is laid out; move what the model needs into its version folder",
                path,
            )


def _writable(text: str) -> bool:
    """Whether YAML can hold it as a block that people can read."""
    return all(character in "\n\t" or character.isprintable() for character in text)

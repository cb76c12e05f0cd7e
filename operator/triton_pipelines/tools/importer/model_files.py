"""Files of an imported model: sources, and code that is written into the resource."""

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
from .import_notes import ImportReport, ModelRepositoryError
from .repository import RepositoryModel
from .source_placement import located

# Longest inline code in a resource (api: Code.inline), in characters.
INLINE_LIMIT = 65536
CODE = "model.py"
_SHOWN = 6
_MODEL_FOLDER = "$$TRITON_MODEL_DIRECTORY/"
FileProgress = Callable[[str, int], Callable[[int], None]]


@dataclass(frozen=True)
class FileSources:
    """Sources for the files of a repository."""

    prefix: str
    """Source address of the repository's folder (``--source-uri``)."""
    report: ImportReport
    """Gets notes on what cannot be carried over."""
    meter: FileProgress
    """Returns a progress callback for reading a file of the given number of bytes."""

    def one(self, model: RepositoryModel, place: str) -> dict[str, Any]:
        """Return the source of a file in a model's folder, with its digest if the file exists."""
        source = located(self.prefix, f"{model.name}/{place}")
        path = model.folder / place
        if not path.is_file():
            self.report.info(
                model.origin,
                f"{model.name}/{place} is missing in the folder; it has to be at {source['uri']}",
            )
            return source
        return {
            **source,
            "sha256": sha256_of(
                path, self.meter(f"reading {model.name}/{place}", path.stat().st_size)
            ),
        }

    def folder(self, model: RepositoryModel) -> dict[str, Any]:
        """Return the source for a model's whole folder."""
        return located(self.prefix, f"{model.name}/")

    def main(self, model: RepositoryModel, default: str, *, versions: bool) -> dict[str, Any]:
        """Return the source of a model: its file if there is nothing else, else its folder.

        Args:
            model: the model.
            default: Triton's default name of the file.
            versions: whether the version numbers matter.
        """
        name = model.config.default_model_filename or default
        if self.has_only(model, name, default) and not versions:
            return self.one(model, f"{VERSION_FOLDER}/{name}")
        source = self.folder(model)
        return source if name == default else {**source, "fileName": name}

    @staticmethod
    def has_only(model: RepositoryModel, name: str, default: str) -> bool:
        """Return whether version 1 only has this file, and data that an ONNX file refers to."""
        if name != default or set(model.versions) - {1}:
            return False
        others = set(model.versions.get(1, ())) - {name}
        path = model.folder / VERSION_FOLDER / name
        if others and name.endswith(".onnx") and path.is_file():
            try:
                others -= set(read_onnx(path).side_files)
            except ValueError as error:
                raise ModelRepositoryError(
                    f"{model.name}/{VERSION_FOLDER}/{name}: {error}"
                ) from error
        return not others

    def python(self, model: RepositoryModel, path: str, *, versions: bool) -> dict[str, Any]:
        """Return ``python`` of a model with custom code.

        Args:
            model: the model.
            path: field of the resource that it becomes.
            versions: whether the version numbers matter.
        """
        config = model.config
        fields: dict[str, Any] = {}
        environment = (
            config.parameters[ENVIRONMENT_PARAMETER].string_value
            if ENVIRONMENT_PARAMETER in config.parameters
            else ""
        )
        inside = (
            environment.removeprefix(_MODEL_FOLDER) if environment.startswith(_MODEL_FOLDER) else ""
        )
        others = [name for name in model.versions.get(model.latest or 0, ()) if name != CODE]
        text = model.text(CODE)
        if (
            versions
            or set(model.versions) - {1}
            or len(others) > MAX_FILES
            or any("/" in name for name in others)
        ):
            fields["code"] = {"source": self.folder(model)}
        elif text is not None and text and len(text) < INLINE_LIMIT and _writable(text):
            fields["code"] = {"inline": text}
        else:
            if text == "":
                self.report.changed(
                    f"{model.name}/{VERSION_FOLDER}/{CODE}", "is empty", f"{path}.code"
                )
            fields["code"] = {"source": self.one(model, f"{VERSION_FOLDER}/{CODE}")}
        if others and fields["code"].get("source") != self.folder(model):
            fields["files"] = [
                {"source": self.one(model, f"{VERSION_FOLDER}/{name}"), "path": name}
                for name in others
            ]
        if inside and (inside.endswith((".tar.gz", ".tgz")) or (model.folder / inside).is_file()):
            fields["environment"] = {"source": self.one(model, inside)}
        elif environment:
            self.report.info(
                f"{model.origin}: parameters[{ENVIRONMENT_PARAMETER}]",
                f"refers to {environment}, which has to be in the server's image",
            )
        return fields

    def strategy(self, model: RepositoryModel) -> dict[str, Any] | None:
        """Return ``batchStrategy``; ``None`` if the model has no batching library."""
        if STRATEGY_PARAMETER in model.config.parameters:
            value = model.config.parameters[STRATEGY_PARAMETER].string_value
            _, separator, inside = value.partition(f"/{model.name}/")
            if separator and "/" not in inside and (model.folder / inside).is_file():
                return {"source": self.one(model, inside)}
            if separator:
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

    def report_other_files(self, model: RepositoryModel, path: str) -> None:
        """Report files next to the version folders: they are not deployed."""
        parameters = {key: value.string_value for key, value in model.config.parameters.items()}
        environment, library = (
            parameters.get(ENVIRONMENT_PARAMETER, ""),
            parameters.get(STRATEGY_PARAMETER, ""),
        )
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
                f"{', '.join(sorted(labels))}: label files next to the version folders are not"
                " deployed; set labels in postprocess instead",
                f"{path}.outputs",
            )
        if unknown_files := [
            name
            for name in model.other_files
            if name.split("/")[0] not in known and name not in labels
        ]:
            listed = ", ".join(unknown_files[:_SHOWN]) + (
                f" and {len(unknown_files) - _SHOWN} more" if len(unknown_files) > _SHOWN else ""
            )
            self.report.lost(
                model.name,
                f"{listed}: files next to the version folders are not deployed;"
                " move what the model needs into its version folder",
                path,
            )


def _writable(text: str) -> bool:
    """Return whether YAML can hold it as a readable block."""
    return all(character in "\n\t" or character.isprintable() for character in text)

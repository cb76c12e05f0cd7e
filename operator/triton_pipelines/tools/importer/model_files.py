"""Files of an imported model: sources, and code that is written into the resource."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_pipelines.api.python import MAX_FILES
from triton_pipelines.api.wording import first_of
from triton_pipelines.compile.graph.defaults import (
    ENVIRONMENT_PARAMETER,
    STRATEGY_FILE,
    STRATEGY_PARAMETER,
    VERSION_FOLDER,
)
from triton_pipelines.loader.onnx_file import read_onnx

from .file_digest import sha256_of
from .import_notes import ImportReport, InexpressibleRepositoryError, ModelRepositoryError
from .python_imports import imported_packages
from .repository import RepositoryModel
from .repository_layout import version_of
from .source_placement import located

# Longest inline code in a resource (api: Code.inline), in characters.
INLINE_LIMIT = 65536
CODE = "model.py"
# Most code in one resource, in bytes of JSON (api.spec_size: MAX_SPEC_BYTES for the whole).
_INLINE_TOTAL = 200_000
# Most Python files of one model in which imports are searched.
_PARSED = 200
# A file next to model.py that python.files can name (api: SideFile.path), not in a folder.
_PLAIN_NAME = r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,254}"
_ARCHIVES = (".tar.gz", ".tgz")
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
    inlined: list[int] = field(default_factory=list)
    """Gets the size of each code that is written into the resource, in bytes of JSON."""

    def one(self, model: RepositoryModel, place: str) -> dict[str, Any]:
        """Return the source of a file in a model's folder, with its digest if the file exists."""
        return self._source(model.folder / place, f"{model.name}/{place}", model.origin)

    def _source(self, path: Path, place: str, origin: str) -> dict[str, Any]:
        """Return the source of a file by its path below the repository."""
        source = located(self.prefix, place)
        if not path.is_file():
            self.report.info(origin, f"{place} is missing; upload the file to {source['uri']}")
            return source
        digest = sha256_of(path, self.meter(f"reading {place}", path.stat().st_size))
        return {**source, "sha256": digest}

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
        main = self._code_file(model)
        others = [name for name in model.versions.get(model.latest or 0, ()) if name != main]
        fields: dict[str, Any] = {}
        if (
            versions
            or set(model.versions) - {1}
            or len(others) >= MAX_FILES
            or not all(re.fullmatch(_PLAIN_NAME, name) for name in others)
        ):
            named = {} if main == CODE else {"fileName": main}
            fields["code"] = {"source": self.folder(model) | named}
        else:
            fields["code"] = self._code(model, main, f"{path}.code")
            if others:
                fields["files"] = [
                    {"source": self.one(model, f"{VERSION_FOLDER}/{name}"), "path": name}
                    for name in others
                ]
        if ENVIRONMENT_PARAMETER in model.config.parameters:
            self._add_environment(model, fields, path)
        else:
            self._report_packages(model, main, path)
        return fields

    def _code_file(self, model: RepositoryModel) -> str:
        """Return the name of the file with the code; it becomes ``model.py``."""
        main = str(model.config.default_model_filename) or CODE
        if main != CODE and any(CODE in names for names in model.versions.values()):
            raise InexpressibleRepositoryError(
                f"{model.origin}: default_model_filename: the code is in {main}, but the "
                f"operator would store it as {CODE}, which also exists; rename {CODE}"
            )
        if main != CODE:
            model.config.default_model_filename = ""
            self.report.info(
                f"{model.origin}: default_model_filename",
                f"{main} becomes {CODE}, where Triton finds it without this field",
            )
        return main

    def _code(self, model: RepositoryModel, main: str, path: str) -> dict[str, Any]:
        """Return ``python.code`` of a single file: inline if it is short enough."""
        text = model.text(main)
        if text and len(text) < INLINE_LIMIT and _writable(text):
            size = len(json.dumps(text))
            if sum(self.inlined) + size <= _INLINE_TOTAL:
                self.inlined.append(size)
                return {"inline": text}
        if text == "":
            self.report.changed(f"{model.name}/{VERSION_FOLDER}/{main}", "is empty", path)
        return {"source": self.one(model, f"{VERSION_FOLDER}/{main}")}

    def _add_environment(self, model: RepositoryModel, fields: dict[str, Any], path: str) -> None:
        """Add the Python environment that ``EXECUTION_ENV_PATH`` names: an archive or a folder."""
        parameter = model.config.parameters[ENVIRONMENT_PARAMETER]
        value, where = (
            parameter.string_value,
            f"{model.origin}: parameters[{ENVIRONMENT_PARAMETER}]",
        )
        if not value.startswith(_MODEL_FOLDER):
            self.report.info(where, f"{value!r} must exist in the server's image")
            return
        inside = value.removeprefix(_MODEL_FOLDER).rstrip("/")
        place = posixpath.normpath(f"{model.name}/{inside}")
        folder = model.folder.parent / place
        first = posixpath.relpath(place, model.name).split("/")[0]
        if version_of(first) in model.versions and "source" in fields["code"]:
            return  # The version folders are deployed as they are.
        if place.startswith("..") or not (folder.exists() or inside.endswith(_ARCHIVES)):
            self.report.lost(
                where,
                f"{value!r} is not in the repository; add the environment to the "
                f"repository, or set {path}.environment",
                path,
            )
        elif not folder.is_dir():
            fields["environment"] = {"source": self._source(folder, place, model.origin)}
        else:
            self._add_environment_folder(model, fields, place, path)

    def _add_environment_folder(
        self, model: RepositoryModel, fields: dict[str, Any], place: str, path: str
    ) -> None:
        """Add an unpacked environment as a folder next to the code."""
        parameter = model.config.parameters[ENVIRONMENT_PARAMETER]
        name = posixpath.basename(place)
        name = name if re.fullmatch(_PLAIN_NAME, name) else "environment"
        version = model.latest or 1
        before = parameter.string_value
        parameter.string_value = f"{_MODEL_FOLDER}{version}/{name}"
        fields.setdefault("files", []).append(
            {"source": located(self.prefix, f"{place}/"), "path": name}
        )
        self.report.info(
            f"{model.origin}: parameters[{ENVIRONMENT_PARAMETER}]",
            f"{before} becomes {parameter.string_value}, where the operator stores that "
            "directory; resolve its links when you upload the directory, or pack it as "
            ".tar.gz with conda-pack",
            f"{path}.files",
        )

    def _report_packages(self, model: RepositoryModel, main: str, path: str) -> None:
        """Report which packages the code imports, unless it has a Python environment."""
        latest = model.latest or 1
        names = [name for name in model.versions.get(latest, ()) if name.endswith(".py")]
        texts = {name: model.text(name) or "" for name in names[:_PARSED]}
        if packages := imported_packages(texts | ({main: model.text(main) or ""})):
            self.report.info(
                f"{model.name}/{latest}/{main}",
                f"the code imports {', '.join(packages)}; use a server image that contains "
                f"these packages, or set {path}.environment to a Python environment that "
                "contains them",
                path,
            )

    def strategy(self, model: RepositoryModel, *, has_folder: bool) -> dict[str, Any] | None:
        """Return ``batchStrategy``; ``None`` if the model has no batching library.

        Args:
            model: the model.
            has_folder: whether the step's source is the model's folder.
        """
        config = model.config
        used = config.WhichOneof("scheduling_choice") == "dynamic_batching" and (
            config.max_batch_size > 0
        )
        where = f"{model.origin}: parameters[{STRATEGY_PARAMETER}]"
        if STRATEGY_PARAMETER in config.parameters:
            value = config.parameters[STRATEGY_PARAMETER].string_value
            _, separator, inside = value.partition(f"/{model.name}/")
            if used and separator and (model.folder / inside).is_file():
                return {"source": self.one(model, inside)}
            if used and separator and has_folder:
                return {"path": inside}
            del config.parameters[STRATEGY_PARAMETER]
            if not used:
                self.report.info(
                    where, "removed, because it has no effect without dynamic_batching"
                )
                return None
            self.report.lost(
                where,
                f"{value!r} is not in the model's directory; copy the library to "
                f"{model.name}/{STRATEGY_FILE}, where Triton finds it without the parameter",
            )
        place = next(
            (
                name
                for name in (STRATEGY_FILE, f"{VERSION_FOLDER}/{STRATEGY_FILE}")
                if used and (model.folder / name).is_file()
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
                f"{', '.join(sorted(labels))}: label files next to the version directories "
                "are not deployed; set labels in postprocess instead",
                f"{path}.outputs",
            )
        if unknown_files := [
            name
            for name in model.other_files
            if name.split("/")[0] not in known and name not in labels
        ]:
            self.report.lost(
                model.name,
                f"{first_of(unknown_files, _SHOWN)}: files next to the version directories are "
                "not deployed; move what the model needs into its version directory",
                path,
            )


def _writable(text: str) -> bool:
    """Return whether YAML can hold it as a readable block."""
    return all(character in "\n\t" or character.isprintable() for character in text)

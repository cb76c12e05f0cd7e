"""How a python step runs.

It runs custom code with its side files and environment, or a runner that comes with the operator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, DataKey, FieldRule, ObjectName
from .source import ModelSource, SourceSpec
from .tensors import ATOMIC

MAX_FILES = 16
SIDE_PATH_PATTERN = r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$"


class Runner(StrEnum):
    """Custom python-backend runners that come with the operator."""

    ONNX_RUNTIME = "OnnxRuntime"


class ConfigMapKey(ApiModel):
    """A key of a ConfigMap in the pipeline's namespace."""

    name: Annotated[ObjectName, Field(description="Name of the ConfigMap.")]
    key: Annotated[DataKey, Field(description="Key in the ConfigMap that contains the text.")] = (
        "model.py"
    )


class Code(ApiModel):
    """Custom code of a Python step: a complete Triton model.py.

    It runs with the permissions of the pod; the operator can forbid it.
    """

    inline: Annotated[
        str | None, Field(min_length=1, max_length=65536, description="Source code of model.py.")
    ] = None
    config_map_key_ref: Annotated[
        ConfigMapKey | None,
        Field(
            description=(
                "Key of a ConfigMap that contains the code. A change to it creates a new revision."
            )
        ),
    ] = None
    source: Annotated[
        ModelSource | None,
        Field(
            description=(
                "A file that contains the code, or a directory that contains model.py and the "
                "modules that it imports."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel=(
                "(has(self.inline) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0) +"
                " (has(self.source) ? 1 : 0) == 1"
            ),
            message="exactly one of code.inline, code.configMapKeyRef and code.source is required",
            holds=lambda c: [c.inline, c.config_map_key_ref, c.source].count(None) == 2,
        ),
    )


class SideFile(ApiModel):
    """A file or directory stored next to model.py."""

    source: Annotated[SourceSpec, Field(description="A file or directory.")]
    path: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            pattern=SIDE_PATH_PATTERN,
            description=(
                "Path relative to the directory of model.py. Required for a directory. Default: "
                "the file name."
            ),
        ),
    ] = None


class Environment(ApiModel):
    """Python packages of a step: a packed environment for the Python of the server image."""

    source: Annotated[
        SourceSpec,
        Field(
            description=(
                "A .tar.gz archive created with conda-pack. Its Python version must match the"
                " image's: 3.10 for Triton up to 24.10, 3.12 for 24.12 and later."
            )
        ),
    ]


class CodeParts(ApiModel):
    """Custom code of a python step, with the files and packages that it needs."""

    code: Annotated[Code | None, Field(description="A custom model.py.")] = None
    files: Annotated[
        tuple[SideFile, ...],
        Field(
            max_length=MAX_FILES,
            description="Files that the code needs: vocabularies, tables, helper modules.",
            json_schema_extra=ATOMIC,
        ),
    ] = ()
    environment: Annotated[
        Environment | None,
        Field(
            description=(
                "A packed Python environment. Nothing is installed when a pod starts. Default: "
                "the Python installation of the image."
            )
        ),
    ] = None


class CustomCode(CodeParts):
    """How a step with custom code runs."""

    code: Annotated[Code, Field(description="A custom model.py.")]


class Python(CodeParts):
    """How a Python step runs: custom code, or one of the operator's runners."""

    runner: Annotated[
        Runner | None,
        Field(
            description=(
                "OnnxRuntime runs an ONNX file with the onnxruntime package of the server image."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel="has(self.code) != has(self.runner)",
            message="exactly one of python.code and python.runner is required",
            holds=lambda p: (p.code is None) != (p.runner is None),
        ),
    )

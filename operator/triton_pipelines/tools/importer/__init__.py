"""Derive a resource from existing files.

The files are an ONNX model with its tokenizer (:func:`draft`, ``tritonpipe init``), or a Triton
model repository (:func:`read_repository` and :func:`import_models`, ``tritonpipe import``).
"""

from __future__ import annotations

from . import model_facts
from .assemble import import_models
from .file_digest import sha256_of
from .from_onnx import DraftInputs, MissingInformationError, draft
from .hub_files import HubError, HubFiles
from .import_notes import ImportReport, InexpressibleRepositoryError, ModelRepositoryError
from .repository_reader import read_repository
from .source_placement import PLACEHOLDER, located
from .yaml_document import AMBIGUOUS, ResourceDraft, slug

__all__ = [
    "AMBIGUOUS",
    "PLACEHOLDER",
    "DraftInputs",
    "HubError",
    "HubFiles",
    "ImportReport",
    "InexpressibleRepositoryError",
    "MissingInformationError",
    "ModelRepositoryError",
    "ResourceDraft",
    "draft",
    "import_models",
    "located",
    "model_facts",
    "read_repository",
    "sha256_of",
    "slug",
]

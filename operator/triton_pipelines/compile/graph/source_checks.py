"""What can be told of a source before it is fetched: the file it names, and what is wrong with its address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.python import CodeParts
from triton_pipelines.api.source import OCI_REFERENCE_PATTERN, ModelSource, SourceSpec
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .defaults import ENVIRONMENT_FILE, TOKENIZER, VERSION_FOLDER
from .graph import Fetch

# Whose web pages are no files; of a repository, the scheme hf reads.
HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
# What a source must not bring: the renderer writes this file.
RESERVED_FILES = ("model.py",)
# What `tritonpipe init` and `tritonpipe import` write where nobody has said where files will lie: a claim of the pipeline's own namespace, so that
# a resource that is applied as it is never reaches for somebody else's files.
PLACEHOLDER = "pvc://replace-me"


def tokenizer_fetches(spec: PipelineSpec) -> tuple[Fetch, ...]:
    """The tokenizer's own source: tokenizer.json, or for own code whatever lies there."""
    tokenizer = spec.tokenizer
    assert tokenizer is not None
    source, path = (
        (tokenizer.source, "spec.tokenizer.source")
        if tokenizer.source
        else (spec.source, "spec.source")
    )
    folder = f"{tokenizer.model_name}/{VERSION_FOLDER}"
    if tokenizer.python is not None:
        # Own code brings what it needs; the pipeline's common folder is not forced on it.
        return (
            (side_source(TOKENIZER, folder, tokenizer.source, "spec.tokenizer.source"),)
            if tokenizer.source
            else ()
        )
    if source is None:
        return ()
    return (Fetch(TOKENIZER, "", source, path, FetchKind.TOKENIZER, f"{folder}/tokenizer.json"),)


def side_source(step: str, folder: str, source: SourceSpec, path: str) -> Fetch:
    """The source of a step with own code: one file beside model.py, or all that a folder holds."""
    if not names_file(source):
        return Fetch(step, "", source, path, FetchKind.FOLDER, folder)
    return Fetch(step, "", source, path, FetchKind.FILE, f"{folder}/{file_name_of(source)}")


def code_of(python: CodeParts | None) -> str | None:
    """The code that stands in the resource itself."""
    return python.code.inline if python is not None and python.code is not None else None


def python_fetches(step: str, model_name: str, python: CodeParts, path: str) -> tuple[Fetch, ...]:
    """Sources of own code: the code, its side files, its packed environment."""
    folder = f"{model_name}/{VERSION_FOLDER}"
    result: list[Fetch] = []
    code = python.code
    if code is not None and code.config_map_key_ref is not None:
        reference = code.config_map_key_ref
        uri = SourceSpec(uri=f"configmap://{reference.name}/{reference.key}")
        result.append(
            Fetch(
                step,
                "code",
                uri,
                f"{path}.code.configMapKeyRef",
                FetchKind.FILE,
                f"{folder}/model.py",
            )
        )
    if code is not None and code.source is not None:
        where = f"{path}.code.source"
        if not names_file(code.source):
            result.append(
                Fetch(
                    step,
                    "code",
                    code.source,
                    where,
                    FetchKind.MODEL,
                    model_name,
                    "model.py",
                    code.source.file_name,
                    whole=True,
                )
            )
        else:
            result.append(
                Fetch(step, "code", code.source, where, FetchKind.FILE, f"{folder}/model.py")
            )
    for index, side in enumerate(python.files):
        single = names_file(side.source)
        name = side.path or (file_name_of(side.source) if single else None)
        where = f"{path}.files[{index}].source"
        target = f"{folder}/{name}" if name else folder
        result.append(
            Fetch(
                step,
                f"file-{index}",
                side.source,
                where,
                FetchKind.FILE if single else FetchKind.FOLDER,
                target,
            )
        )
    if python.environment is not None:
        source = python.environment.source
        result.append(
            Fetch(
                step,
                "env",
                source,
                f"{path}.environment.source",
                FetchKind.FILE,
                f"{model_name}/{ENVIRONMENT_FILE}",
            )
        )
    return tuple(result)


def file_name_of(source: SourceSpec) -> str | None:
    """The name of the file that a source names, or ``None`` where it names a folder."""
    if source.path is not None:
        return source.path.rsplit("/", 1)[-1] or None
    scheme, _, rest = source.uri.partition("://")
    if scheme == "https":
        return unquote(urlsplit(source.uri).path).rsplit("/", 1)[-1] or None
    if scheme == "oci":
        return None
    parts = rest.partition("@")[0].split("/") if scheme == "hf" else rest.split("/")
    folder = {"hf": 2, "az": 2}.get(scheme, 1)
    return parts[-1] or None if len(parts) > folder else None


def names_file(source: SourceSpec) -> bool:
    """Whether a source names one file rather than a folder: the last part of its address has an ending."""
    name = file_name_of(source)
    return name is not None and "." in name.strip(".")


def check_source(source: SourceSpec, path: str) -> Iterator[Finding]:
    """What keeps this address from ever being fetched, or would show a secret."""
    scheme, _, rest = source.uri.partition("://")
    if source.path is not None and not _is_normal(source.path):
        yield Finding(
            f"{path}.path",
            f"{source.path!r} must be a plain path inside the source, such as onnx/model.onnx: no '..', '.', '//' or backslash",
            code=FindingCode.INVALID_SOURCE,
        )
    if scheme == "https":
        address = rest.split("/", 1)[0]
        if "@" in address:
            yield Finding(
                f"{path}.uri",
                "carries a user or password, which everyone who reads the resource would see; put them into a Secret and name it in secretRef",
                code=FindingCode.CREDENTIALS_IN_URI,
            )
        elif not address:
            yield Finding(
                f"{path}.uri",
                "names no host; write https://host/file",
                code=FindingCode.INVALID_SOURCE,
            )
        elif address in HUB_HOSTS and "/resolve/" not in rest:
            name = "/".join(rest.split("/")[1:3])
            yield Finding(
                f"{path}.uri",
                f"is a page of the hub, not a file; write hf://{name} (and path for a file in it)",
                code=FindingCode.INVALID_SOURCE,
            )
    if scheme in ("s3", "gs", "az", "oci", "https") and ".." in unquote(
        rest.partition("?")[0]
    ).replace("\\", "/").split("/"):
        yield Finding(
            f"{path}.uri",
            "may not hold '..', which no loader follows; write the path without it",
            code=FindingCode.INVALID_SOURCE,
        )
    if scheme == "hf":
        repository, _, revision = rest.partition("@")
        parts = [part for part in repository.split("/") if part]
        if not parts or ".." in parts:
            yield Finding(
                f"{path}.uri",
                "names no repository; write hf://org/name",
                code=FindingCode.INVALID_SOURCE,
            )
        if revision and source.revision is not None:
            yield Finding(
                f"{path}.revision",
                f"the uri already says @{revision}; write the revision once",
                code=FindingCode.FIELD_COMBINATION,
            )
    if scheme in ("s3", "gs") and not rest.split("/", 1)[0]:
        yield Finding(
            f"{path}.uri",
            f"names no bucket; write {scheme}://bucket/key",
            code=FindingCode.INVALID_SOURCE,
        )
    if scheme == "oci" and source.revision is not None:
        said = re.search(r"[:@].*$", rest.partition("/")[2])
        if said is not None:
            yield Finding(
                f"{path}.revision",
                f"the uri already says {said[0]}; write the tag or digest once",
                code=FindingCode.FIELD_COMBINATION,
            )
        elif re.match(OCI_REFERENCE_PATTERN, source.revision) is None:
            yield Finding(
                f"{path}.revision",
                f"{source.revision!r} is no tag and no digest of a registry; write a tag such as v3, or sha256:DIGEST",
                code=FindingCode.INVALID_SOURCE,
            )
    if isinstance(source, ModelSource) and source.file_name is not None and names_file(source):
        yield Finding(
            f"{path}.fileName",
            f"names a file in a folder, but {file_name_of(source)!r} of the source is a file already; remove fileName, or end the folder's uri with '/'",
            code=FindingCode.FIELD_COMBINATION,
        )


def pinned(source: SourceSpec) -> bool:
    """Whether what the source holds cannot change unnoticed: mounted, or named by revision or digest."""
    scheme, _, rest = source.uri.partition("://")
    if scheme in ("pvc", "configmap"):
        return True
    return (
        source.revision is not None
        or source.sha256 is not None
        or (scheme == "hf" and "@" in rest)
        or (scheme == "oci" and "@sha256:" in rest)
    )


def _is_normal(path: str) -> bool:
    pure = PurePosixPath(path)
    return (
        str(pure) == path
        and path != "."
        and ".." not in pure.parts
        and not pure.is_absolute()
        and "\\" not in path
    )

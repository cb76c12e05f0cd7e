"""Check sources before they are fetched: the file a source names, and errors in its URI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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

# Their web pages are not files; repositories are read with the scheme hf.
HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
# The renderer writes these files, so a source must not contain them.
RESERVED_FILES = ("model.py",)
# `tritonpipe init` and `tritonpipe import` write this for an unknown source: a claim in the
# pipeline's own namespace, so that applying the resource unchanged never reads other files.
PLACEHOLDER = "pvc://replace-me"


def tokenizer_fetches(spec: PipelineSpec) -> tuple[Fetch, ...]:
    """The tokenizer's own source: tokenizer.json, or for custom code whatever lies there."""
    tokenizer = spec.tokenizer
    assert tokenizer is not None
    source, path = (
        (tokenizer.source, "spec.tokenizer.source")
        if tokenizer.source
        else (spec.source, "spec.source")
    )
    folder = f"{tokenizer.model_name}/{VERSION_FOLDER}"
    if tokenizer.python is not None:
        # Custom code brings what it needs; the pipeline's common folder is not forced on it.
        return (
            (side_source(TOKENIZER, folder, tokenizer.source, "spec.tokenizer.source"),)
            if tokenizer.source
            else ()
        )
    if source is None:
        return ()
    return (Fetch(TOKENIZER, "", source, path, FetchKind.TOKENIZER, f"{folder}/tokenizer.json"),)


def side_source(step: str, folder: str, source: SourceSpec, path: str) -> Fetch:
    """Return the source of a step with custom code: a file next to model.py, or a whole folder."""
    if not names_file(source):
        return Fetch(step, "", source, path, FetchKind.FOLDER, folder)
    return Fetch(step, "", source, path, FetchKind.FILE, f"{folder}/{file_name_of(source)}")


def code_of(python: CodeParts | None) -> str | None:
    """Return the code that is written in the resource itself; ``None`` without any."""
    return python.code.inline if python is not None and python.code is not None else None


def python_fetches(step: str, model_name: str, python: CodeParts, path: str) -> tuple[Fetch, ...]:
    """Sources of custom code: the code, its side files, its packed environment."""
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
    """Return whether a source names a file rather than a folder.

    A file's address ends in a name with an extension.
    """
    name = file_name_of(source)
    return name is not None and "." in name.strip(".")


def check_source(source: SourceSpec, path: str) -> Iterator[Finding]:
    """Yield what makes a source impossible to fetch, or would expose a secret."""
    scheme, _, rest = source.uri.partition("://")
    if source.path is not None and not _is_normal(source.path):
        yield _invalid(
            f"{path}.path",
            f"{source.path!r} must be a plain path inside the source, such as onnx/model.onnx:"
            " no '..', '.', '//' or backslash",
        )
    if scheme in ("s3", "gs", "az", "oci", "https") and _climbs(rest):
        yield _invalid(f"{path}.uri", "must not contain '..'; write the path without it")
    check = _SCHEME_CHECKS.get(scheme)
    if check is not None:
        yield from check(source, rest, path)
    if isinstance(source, ModelSource) and source.file_name is not None and names_file(source):
        yield Finding(
            f"{path}.fileName",
            f"names a file in a folder, but the source is the file {file_name_of(source)!r};"
            " remove fileName, or end the folder's uri with '/'",
            code=FindingCode.FIELD_COMBINATION,
        )


def _invalid(path: str, message: str) -> Finding:
    return Finding(path, message, code=FindingCode.INVALID_SOURCE)


def _climbs(rest: str) -> bool:
    """Whether the path of a URI contains ``..``, written out or escaped."""
    return ".." in unquote(rest.partition("?")[0]).replace("\\", "/").split("/")


def _check_web(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    address = rest.split("/", 1)[0]
    if "@" in address:
        yield Finding(
            f"{path}.uri",
            "contains a user or password, which everyone who can read the resource sees;"
            " put them into a Secret and name it in secretRef",
            code=FindingCode.CREDENTIALS_IN_URI,
        )
    elif not address:
        yield _invalid(f"{path}.uri", "has no host; write https://host/file")
    elif address in HUB_HOSTS and "/resolve/" not in rest:
        name = "/".join(rest.split("/")[1:3])
        yield _invalid(
            f"{path}.uri",
            f"is a page of the hub, not a file; write hf://{name} (and path for a file in it)",
        )


def _check_hub(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    repository, _, revision = rest.partition("@")
    parts = [part for part in repository.split("/") if part]
    if not parts or ".." in parts:
        yield _invalid(f"{path}.uri", "has no repository; write hf://org/name")
    if revision and source.revision is not None:
        yield _revision_twice(path, f"@{revision}", "revision")


def _check_bucket(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    if not rest.split("/", 1)[0]:
        scheme = source.uri.partition("://")[0]
        yield _invalid(f"{path}.uri", f"has no bucket; write {scheme}://bucket/key")


def _check_registry(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    if source.revision is None:
        return
    in_uri = re.search(r"[:@].*$", rest.partition("/")[2])
    if in_uri is not None:
        yield _revision_twice(path, in_uri[0], "tag or digest")
    elif re.match(OCI_REFERENCE_PATTERN, source.revision) is None:
        yield _invalid(
            f"{path}.revision",
            f"{source.revision!r} is not a tag or digest of a registry;"
            " write a tag such as v3, or sha256:DIGEST",
        )


def _revision_twice(path: str, in_uri: str, what: str) -> Finding:
    return Finding(
        f"{path}.revision",
        f"the uri already contains {in_uri}; write the {what} once",
        code=FindingCode.FIELD_COMBINATION,
    )


_SCHEME_CHECKS: Mapping[str, Callable[[SourceSpec, str, str], Iterator[Finding]]] = {
    "https": _check_web,
    "hf": _check_hub,
    "s3": _check_bucket,
    "gs": _check_bucket,
    "oci": _check_registry,
}


def pinned(source: SourceSpec) -> bool:
    """Return whether the content of a source cannot change unnoticed.

    It cannot if it is mounted, or named by revision or digest.
    """
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

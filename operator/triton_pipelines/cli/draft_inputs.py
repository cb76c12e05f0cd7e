"""Read the inputs of a draft from local files or from a repository of a model hub."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from triton_pipelines.loader import tokenizer_files as tokenizers
from triton_pipelines.loader.onnx_file import OnnxFile, read_onnx
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.tools.importer import (
    PLACEHOLDER,
    DraftInputs,
    HubError,
    HubFiles,
    located,
    model_facts,
    sha256_of,
)

from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .local_options import parse_source_map
from .resource_output import ReadProgress

HUB = "hf://"
_EXPORT = "export the model (optimum-cli export onnx), and use --onnx"
ONNX_ENDING = ".onnx"
USUAL_GRAPHS = ("onnx/model.onnx", "model.onnx")
"""Where exporters put the graph in a repository, the most common first."""


def read_text(path: Path, option: str) -> str:
    """Return the text of the file of an option.

    Raises:
        CommandError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{option}: cannot read {path}: {error}", EXIT_USAGE) from error


def _graph(path: Path, name: str) -> OnnxFile:
    try:
        return read_onnx(path)
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}", EXIT_USAGE) from error
    except ValueError as error:
        raise CommandError(f"{name}: {error}", EXIT_USAGE) from error


def local_inputs(onnx: Path, tokenizer: Path | None, prefix: str, hints: list[str]) -> DraftInputs:
    """Return what local files say; add to ``hints`` how to serve the pipeline from them."""
    graph = _graph(onnx, str(onnx))
    with ReadProgress() as meters:
        model = {
            **located(prefix, onnx.name),
            "sha256": sha256_of(onnx, meters.of(f"reading {onnx.name}", onnx.stat().st_size)),
        }
    sources = [(model, onnx)]
    folders = [onnx.parent] + ([onnx.parent.parent] if onnx.parent.name == "onnx" else [])
    tokens = None
    if tokenizer is not None:
        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        folders.insert(0, folder)
        tokens, path = _tokenizer_source(tokenizer, prefix)
        sources.append((tokens, path))
    if prefix == PLACEHOLDER:
        maps = [
            f"--source-map {source['uri']}={path.resolve().as_uri()}{'/' if path.is_dir() else ''}"
            for source, path in sources
        ]
        hints.append(
            f"to try the pipeline on this machine, run: tritonpipe serve FILE {' '.join(maps)}"
        )
    files = _small_files(folders)
    chosen = (
        tokenizer / model_facts.TOKENIZER
        if tokenizer is not None and tokenizer.is_dir()
        else tokenizer
    )
    if chosen is not None and chosen.is_file():
        files[model_facts.TOKENIZER] = _json(chosen)
    stem = onnx.stem if onnx.stem != "model" else (folders[-1].resolve().name or onnx.stem)
    return DraftInputs(
        name=stem,
        graph=graph,
        graph_name=str(onnx),
        model_source=model,
        tokenizer_source=tokens,
        files=files,
    )


def _tokenizer_source(path: Path, prefix: str) -> tuple[dict[str, Any], Path]:
    """Return the tokenizer's source and the file or folder it refers to.

    Raises:
        CommandError: there is no tokenizer, or it cannot be loaded.
    """
    file = path / model_facts.TOKENIZER if path.is_dir() else path
    if not file.is_file():
        if path.is_dir() and (path / tokenizers.VOCABULARY).is_file():
            _check_convertible(
                {
                    name: path / name
                    for name in (
                        tokenizers.VOCABULARY,
                        model_facts.TOKENIZER_CONFIG,
                        model_facts.SPECIAL_TOKENS,
                    )
                },
                str(path),
            )
            return located(prefix, ""), path
        problem = (
            f"the directory contains neither {model_facts.TOKENIZER} nor "
            f"{tokenizers.VOCABULARY} with {model_facts.TOKENIZER_CONFIG}"
            if path.is_dir()
            else "file does not exist"
        )
        raise CommandError(
            (
                f"--tokenizer: {path}: {problem}; create the file with save_pretrained of a "
                "fast tokenizer"
            ),
            EXIT_USAGE,
        )
    _check_tokenizer(file, f"--tokenizer: {file}")
    return {**located(prefix, model_facts.TOKENIZER), "sha256": sha256_of(file)}, file


def _check_tokenizer(file: Path, name: str) -> None:
    try:
        tokenizers.check(file)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{name}: the file is not a valid tokenizer: {error}", EXIT_USAGE
        ) from error


def _check_convertible(files: dict[str, Path], name: str) -> None:
    """Check that the loader can convert these files to a tokenizer.json."""
    there = {key: path for key, path in files.items() if path.is_file()}
    if model_facts.TOKENIZER_CONFIG not in there:
        raise CommandError(
            f"{name}: {tokenizers.VOCABULARY} requires {model_facts.TOKENIZER_CONFIG} in "
            f"the same directory; add {model_facts.TOKENIZER_CONFIG}",
            EXIT_USAGE,
        )
    try:
        tokenizers.convert(there)
    except ValueError as error:
        raise CommandError(f"{name}: {error}", EXIT_USAGE) from error


def _small_files(folders: list[Path]) -> dict[str, Any]:
    """Return the parsed small files, each from the first folder that has it."""
    found: dict[str, Any] = {}
    for name in model_facts.SMALL_FILES:
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            found[name] = _json(path)
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: invalid JSON: {error}", EXIT_USAGE) from error


def hub_inputs(
    uri: str,
    onnx_path: str | None,
    tokenizer: Path | None,
    rules: list[str],
    token_file: Path | None,
) -> DraftInputs:
    """Return what a repository of a model hub says.

    Only the small files and the graph are fetched.
    """
    if tokenizer is not None:
        raise CommandError(
            "--tokenizer is allowed only with --onnx, because a repository already has a "
            "tokenizer; omit --tokenizer",
            EXIT_USAGE,
        )
    rules_map = parse_source_map(rules)
    token = read_text(token_file, "--token-file").strip() if token_file is not None else None
    with (
        tempfile.TemporaryDirectory(prefix="tritonpipe-init-") as folder,
        _hub(uri, rules_map, token) as hub,
        ReadProgress() as progress,
    ):
        names = hub.names()
        graph_path = _graph_path(uri, names, onnx_path)
        fetched = {}
        for name in (*_sidecar_names(names), graph_path):
            fetched[name], digest = hub.fetch(
                name, Path(folder), partial(progress.of, f"fetching {name}")
            )
        graph = _graph(fetched[graph_path], f"{uri}: {graph_path}")
        source = {"uri": hub.uri, **({"revision": hub.commit} if hub.commit else {})}
        files = {name: _json(path) for name, path in fetched.items() if name.endswith(".json")}
        return DraftInputs(
            name=hub.uri.rpartition("/")[2],
            graph=graph,
            graph_name=f"{uri}: {graph_path}",
            model_source={**source, "path": graph_path, "sha256": digest},
            tokenizer_source=dict(source) if _has_tokenizer(fetched, uri) else None,
            files=files,
        )


def _sidecar_names(names: tuple[str, ...]) -> list[str]:
    """Return the small files to fetch, and those of the tokenizer."""
    sidecars: list[str] = [
        name for name in (*model_facts.SMALL_FILES, model_facts.TOKENIZER) if name in names
    ]
    if model_facts.TOKENIZER not in names and tokenizers.VOCABULARY in names:
        sidecars.append(tokenizers.VOCABULARY)
    return sidecars


def _has_tokenizer(fetched: dict[str, Path], uri: str) -> bool:
    """Return whether the files contain a tokenizer.

    Raises:
        CommandError: it cannot be loaded.
    """
    if model_facts.TOKENIZER in fetched:
        _check_tokenizer(fetched[model_facts.TOKENIZER], f"{uri}: {model_facts.TOKENIZER}")
        return True
    if tokenizers.VOCABULARY in fetched:
        _check_convertible(fetched, uri)
        return True
    return False


@contextlib.contextmanager
def _hub(uri: str, mapped: SourceMap, token: str | None) -> Iterator[HubFiles]:
    try:
        with HubFiles(uri, mapped, token) as hub:
            yield hub
    except HubError as error:
        advice = (
            ", or set --token-file if the repository is private"
            if token is None and error.credentials_may_help
            else ""
        )
        raise CommandError(
            f"{uri}: {error}{advice}", EXIT_FAILED if error.retryable else EXIT_USAGE
        ) from error


def _graph_path(uri: str, names: tuple[str, ...], chosen: str | None) -> str:
    """Return the path of a repository's ONNX file: the chosen, a common or the only one.

    Raises:
        CommandError: there is none, or there are several.
    """
    graphs = [name for name in names if name.endswith(ONNX_ENDING)]
    if chosen is not None:
        if chosen not in names:
            raise CommandError(
                f"--onnx-path: {uri} has no file {chosen!r}; "
                + (f"use one of its ONNX files: {', '.join(graphs)}" if graphs else _EXPORT),
                EXIT_USAGE,
            )
        return chosen
    common = next((name for name in USUAL_GRAPHS if name in graphs), None)
    if common is not None or len(graphs) == 1:
        return common or graphs[0]
    if not graphs:
        raise CommandError(
            f"{uri}: the repository contains no ONNX file; {_EXPORT}",
            EXIT_USAGE,
        )
    raise CommandError(
        (
            f"{uri}: the repository contains multiple ONNX files; choose one with "
            f"--onnx-path: {', '.join(graphs)}"
        ),
        EXIT_USAGE,
    )

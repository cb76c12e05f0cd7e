"""``tritonpipe init``: write a resource for an ONNX model and its tokenizer.

They are local files, or a repository of a model hub.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from triton_pipelines.api.v1alpha1 import NAME_MAX
from triton_pipelines.loader import tokenizer_files as tokenizers
from triton_pipelines.loader.onnx_file import OnnxFile, read_onnx
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.tools.importer import (
    PLACEHOLDER,
    DraftInputs,
    HubError,
    HubFiles,
    MissingInformationError,
    draft,
    located,
    model_facts,
    sha256_of,
    slug,
)

from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .local_options import parse_source_map
from .options import SourceMaps
from .resource_output import ReadProgress, write_resource
from .shared_options import ResourceOutput

HUB = "hf://"
ONNX_ENDING = ".onnx"
USUAL_GRAPHS = ("onnx/model.onnx", "model.onnx")
"""Where exporters put the graph in a repository, the most common first."""
POSTPROCESS_TYPES = ("None", "Softmax", "Sigmoid", "MeanPooling", "FirstToken")


def init(
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[hf://ORG/NAME[@REVISION]]",
            help="A repository of a model hub, instead of --onnx.",
        ),
    ] = None,
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="The ONNX file.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="tokenizer.json, or a folder with it"
            " (or with vocab.txt and tokenizer_config.json).",
        ),
    ] = None,
    onnx_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Path of the model in the hub's repository."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the resource. Default: derived from the file or repository.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|A,B,…",
            help="Class names in the model's order: a file (JSON, or a name per line) or a list.",
        ),
    ] = None,
    postprocess: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Postprocessing, if it cannot be inferred from the files:"
            f" {', '.join(POSTPROCESS_TYPES)}.",
        ),
    ] = None,
    pair: Annotated[
        bool,
        typer.Option(
            "--pair", help="The tokenizer takes two texts, as for rerankers and NLI models."
        ),
    ] = False,
    source_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Address of the folder that will hold the files, such as s3://models/topics."
            " Default: a placeholder.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with a token for private repositories of the hub."),
    ] = None,
    source_map: SourceMaps = None,
    output: ResourceOutput = None,
) -> None:
    """Write a resource for an ONNX file and its tokenizer, with comments on the origin of values.

    Tensors come from the graph; lengths, labels and pooling from the small files next to it
    (config.json and similar). What no file says is left out with a comment, or has to be given.

    Exit codes: 2 information is missing, 3 the hub cannot be reached.
    """
    _check_options(repository, onnx, onnx_path, postprocess, source_uri)
    names = () if labels is None else _labels(labels)
    hints: list[str] = []
    if repository is not None:
        inputs = _from_hub(repository, onnx_path, tokenizer, source_map or [], token_file)
    else:
        assert onnx is not None
        inputs = _from_files(onnx, tokenizer, source_uri or PLACEHOLDER, hints)
    inputs = replace(
        inputs,
        name=_resource_name(name, inputs.name),
        labels=names,
        postprocess=postprocess,
        pair=pair,
    )
    try:
        resource = draft(inputs)
    except MissingInformationError as missing:
        raise CommandError(str(missing), EXIT_USAGE) from missing
    resource.header.insert(
        0,
        f"Written by `tritonpipe init` from {repository or inputs.graph_name}."
        " Lines with LOOK need your attention: no file has the answer.",
    )
    if source_uri is None and repository is None:
        resource.header.append(
            f"{PLACEHOLDER} is a placeholder: replace it with the address of the files,"
            " or set --source-uri."
        )
    write_resource(resource, output, hints)


def _check_options(
    repository: str | None,
    onnx: Path | None,
    onnx_path: str | None,
    postprocess: str | None,
    source_uri: str | None,
) -> None:
    """Refuse options that contradict each other or are malformed."""
    if (repository is None) == (onnx is None):
        raise CommandError(
            "give either a repository (hf://org/name) or a file (--onnx model.onnx)", EXIT_USAGE
        )
    if postprocess is not None and postprocess not in POSTPROCESS_TYPES:
        raise CommandError(
            f"--postprocess: {postprocess!r} is not one of {', '.join(POSTPROCESS_TYPES)}",
            EXIT_USAGE,
        )
    if source_uri is not None and "://" not in source_uri:
        raise CommandError(
            f"--source-uri: {source_uri!r} is not a URI; write one such as s3://models/topics",
            EXIT_USAGE,
        )
    if repository is not None and onnx_path is None and not repository.startswith(HUB):
        raise CommandError(
            f"{repository}: is not a repository of a model hub; write hf://org/name,"
            " or use --onnx for a local file",
            EXIT_USAGE,
        )


def _resource_name(name: str | None, derived: str) -> str:
    """Return the given name, or one derived from the files.

    Raises:
        CommandError: the given name is not a valid name.
    """
    valid = slug(name or derived, NAME_MAX)
    if name is not None and valid != name:
        raise CommandError(
            f"--name: {name!r} is not a valid resource name: use lower-case letters, digits and"
            f" '-', at most {NAME_MAX} characters; such as {valid}",
            EXIT_USAGE,
        )
    return valid


def _labels(text: str) -> tuple[str, ...]:
    """Return labels from a list, or from a file.

    The file holds a JSON list, an ``id2label`` mapping, or a name per line.
    """
    path = Path(text)
    if path.is_file():
        found = _labels_of_file(path, text)
    elif "," not in text and ("/" in text or path.suffix):
        raise CommandError(f"--labels: {text}: file does not exist", EXIT_USAGE)
    else:
        found = [part.strip() for part in text.split(",")]
    if not found or not all(found) or len(set(found)) != len(found):
        raise CommandError(
            f"--labels: {text}: must name each class once, in the model's order", EXIT_USAGE
        )
    return tuple(found)


def _labels_of_file(path: Path, text: str) -> list[str]:
    raw = _text(path, "--labels")
    try:
        content = json.loads(raw) if raw.lstrip()[:1] in ("[", "{") else None
    except ValueError as error:
        raise CommandError(f"--labels: {text}: is not valid JSON: {error}", EXIT_USAGE) from error
    if isinstance(content, dict):
        config = content if "id2label" in content else {"id2label": content}
        return list(model_facts.classes({model_facts.CONFIG: config}))
    if isinstance(content, list):
        return [str(item) for item in content]
    return [line.strip() for line in raw.splitlines() if line.strip()]


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{option}: {path}: cannot be read: {error}", EXIT_USAGE) from error


def _graph(path: Path, name: str) -> OnnxFile:
    try:
        return read_onnx(path)
    except OSError as error:
        raise CommandError(f"{name}: cannot be read: {error.strerror}", EXIT_USAGE) from error
    except ValueError as error:
        raise CommandError(f"{name}: {error}", EXIT_USAGE) from error


def _from_files(onnx: Path, tokenizer: Path | None, prefix: str, hints: list[str]) -> DraftInputs:
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
        hints.append(f"to try it here: tritonpipe serve FILE {' '.join(maps)}")
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
            f"contains neither {model_facts.TOKENIZER}"
            f" nor {tokenizers.VOCABULARY} with {model_facts.TOKENIZER_CONFIG}"
            if path.is_dir()
            else "file does not exist"
        )
        raise CommandError(
            f"--tokenizer: {path}: {problem};"
            " write it with tokenizer.save_pretrained of a fast tokenizer",
            EXIT_USAGE,
        )
    _check_tokenizer(file, f"--tokenizer: {file}")
    return {**located(prefix, model_facts.TOKENIZER), "sha256": sha256_of(file)}, file


def _check_tokenizer(file: Path, name: str) -> None:
    try:
        tokenizers.check(file)
    except (OSError, ValueError) as error:
        raise CommandError(f"{name}: cannot be used: {error}", EXIT_USAGE) from error


def _check_convertible(files: dict[str, Path], name: str) -> None:
    """Check that the loader can convert these files to a tokenizer.json."""
    there = {key: path for key, path in files.items() if path.is_file()}
    if model_facts.TOKENIZER_CONFIG not in there:
        raise CommandError(
            f"{name}: {tokenizers.VOCABULARY} needs {model_facts.TOKENIZER_CONFIG} next to it",
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
        raise CommandError(f"{path}: is not valid JSON: {error}", EXIT_USAGE) from error


def _from_hub(
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
            "--tokenizer goes with --onnx; a repository already has a tokenizer", EXIT_USAGE
        )
    rules_map = parse_source_map(rules)
    token = _text(token_file, "--token-file").strip() if token_file is not None else None
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
            "; set --token-file if the repository is private"
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
                f"--onnx-path: {uri} has no file {chosen};"
                f" its ONNX files: {', '.join(graphs) or 'none'}",
                EXIT_USAGE,
            )
        return chosen
    common = next((name for name in USUAL_GRAPHS if name in graphs), None)
    if common is not None or len(graphs) == 1:
        return common or graphs[0]
    if not graphs:
        raise CommandError(
            f"{uri}: contains no ONNX file; export the model (optimum-cli export onnx)"
            " and use --onnx",
            EXIT_USAGE,
        )
    raise CommandError(
        f"{uri}: contains several ONNX files; choose one with --onnx-path: {', '.join(graphs)}",
        EXIT_USAGE,
    )

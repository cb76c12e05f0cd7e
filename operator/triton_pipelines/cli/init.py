"""``tritonpipe init``: a resource from an ONNX file and its tokenizer, on this machine or in a model hub."""

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
from triton_pipelines.tools.importer import model_facts
from triton_pipelines.tools.importer.file_digest import sha256_of
from triton_pipelines.tools.importer.from_onnx import Given, UnclearError, draft
from triton_pipelines.tools.importer.hub_files import HubError, HubFiles
from triton_pipelines.tools.importer.source_placement import PLACEHOLDER, located
from triton_pipelines.tools.importer.yaml_document import slug

from .errors import EXIT_FAILED, EXIT_USAGE, Failure
from .options import SourceMaps
from .resource_output import Meters, finish

HUB = "hf://"
ONNX_ENDING = ".onnx"
# Where exporters put the graph in a repository, the likeliest first.
USUAL_GRAPHS = ("onnx/model.onnx", "model.onnx")
TYPES = ("None", "Softmax", "Sigmoid", "MeanPooling", "FirstToken")


def init(
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[hf://ORG/NAME[@REVISION]]",
            help="A repository of a model hub, instead of --onnx.",
        ),
    ] = None,
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="The model.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="tokenizer.json, or a folder with it (or with vocab.txt and tokenizer_config.json).",
        ),
    ] = None,
    onnx_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Which file of the hub's repository is the model."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the resource. Default: made from the file's or repository's name.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|A,B,…",
            help="Names of the classes, in the model's order: a file (JSON, or a name per line) or a list.",
        ),
    ] = None,
    postprocess: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help=f"What is made of the output, where no file says: {', '.join(TYPES)}.",
        ),
    ] = None,
    pair: Annotated[
        bool,
        typer.Option(
            "--pair", help="The tokenizer reads two texts, as rerankers and NLI models do."
        ),
    ] = False,
    source_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Folder where the files will lie, such as s3://models/topics. Default: a placeholder.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds a token for the hub, for private repositories."),
    ] = None,
    source_map: SourceMaps = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write there; an existing file is kept. Default: standard output.",
        ),
    ] = None,
) -> None:
    """Write a resource from an ONNX file and its tokenizer, with comments that say where each value is from and what to look at.

    Tensors come from the graph; lengths, labels and pooling from the small files beside it (config.json and alike). What no file
    says is left out with a comment, or asked for. Exit code: 2 something has to be told, 3 the hub cannot be asked.
    """
    if (repository is None) == (onnx is None):
        raise Failure(
            "give either a repository (hf://org/name) or a file (--onnx model.onnx)", EXIT_USAGE
        )
    if postprocess is not None and postprocess not in TYPES:
        raise Failure(
            f"--postprocess: {postprocess!r} is not one of {', '.join(TYPES)}", EXIT_USAGE
        )
    if source_uri is not None and "://" not in source_uri:
        raise Failure(
            f"--source-uri: {source_uri!r} is no address; write one such as s3://models/topics",
            EXIT_USAGE,
        )
    names = () if labels is None else _labels(labels)
    hints: list[str] = []
    if repository is not None:
        if onnx_path is None and not repository.startswith(HUB):
            raise Failure(
                f"{repository}: is no repository of a model hub; write hf://org/name, or --onnx for a file of this machine",
                EXIT_USAGE,
            )
        given = _from_hub(repository, onnx_path, tokenizer, source_map or [], token_file)
    else:
        assert onnx is not None
        given = _from_files(onnx, tokenizer, source_uri or PLACEHOLDER, hints)
    given = replace(
        given,
        name=slug(name or given.name, NAME_MAX),
        labels=names,
        postprocess=postprocess,
        pair=pair,
    )
    if name is not None and given.name != name:
        raise Failure(
            f"--name: {name!r} is no name for a resource: lower-case letters, digits and '-', at most {NAME_MAX}; such as {given.name}",
            EXIT_USAGE,
        )
    try:
        made = draft(given)
    except UnclearError as unclear:
        raise Failure(str(unclear), EXIT_USAGE) from unclear
    where = repository or given.graph_name
    made.head.insert(
        0,
        f"Written by `tritonpipe init` from {where}. Lines with LOOK name what the files do not say.",
    )
    if source_uri is None and repository is None:
        made.head.append(
            f"{PLACEHOLDER} is a placeholder: write where the files will lie, or give --source-uri."
        )
    finish(made, output, hints)


def _labels(text: str) -> tuple[str, ...]:
    """Labels from a list, or from a file: a JSON list, an ``id2label`` mapping, or a name per line."""
    path = Path(text)
    if not path.is_file():
        if "," not in text and ("/" in text or path.suffix):
            raise Failure(f"--labels: {text}: there is no such file", EXIT_USAGE)
        found = [part.strip() for part in text.split(",")]
    else:
        raw = _text(path, "--labels")
        try:
            held = json.loads(raw) if raw.lstrip()[:1] in ("[", "{") else None
        except ValueError as error:
            raise Failure(f"--labels: {text}: is no JSON: {error}", EXIT_USAGE) from error
        if isinstance(held, dict):
            found = list(
                model_facts.classes(
                    {model_facts.CONFIG: held if "id2label" in held else {"id2label": held}}
                )
            )
        else:
            found = (
                [str(item) for item in held]
                if isinstance(held, list)
                else [line.strip() for line in raw.splitlines() if line.strip()]
            )
    if not found or not all(found) or len(set(found)) != len(found):
        raise Failure(
            f"--labels: {text}: must name each class once, in the model's order", EXIT_USAGE
        )
    return tuple(found)


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{option}: {path}: cannot be read: {error}", EXIT_USAGE) from error


def _graph(path: Path, name: str) -> OnnxFile:
    try:
        return read_onnx(path)
    except OSError as error:
        raise Failure(f"{name}: cannot be read: {error.strerror}", EXIT_USAGE) from error
    except ValueError as error:
        raise Failure(f"{name}: {error}", EXIT_USAGE) from error


def _from_files(onnx: Path, tokenizer: Path | None, prefix: str, hints: list[str]) -> Given:
    """What lies on this machine; ``hints`` gets how to serve it from there."""
    graph = _graph(onnx, str(onnx))
    with Meters() as meters:
        model = {
            **located(prefix, onnx.name),
            "sha256": sha256_of(onnx, meters.of(f"reading {onnx.name}", onnx.stat().st_size)),
        }
    places = [(model, onnx)]
    folders = [onnx.parent] + ([onnx.parent.parent] if onnx.parent.name == "onnx" else [])
    tokens = None
    if tokenizer is not None:
        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        folders.insert(0, folder)
        tokens, path = _tokenizer_source(tokenizer, prefix)
        places.append((tokens, path))
    if prefix == PLACEHOLDER:
        maps = [
            f"--source-map {_address(source)}={path.resolve().as_uri()}{'/' if path.is_dir() else ''}"
            for source, path in places
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
    return Given(
        name=stem,
        graph=graph,
        graph_name=str(onnx),
        model_source=model,
        tokenizer_source=tokens,
        files=files,
    )


def _address(source: dict[str, Any]) -> str:
    return str(source["uri"])


def _tokenizer_source(path: Path, prefix: str) -> tuple[dict[str, Any], Path]:
    """The tokenizer's source, proven to load, and the file or folder that it stands for."""
    file = path / model_facts.TOKENIZER if path.is_dir() else path
    if not file.is_file():
        if path.is_dir() and (path / tokenizers.VOCABULARY).is_file():
            _convertible(
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
        wanted = (
            f"holds no {model_facts.TOKENIZER} (nor {tokenizers.VOCABULARY} with {model_facts.TOKENIZER_CONFIG})"
            if path.is_dir()
            else "there is no such file"
        )
        raise Failure(
            f"--tokenizer: {path}: {wanted}; tokenizer.save_pretrained of a fast tokenizer writes it",
            EXIT_USAGE,
        )
    _loads(file, f"--tokenizer: {file}")
    return {**located(prefix, model_facts.TOKENIZER), "sha256": sha256_of(file)}, file


def _loads(file: Path, name: str) -> None:
    try:
        tokenizers.check(file)
    except (OSError, ValueError) as error:
        raise Failure(f"{name}: cannot be used: {error}", EXIT_USAGE) from error


def _convertible(files: dict[str, Path], name: str) -> None:
    """That a tokenizer.json can be made of these files, as the loader will."""
    there = {key: path for key, path in files.items() if path.is_file()}
    if model_facts.TOKENIZER_CONFIG not in there:
        raise Failure(
            f"{name}: {tokenizers.VOCABULARY} needs {model_facts.TOKENIZER_CONFIG} beside it",
            EXIT_USAGE,
        )
    try:
        tokenizers.convert(there)
    except ValueError as error:
        raise Failure(f"{name}: {error}", EXIT_USAGE) from error


def _small_files(folders: list[Path]) -> dict[str, Any]:
    """The small files, each from the first folder that has it."""
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
        raise Failure(f"{path}: is no JSON: {error}", EXIT_USAGE) from error


def _from_hub(
    uri: str,
    onnx_path: str | None,
    tokenizer: Path | None,
    rules: list[str],
    token_file: Path | None,
) -> Given:
    """What lies in a repository of a model hub: the small files and the graph are fetched, nothing else."""
    if tokenizer is not None:
        raise Failure(
            "--tokenizer goes with --onnx; a repository brings its own tokenizer", EXIT_USAGE
        )
    try:
        mapped = SourceMap.parse(part for rule in rules for part in rule.split(","))
    except ValueError as error:
        raise Failure(f"--source-map: {error}", EXIT_USAGE) from error
    token = _text(token_file, "--token-file").strip() if token_file is not None else None
    with (
        tempfile.TemporaryDirectory(prefix="tritonpipe-init-") as folder,
        _hub(uri, mapped, token) as hub,
        Meters() as meters,
    ):
        names = hub.names()
        chosen = _chosen_graph(uri, names, onnx_path)
        wanted: list[str] = [
            name for name in (*model_facts.SMALL_FILES, model_facts.TOKENIZER) if name in names
        ]
        if model_facts.TOKENIZER not in names and tokenizers.VOCABULARY in names:
            wanted.append(tokenizers.VOCABULARY)
        fetched = {}
        for name in (*wanted, chosen):
            fetched[name], digest = hub.fetch(
                name, Path(folder), partial(meters.of, f"fetching {name}")
            )
        graph = _graph(fetched[chosen], f"{uri}: {chosen}")
        source = {"uri": hub.uri, **({"revision": hub.commit} if hub.commit else {})}
        tokens: dict[str, Any] | None = None
        if model_facts.TOKENIZER in fetched:
            _loads(fetched[model_facts.TOKENIZER], f"{uri}: {model_facts.TOKENIZER}")
            tokens = dict(source)
        elif tokenizers.VOCABULARY in fetched:
            _convertible(fetched, uri)
            tokens = dict(source)
        files = {name: _json(path) for name, path in fetched.items() if name.endswith(".json")}
        model = {**source, "path": chosen, "sha256": digest}
    return Given(
        name=hub.uri.rpartition("/")[2],
        graph=graph,
        graph_name=f"{uri}: {chosen}",
        model_source=model,
        tokenizer_source=tokens,
        files=files,
    )


@contextlib.contextmanager
def _hub(uri: str, mapped: SourceMap, token: str | None) -> Iterator[HubFiles]:
    try:
        with HubFiles(uri, mapped, token) as hub:
            yield hub
    except HubError as error:
        advice = (
            "; --token-file names a file with a token"
            if token is None and "private" in str(error)
            else ""
        )
        raise Failure(
            f"{uri}: {str(error).replace('; a private one needs source.secretRef', '')}{advice}",
            EXIT_FAILED if error.retryable else EXIT_USAGE,
        ) from error


def _chosen_graph(uri: str, names: tuple[str, ...], wanted: str | None) -> str:
    graphs = [name for name in names if name.endswith(ONNX_ENDING)]
    if wanted is not None:
        if wanted not in names:
            raise Failure(
                f"--onnx-path: {uri} has no file {wanted}; its ONNX files: {', '.join(graphs) or 'none'}",
                EXIT_USAGE,
            )
        return wanted
    usual = next((name for name in USUAL_GRAPHS if name in graphs), None)
    if usual is None and len(graphs) != 1:
        if not graphs:
            raise Failure(
                f"{uri}: holds no ONNX file; export the model (optimum-cli export onnx) and give --onnx",
                EXIT_USAGE,
            )
        raise Failure(
            f"{uri}: holds several ONNX files, say which with --onnx-path: {', '.join(graphs)}",
            EXIT_USAGE,
        )
    return usual or graphs[0]

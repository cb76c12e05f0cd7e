"""``tritonpipe infer``: one request, printed for people."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer
from rich.table import Table
from rich.text import Text

from .documents import resource
from .failure import EXIT_FAILED, EXIT_USAGE, Failure
from .output import console, shortened

CONNECT_SECONDS = 10.0
DEFAULT_URL = "http://127.0.0.1:8000"
SHOWN_NUMBERS = 6
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# What addresses have in common: the model, perhaps a version, then what is asked of it (/infer, /ready, …).
_MODEL = re.compile(r"^(?P<model>.*?/v2/models/[^/]+(?:/versions/[^/]+)?)(?:/.*)?$")


def infer(
    target: Annotated[str, typer.Argument(metavar="FILE|URL", help="The pipeline's file, or http(s)://HOST:PORT/v2/models/MODEL.")],
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="Texts, each a row of the batch; write -- before one that begins with -.")],
    url: Annotated[str, typer.Option(metavar="URL", help="Address of the server, where a file is given.")] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's whole answer as JSON.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait for the answer.")] = 60.0,
) -> None:
    """Send texts to a pipeline as one batch and print the answer.

    Of a file only the model's name is taken; what answers is the server, one of `tritonpipe serve` or a pipeline's Service.
    Exit code: 2 wrong use, 3 the server cannot be reached or refuses the request.
    """
    for item in text:
        _refuse_broken(item)
    base = model_url(target, url)
    # Proxies of the environment are not for this machine itself.
    proxied = urlsplit(base).hostname not in _LOOPBACK
    with httpx.Client(timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)), trust_env=proxied) as client:
        metadata = _call(client, "GET", base)
        name = _text_input(metadata, base)
        order = [item["name"] for item in metadata["outputs"]]
        tensor = {"name": name, "datatype": "BYTES", "shape": [len(text), 1], "data": text}
        answer = _call(client, "POST", f"{base}/infer", {"inputs": [tensor], "outputs": [{"name": item} for item in order]})
    try:
        # Triton answers in an order of its own; the pipeline's is that of its metadata.
        answer["outputs"] = sorted(answer["outputs"], key=lambda item: order.index(item["name"]))
        columns = {str(output["name"]): _cells(output, len(text)) for output in answer["outputs"]}
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(f"{base}/infer answered what is no inference answer; is it a Triton?", EXIT_FAILED) from error
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False))
    else:
        _print(text, columns)


def model_url(target: str, server: str) -> str:
    """The model's address, without what may stand behind it (``/infer``, ``/ready``, a query).

    Args:
        target: such an address, or the path of a pipeline's file.
        server: address of the server for a file; http:// where it has no scheme.

    Raises:
        Failure: no address of a model, or a file without a valid pipeline.
    """
    if "://" not in target and "/v2/models/" in target and not Path(target).exists():
        target = f"http://{target}"
    if "://" in target:
        parts = _split(target)
        found = _MODEL.match(parts.path)
        if found is None:
            raise Failure(f"{target}: names no model; write {parts.scheme}://{parts.netloc}/v2/models/MODEL", EXIT_USAGE)
        return f"{parts.scheme}://{parts.netloc}{found['model']}"
    pipeline = resource(Path(target))
    parts = _split(server if "://" in server else f"http://{server}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/v2/models/{quote(pipeline.public_name, safe='')}"


def _split(address: str) -> Any:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(address)
    except (ValueError, httpx.InvalidURL) as error:
        raise Failure(f"{address}: is no address: {error}", EXIT_USAGE) from error
    if not usable:
        raise Failure(f"{address}: is no address; write http://HOST:PORT or https://HOST", EXIT_USAGE)
    return parts


def _refuse_broken(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Failure(f"TEXT {text.encode(errors='replace')[:40]!r}: is no UTF-8 text", EXIT_USAGE) from error


def _call(client: httpx.Client, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        answer = client.request(method, url, json=body)
    except httpx.TimeoutException as error:
        raise Failure(f"{url}: no answer in time ({type(error).__name__}); --timeout waits longer", EXIT_FAILED) from error
    except httpx.HTTPError as error:
        hint = "does the server speak http, not https?" if "SSL" in str(error) else "is the pipeline served there?"
        raise Failure(f"{url} cannot be reached: {error or type(error).__name__}; {hint}", EXIT_FAILED) from error
    try:
        document = answer.json()
    except ValueError:
        document = None
    said = document.get("error") if isinstance(document, dict) else None
    if answer.status_code != httpx.codes.OK:
        raise Failure(f"{url} answered {answer.status_code}: {said or answer.reason_phrase or 'without a reason'}", EXIT_FAILED)
    if not isinstance(document, dict):
        raise Failure(f"{url} answered something that is no JSON object; is it a Triton?", EXIT_FAILED)
    return document


def _text_input(metadata: dict[str, Any], base: str) -> str:
    """Name of the model's one text input."""
    try:
        inputs = [(str(item["name"]), str(item["datatype"])) for item in metadata["inputs"]]
        _ = [item["name"] for item in metadata["outputs"]]
    except (KeyError, TypeError) as error:
        raise Failure(f"{base} answered what is no model's metadata; is it a Triton?", EXIT_FAILED) from error
    if len(inputs) != 1 or inputs[0][1] != "BYTES":
        have = ", ".join(" ".join(item) for item in inputs)
        raise Failure(f"{base} takes {have}; this command sends texts to a model with one text input", EXIT_USAGE)
    return inputs[0][0]


def _print(texts: list[str], columns: dict[str, list[str]]) -> None:
    table = Table()
    table.add_column("text", overflow="fold")
    for name in columns:
        table.add_column(Text(name), overflow="fold")
    # Text, not str: a text in brackets is no markup.
    for row in zip(texts, *columns.values(), strict=True):
        table.add_row(*(Text(shortened(cell)) for cell in row))
    console().print(table)


def _cells(output: dict[str, Any], rows: int) -> list[str]:
    """One cell per row of an output."""
    size = len(output["data"]) // rows
    return [_cell(output["data"][row * size : (row + 1) * size]) for row in range(rows)]


def _cell(values: list[Any]) -> str:
    shown = [f"{value:.4f}" if isinstance(value, float) else str(value) for value in values[:SHOWN_NUMBERS]]
    return " ".join(shown) + (f" … ({len(values)} values)" if len(values) > SHOWN_NUMBERS else "")

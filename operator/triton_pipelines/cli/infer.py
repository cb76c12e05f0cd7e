"""``tritonpipe infer``: one request, printed for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer
from rich.console import Console
from rich.table import Table

from triton_pipelines.pipeline import Options

from .documents import only
from .failure import EXIT_FAILED, EXIT_USAGE, Failure

TIMEOUT_SECONDS = 60.0
SHOWN_NUMBERS = 6


def infer(
    target: Annotated[str, typer.Argument(help="File of the pipeline, or http://HOST:PORT/v2/models/MODEL.")],
    text: Annotated[list[str], typer.Argument(help="Texts; each is a row of the batch.")],
    url: Annotated[str, typer.Option(help="Address of the server, where a file is given.")] = "http://127.0.0.1:8000",
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as JSON.")] = False,
) -> None:
    """Send texts to a pipeline as one batch and print the answer."""
    base = _model_url(target, url)
    with httpx.Client(timeout=TIMEOUT_SECONDS) as client:
        metadata = _call(client, "GET", base)
        name = _text_input(metadata, base)
        outputs = [{"name": item["name"]} for item in metadata["outputs"]]
        body = {"inputs": [{"name": name, "datatype": "BYTES", "shape": [len(text), 1], "data": text}], "outputs": outputs}
        answer = _call(client, "POST", f"{base}/infer", body)
        # Triton answers in an order of its own; the pipeline's is that of its metadata.
        order = [item["name"] for item in outputs]
        answer["outputs"] = sorted(answer["outputs"], key=lambda item: order.index(item["name"]))
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False))
        return
    _print(text, answer["outputs"])


def _model_url(target: str, url: str) -> str:
    if target.startswith(("http://", "https://")):
        if "/v2/models/" not in urlsplit(target).path:
            raise Failure(f"{target}: names no model; write {target.rstrip('/')}/v2/models/MODEL", EXIT_USAGE)
        return target.rstrip("/").removesuffix("/infer")
    pipeline, _ = only(Path(target), Options())
    return f"{url.rstrip('/')}/v2/models/{quote(pipeline.ensemble_name, safe='')}"


def _call(client: httpx.Client, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        answer = client.request(method, url, json=body)
    except httpx.HTTPError as error:
        raise Failure(f"{url} cannot be reached: {error or type(error).__name__}; is the pipeline served there?", EXIT_FAILED) from error
    try:
        document: dict[str, Any] = answer.json()
    except ValueError as error:
        raise Failure(f"{url} answered {answer.status_code} with something that is no JSON; is it a Triton?", EXIT_FAILED) from error
    if answer.status_code != httpx.codes.OK:
        raise Failure(f"{url} answered {answer.status_code}: {document.get('error', document)}", EXIT_FAILED)
    return document


def _text_input(metadata: dict[str, Any], base: str) -> str:
    texts = [item["name"] for item in metadata.get("inputs", []) if item.get("datatype") == "BYTES"]
    if len(texts) != 1 or len(metadata.get("inputs", [])) != 1:
        have = ", ".join(f"{item['name']} {item['datatype']}" for item in metadata.get("inputs", []))
        raise Failure(f"{base} takes {have}; this command sends texts to a pipeline with one text input", EXIT_USAGE)
    return str(texts[0])


def _print(texts: list[str], outputs: list[dict[str, Any]]) -> None:
    table = Table()
    table.add_column("text", overflow="fold")
    for output in outputs:
        table.add_column(output["name"], overflow="fold")
    for row, text in enumerate(texts):
        table.add_row(text, *(_cell(output, row, len(texts)) for output in outputs))
    Console().print(table)


def _cell(output: dict[str, Any], row: int, rows: int) -> str:
    size = len(output["data"]) // rows
    values = output["data"][row * size : (row + 1) * size]
    shown = [f"{value:.4f}" if isinstance(value, float) else str(value) for value in values[:SHOWN_NUMBERS]]
    return " ".join(shown) + (f" … ({size} numbers)" if size > SHOWN_NUMBERS else "")

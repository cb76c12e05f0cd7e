"""``tritonpipe infer``: send one request to a pipeline and print the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer
from rich.table import Table
from rich.text import Text

from triton_pipelines.tools.loadgen import LENGTH_HEADER, ClientTls

from .documents import parse_pipeline
from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .grpc_model import GrpcModel
from .http_model import connection_error, fetch_metadata, http_client, parse_document, post
from .model_metadata import BYTES, Array, ModelMetadata, TensorMetadata
from .option_groups import expand_options
from .output import console, shorten
from .output_tensors import decode, format_row, json_value
from .result_output import structured
from .shared_options import Output, OutputFormat
from .tensors import encode, request_arrays
from .tls_options import GRPC, GRPCS, TlsOptions, client_tls, is_grpc

DEFAULT_URL = "http://127.0.0.1:8000"
# The common part of addresses: the model, perhaps a version, then an endpoint (/infer, /ready, …).
_MODEL = re.compile(r"^(?P<model>.*?/v2/models/[^/]+(?:/versions/[^/]+)?)(?:/.*)?$")


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Options of the inputs besides the texts."""

    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Second text of each pair: one for each TEXT, or one for all. Repeatable.",
        ),
    ] = None
    """Second texts of pairs."""
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="Value of an input: a text (repeatable), numbers such as 1,2,3 or [[1,2],[3,4]],"
            " or one number for the whole tensor.",
        ),
    ] = None
    """Inputs by name."""
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--input-file",
            metavar="NAME=PATH",
            help="Value of an input from a file: an array saved by numpy.save (.npy),"
            " or raw bytes such as an image.",
        ),
    ] = None
    """Inputs from files."""


@expand_options
def infer(
    inputs: InputOptions,
    tls: TlsOptions,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="File of the pipeline, or URL of a model: "
            "http(s)://HOST:PORT/v2/models/MODEL, or grpc(s)://HOST:PORT/v2/models/MODEL "
            "for gRPC.",
        ),
    ],
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...",
            help=(
                "Texts, one for each row of the batch. Write -- before a text that starts with -."
            ),
        ),
    ] = None,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the server, if FILE is given.")
    ] = DEFAULT_URL,
    output: Output = OutputFormat.TABLE,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="Maximum time to wait for the response."),
    ] = 60.0,
) -> None:
    """Send one request to a pipeline and print the answer: texts as one batch, or tensors by name.

    With FILE, only its model name is used; the request goes to --url, which is a server started by
    `tritonpipe serve` or a pipeline's Service. Responses of a decoupled pipeline are printed as
    they arrive.

    Exit codes: 2 wrong usage, 3 the server cannot be reached or rejects the request.
    """
    texts, pairs, values = text or [], inputs.pair or [], inputs.value or []
    _check_content(texts, inputs)
    base = model_url(target, url)
    secured = client_tls(base, tls)

    def arrays_of(model: ModelMetadata) -> dict[str, Array]:
        return request_arrays(model, texts, pairs, values, inputs.file or [])

    if is_grpc(base):
        _infer_over_grpc(base, timeout, secured, arrays_of, output)
    else:
        _infer_over_http(base, timeout, arrays_of, output)


def _infer_over_http(
    base: str,
    timeout: float,
    arrays_of: Callable[[ModelMetadata], Mapping[str, Array]],
    output: OutputFormat,
) -> None:
    with http_client(base, timeout) as client:
        model = fetch_metadata(client, base)
        arrays = arrays_of(model)
        if model.decoupled:
            _print_stream(client, base, model, arrays, output)
            return
        body, length = encode(arrays, model)
        headers = {LENGTH_HEADER: str(length), "Content-Type": "application/octet-stream"}
        document, rest = post(client, f"{base}/infer", body, headers)
    try:
        _print_answer(document, rest, model, arrays, output)
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(
            f"{base}/infer did not return an inference response; check that the address "
            "points to a Triton server",
            EXIT_FAILED,
        ) from error


def _infer_over_grpc(
    base: str,
    timeout: float,
    tls: ClientTls | None,
    arrays_of: Callable[[ModelMetadata], Mapping[str, Array]],
    output: OutputFormat,
) -> None:
    with GrpcModel(base, timeout, tls) as served:
        model = served.metadata()
        arrays = arrays_of(model)
        if not model.decoupled:
            _print_answer(*served.infer(arrays, model), model, arrays, output)
            return
        for document, rest in served.stream(arrays, model):
            listed = {
                name: [json_value(item) for item in array.ravel()]
                for name, array in decode(document, rest).items()
            }
            values = {name: one[0] if len(one) == 1 else one for name, one in listed.items()}
            named = {key: value for key, value in document.items() if key != "outputs"}
            _print_response({**named, **values}, model, output)


def _print_answer(
    document: dict[str, Any],
    rest: bytes,
    model: ModelMetadata,
    arrays: Mapping[str, Array],
    output: OutputFormat,
) -> None:
    outputs = decode(document, rest)
    # Triton's order is arbitrary; the pipeline's order is that of its metadata.
    outputs = {name: outputs[name] for name in sorted(outputs, key=model.outputs.index)}
    if not output.is_table:
        typer.echo(structured(_response_document(document, outputs), output), nl=False)
        return
    rows = max((len(array) for array in arrays.values()), default=1) if model.batched else None
    if rows is not None and all(array.size % rows == 0 for array in outputs.values()):
        _print_table(arrays, outputs, rows, output)
    else:
        _print_list(document, outputs, output)


def model_url(target: str, server: str) -> str:
    """Return the model's address, without a trailing endpoint (``/infer``, ``/ready``) or query.

    Args:
        target: the address, or the path of a pipeline's file.
        server: address of the server for a file; http:// if it has no scheme.

    Raises:
        CommandError: the address names no model, or the file has no valid pipeline.
    """
    if "://" not in target and "/v2/models/" in target and not Path(target).exists():
        target = f"http://{target}"
    if "://" in target:
        parts = _parse_url(target)
        found = _MODEL.match(parts.path)
        if found is None:
            raise CommandError(
                f"{target} is not the URL of a model; use"
                f" {parts.scheme}://{parts.netloc}/v2/models/MODEL",
                EXIT_USAGE,
            )
        return f"{parts.scheme}://{parts.netloc}{found['model']}"
    pipeline = parse_pipeline(Path(target))
    parts = _parse_url(server if "://" in server else f"http://{server}")
    name = quote(pipeline.public_name, safe="")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/v2/models/{name}"


def _parse_url(address: str) -> Any:
    try:
        parts = urlsplit(address)
        schemes = ("http", "https", GRPC, GRPCS)
        usable = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
        httpx.URL(address)
    except (ValueError, httpx.InvalidURL) as error:
        raise CommandError(f"{address!r} is not a valid URL: {error}", EXIT_USAGE) from error
    if not usable:
        raise CommandError(
            f"{address!r} is not a valid URL; use http://HOST:PORT, https://HOST or"
            " grpcs://HOST:PORT",
            EXIT_USAGE,
        )
    return parts


def _check_content(texts: list[str], inputs: InputOptions) -> None:
    """Refuse a request without content, and text that is not UTF-8."""
    if not (texts or inputs.value or inputs.file):
        raise CommandError(
            "the request has no inputs; specify texts, or tensors with --input and --input-file",
            EXIT_USAGE,
        )
    for item in (*texts, *(inputs.pair or ()), *(inputs.value or ())):
        _check_encoding(item)


def _check_encoding(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CommandError(
            f"text {text.encode(errors='replace')[:40]!r} is not UTF-8", EXIT_USAGE
        ) from error


def _print_stream(
    client: httpx.Client,
    base: str,
    model: ModelMetadata,
    arrays: Mapping[str, Array],
    output: OutputFormat,
) -> None:
    """Send the request to ``generate_stream`` and print each server-sent event as it arrives."""
    if deep := [
        name for name, array in arrays.items() if array.size != max(array.shape, default=1)
    ]:
        raise CommandError(
            f"{', '.join(deep)}: HTTP streams only support single values and flat lists;"
            " use gRPC for this pipeline",
            EXIT_USAGE,
        )
    body = {
        name: values[0]
        if len(values := [json_value(item) for item in array.ravel()]) == 1
        else values
        for name, array in arrays.items()
    }
    url = f"{base}/generate_stream"
    try:
        with client.stream("POST", url, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                parse_document(answer, url)
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    document = _event(line.removeprefix("data:").strip(), url)
                    _print_response(document, model, output)
    except httpx.HTTPError as error:
        raise connection_error(url, error) from error


def _event(text: str, url: str) -> dict[str, Any]:
    """Return one response of a stream over HTTP."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CommandError(
            f"{url} did not return a JSON object; check that the address points to a Triton server",
            EXIT_FAILED,
        )
    if set(document) == {"error"}:
        raise CommandError(f"{url} returned an error: {document['error']}", EXIT_FAILED)
    return document


def _print_response(
    document: Mapping[str, Any], model: ModelMetadata, output: OutputFormat
) -> None:
    """Print one response of a stream."""
    if not output.is_table:
        start = "---\n" if output is OutputFormat.YAML else ""
        typer.echo(f"{start}{structured(dict(document), output)}", nl=False)
        return
    found = [name for name in model.outputs if name in document]
    for name in found:
        values = document[name] if isinstance(document[name], list) else [document[name]]
        label = f"{name}: " if len(model.outputs) > 1 else ""
        line = " ".join(str(value) for value in values)
        typer.echo(label + (line if output is OutputFormat.WIDE else shorten(line)))


def _response_document(document: Mapping[str, Any], outputs: Mapping[str, Array]) -> dict[str, Any]:
    kinds = {item["name"]: item.get("datatype", BYTES) for item in document["outputs"]}
    listed = [
        {
            "name": name,
            "datatype": kinds[name],
            "shape": list(array.shape),
            "data": [json_value(item) for item in array.ravel()],
        }
        for name, array in outputs.items()
    ]
    return {**document, "outputs": listed}


def _print_table(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], rows: int, output: OutputFormat
) -> None:
    """Print a row for each row of the batch: its texts, or its number, and the outputs."""
    texts = {
        name: array
        for name, array in arrays.items()
        if array.dtype == object and array.size == rows
    }
    labels: Sequence[tuple[str, Sequence[str]]] = [
        ("text" if len(texts) == 1 else name, [str(json_value(item)) for item in array.ravel()])
        for name, array in texts.items()
    ] or [("row", [str(row) for row in range(rows)])]
    table = Table()
    for name in (*(label for label, _ in labels), *outputs):
        table.add_column(Text(name), overflow="fold")
    shaped = [
        array.reshape(rows, *(array.shape[1:] if len(array) == rows else (-1,)))
        for array in outputs.values()
    ]
    for row in range(rows):
        cells = [
            *(words[row] for _, words in labels),
            *(_format(array[row], output) for array in shaped),
        ]
        # Text, not str: text in brackets is not markup.
        table.add_row(
            *(Text(item if output is OutputFormat.WIDE else shorten(item)) for item in cells)
        )
    console().print(table)


def _print_list(
    document: Mapping[str, Any], outputs: Mapping[str, Array], output: OutputFormat
) -> None:
    """Print outputs that have no common rows, one per line with its type and shape."""
    kinds = {item["name"]: item.get("datatype", BYTES) for item in document["outputs"]}
    for name, array in outputs.items():
        tensor = TensorMetadata(name, kinds[name], array.shape)
        console().print(Text(f"{tensor}: {_format(array, output)}"))


def _format(array: Array, output: OutputFormat) -> str:
    """Return the values of an array on one line; not shortened in the wide format."""
    if output is OutputFormat.WIDE:
        return " ".join(str(json_value(item)) for item in array.ravel())
    return shorten(format_row(array))

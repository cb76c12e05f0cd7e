"""``tritonpipe infer``: one request to a pipeline of any shape, and its answer printed for people."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer
from rich.table import Table
from rich.text import Text

from triton_pipelines.tools.loadgen import LENGTH_HEADER, trusted_authorities

from .documents import resource
from .errors import EXIT_FAILED, EXIT_USAGE, Failure
from .output import console, shortened
from .tensors import BYTES, Array, Model, cell, decode, encode, plain, requests

CONNECT_SECONDS = 10.0
DEFAULT_URL = "http://127.0.0.1:8000"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# What addresses have in common: the model, perhaps a version, then what is asked of it (/infer, /ready, …).
_MODEL = re.compile(r"^(?P<model>.*?/v2/models/[^/]+(?:/versions/[^/]+)?)(?:/.*)?$")


def infer(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL", help="The pipeline's file, or http(s)://HOST:PORT/v2/models/MODEL."
        ),
    ],
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...",
            help="Texts, each a row of the batch; write -- before one that begins with -.",
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Second text of a pair; as many as TEXTs, or one for all. Repeatable.",
        ),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="An input by name: a text (repeatable), numbers such as 1,2,3 or [[1,2],[3,4]], one number for the whole tensor.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--input-file",
            metavar="NAME=PATH",
            help="An input from a file: what numpy.save wrote (.npy), else its bytes, such as those of an image.",
        ),
    ] = None,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the server, where a file is given.")
    ] = DEFAULT_URL,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the whole answer as JSON; of a stream, a line for each response."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait for the answer.")
    ] = 60.0,
) -> None:
    """Send one request to a pipeline and print the answer: texts as one batch, or tensors by name.

    Of a file only the model's name is taken; what answers is the server, one of `tritonpipe serve` or a pipeline's Service.
    A decoupled pipeline's responses are printed as they come. Exit code: 2 wrong use, 3 the server cannot be reached or refuses the request.
    """
    if not (text or value or file):
        raise Failure(
            "nothing to send: give texts, or tensors by --input and --input-file", EXIT_USAGE
        )
    for item in (*(text or []), *(pair or []), *(value or [])):
        _refuse_broken(item)
    base = model_url(target, url)
    with asking(base, timeout) as client:
        model = described(client, base)
        arrays = requests(model, text or [], pair or [], value or [], file or [])
        if model.decoupled:
            _stream(client, base, model, arrays, as_json)
            return
        body, length = encode(arrays, model)
        headers = {LENGTH_HEADER: str(length), "Content-Type": "application/octet-stream"}
        document, rest = _asked(client, f"{base}/infer", body, headers)
    try:
        outputs = decode(document, rest)
        # Triton answers in an order of its own; the pipeline's is that of its metadata.
        outputs = {name: outputs[name] for name in sorted(outputs, key=model.outputs.index)}
        if as_json:
            typer.echo(_json(document, outputs))
            return
        rows = max((len(array) for array in arrays.values()), default=1) if model.batched else None
        if rows is not None and all(array.size % rows == 0 for array in outputs.values()):
            _table(arrays, outputs, rows)
        else:
            _list(outputs)
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(
            f"{base}/infer answered what is no inference answer; is it a Triton?", EXIT_FAILED
        ) from error


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
            raise Failure(
                f"{target}: names no model; write {parts.scheme}://{parts.netloc}/v2/models/MODEL",
                EXIT_USAGE,
            )
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
        raise Failure(
            f"{address}: is no address; write http://HOST:PORT or https://HOST", EXIT_USAGE
        )
    return parts


def _refuse_broken(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Failure(
            f"{text.encode(errors='replace')[:40]!r}: is no UTF-8 text", EXIT_USAGE
        ) from error


def asking(url: str, timeout: float) -> httpx.Client:
    """A client for an address; ``timeout``: seconds."""
    # Proxies of the environment are not for this machine itself; its authorities are for all. Reading these takes longer than many a request.
    proxied = urlsplit(url).hostname not in _LOOPBACK
    verify = trusted_authorities() if proxied or url.startswith("https") else False
    return httpx.Client(
        timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        trust_env=proxied,
        verify=verify,
    )


def described(client: httpx.Client, base: str) -> Model:
    """What the server says of the model."""
    metadata = _document(_sent(client, "GET", base), base)
    try:
        config = _document(_sent(client, "GET", f"{base}/config"), base)
    except Failure:
        config = {}  # a gateway may let inference through alone; the metadata says most of it
    try:
        return Model.of(metadata, config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Failure(
            f"{base} answered what is no model's metadata; is it a Triton?", EXIT_FAILED
        ) from error


def _sent(client: httpx.Client, method: str, url: str, **content: Any) -> httpx.Response:
    try:
        return client.request(method, url, **content)
    except httpx.HTTPError as error:
        raise _unreached(url, error) from error


def _unreached(url: str, error: httpx.HTTPError) -> Failure:
    if isinstance(error, httpx.TimeoutException):
        return Failure(
            f"{url}: no answer in time ({type(error).__name__}); --timeout waits longer",
            EXIT_FAILED,
        )
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        hint = "the environment's SSL_CERT_FILE names a file of authorities to trust (PEM)"
        return Failure(f"{url} cannot be reached: {error}; {hint}", EXIT_FAILED)
    hint = (
        "does the server speak http, not https?"
        if "SSL" in str(error)
        else "is the pipeline served there?"
    )
    return Failure(f"{url} cannot be reached: {error or type(error).__name__}; {hint}", EXIT_FAILED)


def _asked(
    client: httpx.Client, url: str, body: bytes, headers: Mapping[str, str]
) -> tuple[dict[str, Any], bytes]:
    """The JSON part of the answer and the bytes behind it."""
    answer = _sent(client, "POST", url, content=body, headers=dict(headers))
    length = answer.headers.get(LENGTH_HEADER, "")
    size = int(length) if length.isdecimal() else len(answer.content)
    return _document(answer, url, answer.content[:size]), answer.content[size:]


def _document(answer: httpx.Response, url: str, content: bytes | None = None) -> dict[str, Any]:
    try:
        document = json.loads(answer.content if content is None else content)
    except ValueError:
        document = None
    said = document.get("error") if isinstance(document, dict) else None
    if answer.status_code != httpx.codes.OK:
        raise Failure(
            f"{url} answered {answer.status_code}: {said or answer.reason_phrase or 'without a reason'}",
            EXIT_FAILED,
        )
    if not isinstance(document, dict):
        raise Failure(
            f"{url} answered something that is no JSON object; is it a Triton?", EXIT_FAILED
        )
    return document


def _stream(
    client: httpx.Client, base: str, model: Model, arrays: Mapping[str, Array], as_json: bool
) -> None:
    """Ask by ``generate_stream``, which answers with server-sent events, and print each response as it comes."""
    if deep := [
        name for name, array in arrays.items() if array.size != max(array.shape, default=1)
    ]:
        raise Failure(
            f"{', '.join(deep)}: a stream over HTTP takes single values and plain lists; ask this pipeline by gRPC",
            EXIT_USAGE,
        )
    body = {
        name: values[0] if len(values := [plain(item) for item in array.ravel()]) == 1 else values
        for name, array in arrays.items()
    }
    url = f"{base}/generate_stream"
    try:
        with client.stream("POST", url, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                _document(answer, url)
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    _response(line.removeprefix("data:").strip(), url, model, as_json)
    except httpx.HTTPError as error:
        raise _unreached(url, error) from error


def _response(text: str, url: str, model: Model, as_json: bool) -> None:
    """One response of a stream."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Failure(
            f"{url} answered something that is no JSON object; is it a Triton?", EXIT_FAILED
        )
    if set(document) == {"error"}:
        raise Failure(f"{url} answered: {document['error']}", EXIT_FAILED)
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False))
        return
    found = [name for name in model.outputs if name in document]
    for name in found:
        values = document[name] if isinstance(document[name], list) else [document[name]]
        label = f"{name}: " if len(model.outputs) > 1 else ""
        typer.echo(label + shortened(" ".join(str(value) for value in values)))


def _json(document: Mapping[str, Any], outputs: Mapping[str, Array]) -> str:
    kinds = {item["name"]: item.get("datatype", BYTES) for item in document["outputs"]}
    listed = [
        {
            "name": name,
            "datatype": kinds[name],
            "shape": list(array.shape),
            "data": [plain(item) for item in array.ravel()],
        }
        for name, array in outputs.items()
    ]
    return json.dumps({**document, "outputs": listed}, ensure_ascii=False)


def _table(arrays: Mapping[str, Array], outputs: Mapping[str, Array], rows: int) -> None:
    """A row for each row of the batch: its texts, or its number where there is none, and the outputs."""
    texts = {
        name: array
        for name, array in arrays.items()
        if array.dtype == object and array.size == rows
    }
    labels: Sequence[tuple[str, Sequence[str]]] = [
        ("text" if len(texts) == 1 else name, [str(plain(item)) for item in array.ravel()])
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
        cells = [*(words[row] for _, words in labels), *(cell(array[row]) for array in shaped)]
        # Text, not str: a text in brackets is no markup.
        table.add_row(*(Text(shortened(item)) for item in cells))
    console().print(table)


def _list(outputs: Mapping[str, Array]) -> None:
    """Outputs without a common row: each on a line, with its shape."""
    for name, array in outputs.items():
        console().print(Text(f"{name} {list(array.shape)}: {shortened(cell(array))}"))

"""Test the loader's pure parts.

They are the source map, URIs, redaction, retries, progress, counts, digests and file names.
"""

from __future__ import annotations

import hashlib
import io
import logging
import ssl

import httpx
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tests.support.messages import Messages
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch
from triton_pipelines.loader.errors import LoaderError, SourceError
from triton_pipelines.loader.options import parse_options
from triton_pipelines.loader.progress import DownloadProgress, GroupProgress, format_bytes
from triton_pipelines.loader.repository import with_count
from triton_pipelines.loader.retry import Retrier, RetryPolicy
from triton_pipelines.loader.sources import requested_file
from triton_pipelines.loader.sources.hub import HubSource
from triton_pipelines.loader.staged_files import digest_of
from triton_pipelines.loader.uris import (
    HubUri,
    SourceLocation,
    SourceMap,
    check_scheme,
    parse_bucket,
    parse_folder,
    parse_hub,
)
from triton_pipelines.redaction import RedactingFormatter, Redactor, redact_url


@pytest.mark.parametrize(
    ("rules", "uri", "located"),
    [
        (
            ["hf://=http://127.0.0.1:1"],
            "hf://a/b",
            SourceLocation("hf://a/b", "http://127.0.0.1:1", True),
        ),
        (["s3://=https://minio/"], "s3://b/k", SourceLocation("s3://b/k", "https://minio", True)),
        (["hf://=file:///samples/"], "hf://a/b", SourceLocation("file:///samples/a/b", None, True)),
        (
            ["hf://a/=pvc://claim/hub/"],
            "hf://a/b@main",
            SourceLocation("pvc://claim/hub/b@main", None, True),
        ),
        (
            ["https://host/=http://127.0.0.1:1/m/"],
            "https://host/x?y",
            SourceLocation("http://127.0.0.1:1/m/x?y", None, True),
        ),
        (
            ["https://host/=file:///short/", "https://host/a/=file:///long/"],
            "https://host/a/x",
            SourceLocation("file:///long/x", None, True),
        ),
        (["https://host/=file:///short/"], "https://other/x", SourceLocation("https://other/x")),
        (
            ["", " hf://=https://mirror?a=b "],
            "hf://a/b",
            SourceLocation("hf://a/b", "https://mirror?a=b", True),
        ),
    ],
)
def test_source_maps(rules: list[str], uri: str, located: SourceLocation) -> None:
    assert SourceMap.parse(rules).apply(uri) == located


@pytest.mark.parametrize("rule", ["hf://", "hf=http://x", "hf://=ftp://x", "hf://=/samples"])
def test_a_source_map_in_error_names_the_rule(rule: str, messages: Messages) -> None:
    with messages.raises(ValueError):
        SourceMap.parse([rule])


def test_a_folder_as_target_is_told_how_it_is_written(messages: Messages) -> None:
    with messages.raises(ValueError, match="srv/models"):
        SourceMap.parse(["s3://models/=/srv/models/"])


@pytest.mark.parametrize(
    "uri", ["ftp://a/b", "file:///etc/passwd", "http://example.com/x", "/etc/passwd", "hf:/a"]
)
def test_schemes_that_a_resource_may_not_use(uri: str) -> None:
    with pytest.raises(SourceError):
        check_scheme(SourceLocation(uri))


@pytest.mark.parametrize(
    "uri",
    [
        "hf://a/b",
        "s3://a/b",
        "https://a/b",
        "pvc://a/b",
        "configmap://a/b",
        "http://127.0.0.1:8000/x",
    ],
)
def test_schemes_that_a_resource_may_use(uri: str) -> None:
    check_scheme(SourceLocation(uri))


def test_a_source_map_opens_files_and_http() -> None:
    check_scheme(SourceLocation("file:///x", mapped=True))
    check_scheme(SourceLocation("http://mirror/x", mapped=True))
    with pytest.raises(SourceError):
        check_scheme(SourceLocation("ftp://mirror/x", mapped=True))


def test_the_parts_of_uris() -> None:
    assert parse_hub("hf://org/name") == HubUri("org/name", "", None)
    assert parse_hub("hf://org/name@refs/pr/1") == HubUri("org/name", "", "refs/pr/1")
    assert parse_hub("hf://org/name/onnx/m.onnx@v1") == HubUri("org/name", "onnx/m.onnx", "v1")
    assert parse_bucket("s3://b/a/k") == ("b", "a/k")
    assert parse_folder("configmap://name") == ("name", "")
    assert parse_folder("pvc://claim/a/b/") == ("claim", "a/b")
    for parse, uri in (
        (parse_hub, "hf://"),
        (parse_hub, "hf://a/../b"),
        (parse_bucket, "s3:///k"),
        (parse_folder, "pvc://"),
    ):
        with pytest.raises(SourceError):
            parse(uri)


@pytest.mark.parametrize(
    ("kind", "path", "last", "is_folder", "wanted"),
    [
        (FetchKind.FILE, None, "net.onnx", None, (False, "net.onnx")),
        (FetchKind.FILE, None, "", None, (True, "model.onnx")),
        (FetchKind.FILE, None, "folder", True, (True, "model.onnx")),
        (FetchKind.FILE, "a/b.onnx", "folder", None, (True, "a/b.onnx")),
        (FetchKind.TOKENIZER, None, "folder", None, (True, None)),
        (FetchKind.TOKENIZER, None, "t.json", None, (False, "t.json")),
        (FetchKind.TOKENIZER, None, "t.json", True, (True, None)),
        (FetchKind.TOKENIZER, "sub/tokenizer.json", "x", True, (True, "sub/tokenizer.json")),
    ],
)
def test_which_file_of_a_source_is_wanted(
    kind: FetchKind, path: str | None, last: str, is_folder: bool | None, wanted: object
) -> None:
    assert (
        requested_file(
            PlanFetch(step="m", uri="x", kind=kind, path=path, target="m/1/model.onnx"),
            last,
            is_folder,
        )
        == wanted
    )


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("GET https://ada:pw@host/x failed", "GET https://***@host/x failed"),
        ("https://host/x?sig=abc&y=1, again", "https://host/x?*** again"),
        ("(https://host/x?sig=abc)", "(https://host/x?***)"),
        ("hf://org/name@main", "hf://org/name@main"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("https://a:b@h/x?y and s3://k:s@e/b", "https://***@h/x?*** and s3://***@e/b"),
        ("https://user:p@ss@host/x", "https://***@host/x"),
    ],
)
def test_urls_are_redacted(text: str, redacted: str) -> None:
    assert redact_url(text) == redacted


@given(
    st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=8, max_size=40)
)
def test_a_known_secret_shows_in_no_encoding(secret: str) -> None:
    from urllib.parse import quote

    redact = Redactor()
    redact.add(secret)
    said = redact(f"a {secret} b {quote(secret, safe='')} c {secret!r}")
    assert secret not in said.replace("***", "")


def test_tracebacks_are_redacted_too() -> None:
    redact = Redactor()
    redact.add("s3cret-value")
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(RedactingFormatter(redact, "%(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        raise ValueError("holds s3cret-value")
    except ValueError:
        log.exception("with %s", "s3cret-value")
    assert "s3cret-value" not in out.getvalue()
    assert "holds ***" in out.getvalue()


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_grow_and_stay_bounded(failures: int, draw: float) -> None:
    policy = RetryPolicy(first_delay=1, factor=2, longest_delay=30)
    whole = min(30.0, 2.0 ** min(failures - 1, 30))
    assert whole / 2 <= policy.delay(failures, draw) <= whole
    assert policy.delay(failures, draw, retry_after=1e9) == 60
    assert policy.delay(failures, draw, retry_after=0.0) == policy.delay(failures, draw)


class Script:
    """An action that fails as told, then returns."""

    def __init__(self, *errors: SourceError) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def retrier(waits: list[float], **policy: int) -> Retrier:
    return Retrier(
        logging.Logger("quiet", logging.CRITICAL),
        RetryPolicy(**policy),
        sleep=waits.append,
        draw=lambda: 0.0,
    )


def progressing() -> SourceError:
    error = SourceError("cut", retryable=True)
    error.progress = True
    return error


def test_only_what_may_pass_is_retried() -> None:
    waits: list[float] = []
    final = Script(SourceError("no"))
    with pytest.raises(SourceError, match="no"):
        retrier(waits).run("x", final)
    assert (final.calls, waits) == (1, [])
    passing = Script(*[SourceError("busy", retryable=True) for _ in range(3)])
    assert retrier(waits).run("x", passing) == "done"
    assert waits == [0.5, 1.0, 2.0]


def test_tries_are_bounded_also_with_progress() -> None:
    stuck = Script(*[SourceError("busy", retryable=True) for _ in range(99)])
    with pytest.raises(SourceError):
        retrier([], attempts=4).run("x", stuck)
    assert stuck.calls == 4
    slow = Script(*[progressing() for _ in range(99)])
    with pytest.raises(SourceError):
        retrier([], attempts=4, limit=9).run("x", slow)
    assert slow.calls == 9


def test_progress_speaks_at_most_every_five_seconds() -> None:
    out = io.StringIO()
    log = logging.Logger("progress")
    log.addHandler(logging.StreamHandler(out))
    now = iter([0.0, 1.0, 5.0, 6.0, 9.9, 10.0, 12.0])
    progress = DownloadProgress(log, "spec.model.source x", 4 << 20, 1 << 20, lambda: next(now))
    for _ in range(5):
        progress.add(1 << 18)
    progress.finish()
    assert out.getvalue().splitlines() == [
        "spec.model.source x: 1.5 MiB of 4.0 MiB (37 %), 102.4 KiB/s",
        "spec.model.source x: 2.2 MiB of 4.0 MiB (56 %), 128.0 KiB/s",
        "spec.model.source x: fetched 2.2 MiB of 4.0 MiB (56 %), 106.7 KiB/s",
    ]
    assert [format_bytes(value) for value in (0, 1023, 1024, 1 << 40, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 TiB",
        "5120.0 TiB",
    ]


LAYOUTS = [
    "instance_group [ { kind: KIND_CPU  count: 1 } ]\n",
    "instance_group { count: 1 kind: KIND_CPU }  # a comment\n",
    'instance_group: [\n  {\n    name: "count: 7"\n    kind: KIND_CPU\n    count: 1\n  }\n]\n',
    "instance_group { kind: KIND_CPU }\n",
    'parameters { key: "instance_group" value { string_value: "count: 3" } }\ninstance_group '
    "{ count: 1 }\n",
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2, 17])
def test_a_count_is_set_and_nothing_else(layout: str, count: int) -> None:
    config = f'name: "tokenizer"\nmax_batch_size: 64\n{layout}dynamic_batching {{ }}\n'
    before = text_format.Parse(config, model_config_pb2.ModelConfig())
    after = text_format.Parse(with_count(config, count, "p"), model_config_pb2.ModelConfig())
    assert after.instance_group[0].count == count
    if before.instance_group[0].count == count:
        assert with_count(config, count, "p") == config
    after.instance_group[0].count = before.instance_group[0].count
    assert after == before


def test_the_text_around_a_count_stays() -> None:
    config = '# ours\nname: "t"\ninstance_group [ {  kind: KIND_CPU, count : 1 } ]  # live\n'
    assert with_count(config, 3, "p") == config.replace("count : 1", "count : 3")


@pytest.mark.parametrize(
    "config",
    [
        'name: "t"\n',
        "instance_group [ { count: 1 }, { count: 1 } ]\n",
        "instance_group {",
    ],
)
def test_a_config_without_one_count_is_refused(config: str, messages: Messages) -> None:
    with messages.raises(LoaderError) as caught:
        with_count(config, 2, "tokenizer/config.pbtxt")
    assert caught.value.reason is LoadReason.INTERNAL_ERROR
    assert "tokenizer/config.pbtxt" in caught.value.message


def test_the_digest_of_several_files_is_that_of_their_sha256sum_lines() -> None:
    one, two = hashlib.sha256(b"1").hexdigest(), hashlib.sha256(b"2").hexdigest()
    assert digest_of({"a": one}) == one
    assert (
        digest_of({"b": two, "a": one})
        == hashlib.sha256(f"{one}  a\n{two}  b\n".encode()).hexdigest()
    )


@pytest.mark.parametrize(
    "query",
    [
        "sig=S3CRET",
        "a=it's&sig=S3CRET",
        "a=(1)&sig=S3CRET",
        "a=b)S3CRET",
        "a='S3CRET'",
        "a=?S3CRET",
    ],
)
@pytest.mark.parametrize("path", ["models/m.onnx", "it's/m.onnx", "m(1)/m.onnx", "m'?b/m.onnx"])
@pytest.mark.parametrize("around", ["{}", "'{}'", "({})", "at {}, attempt 2"])
def test_no_character_that_a_query_may_hold_ends_its_masking(
    path: str, query: str, around: str
) -> None:
    """RFC 3986 allows quotes and brackets in paths and queries as they stand."""
    said = redact_url(around.format(f"https://files.example/{path}?{query}"))
    assert "S3CRET" not in said
    assert "https://files.example/" in said


@pytest.mark.parametrize("repository", ["-org/name", "org/na--me", "org/name.", f"org/{'n' * 97}"])
def test_a_name_that_no_hub_has_is_final(repository: str, messages: Messages) -> None:
    """Reject an invalid hub name without a request: the hub's library knows the naming rules.

    A retry would delay the pod for nothing.
    """
    with httpx.Client() as client:
        source = HubSource(
            client,
            repository,
            None,
            "",
            endpoint="http://127.0.0.1:9",
            token=None,
            context=ssl.create_default_context(),
        )
        with messages.raises(SourceError) as raised:
            source.resolve()
    assert not raised.value.retryable


def test_options_of_the_cache_and_of_parallel_downloads(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_options(["--cache", "/cache", "--cache-keep-free", "5", "--parallel", "2"])
    assert (str(options.cache), options.cache_keep_free, options.parallel) == ("/cache", 5.0, 2)
    assert (parse_options([]).cache, parse_options([]).cache_keep_free) == (None, 10.0)
    for wrong in (
        ["--parallel", "0"],
        ["--cache-keep-free", "95"],
        ["--cache-keep-free", "-1"],
        ["--parallel", "x"],
    ):
        with pytest.raises(SystemExit):
            parse_options(wrong)
        assert wrong[0] in capsys.readouterr().err


def test_several_files_are_one_picture() -> None:
    out = io.StringIO()
    log = logging.Logger("group")
    log.addHandler(logging.StreamHandler(out))
    now = iter([0.0, 1.0, 5.0, 6.0, 6.0, 7.0, 10.0])
    group = GroupProgress(log, "spec.model.source x", 3, 4 << 20, lambda: next(now))
    group.there("c", 1 << 20)
    one, two = group.of("a")(1 << 20, 1 << 19), group.of("b")(None, 0)
    one.add(1 << 18)
    two.add(1 << 20)
    # A new attempt at a file begins with what it has then.
    again = group.of("a")(1 << 20, 1 << 19)
    again.add(1 << 19)
    again.finish()
    two.finish()
    group.finish()
    assert out.getvalue().splitlines() == [
        "spec.model.source x: 1 of 3 files, 2.8 MiB of 4.0 MiB (68 %), 256.0 KiB/s",
        "spec.model.source x: fetched 3 of 3 files, 3.0 MiB of 4.0 MiB (75 %), 153.6 KiB/s",
    ]

"""oci:// sources against the reference registry with TLS and tokens.

Artifacts, images of layers, indexes, faults.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import ssl
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from e2e.local.pki import Authority
from e2e.local.processes import free_port
from tests.integration.loader.conftest import Pod
from tests.integration.loader.servers import ISSUER, SERVICE, Registry, registry
from tests.support.relay import Relay
from tests.support.web import LoopbackServer, Request, Response
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch
from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.sources.oci import OciSource
from triton_pipelines.loader.uris import parse_registry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

USER = ("ada", "s3cret-pass/word+9f00")
HTPASSWD = "ada:$2b$04$abcdefghijklmnopqrstuuVRRwC/dQmRKXXPmQMjhrfE5FM.63NwK\n"
"""bcrypt of that password."""
FILE, LAYER = "application/octet-stream", "application/vnd.oci.image.layer.v1.tar+gzip"
DATA = os.urandom(6_000_000)
TITLE = "org.opencontainers.image.title"


@pytest.fixture(scope="module")
def hub(
    authority: Authority,
    server_files: tuple[Path, Path],
    tls: ssl.SSLContext,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Registry]:
    """The registry and its token server."""
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    signer = authority.server("tokens", ["127.0.0.1"])
    (folder / "roots.pem").write_bytes(authority.identity.certificate)
    made = Registry(f"https://127.0.0.1:{port}", USER, signer)
    with LoopbackServer(made.issue, tls) as tokens:
        auth = {
            "token": {
                "realm": f"{tokens.url}/token",
                "service": SERVICE,
                "issuer": ISSUER,
                "rootcertbundle": str(folder / "roots.pem"),
            }
        }
        with registry(folder, server_files, auth, port):
            yield made


def model(hub: Registry, name: str, **rest: object) -> PlanFetch:
    uri = f"oci://{hub.host}/{name}"
    defaults: dict[str, object] = {
        "step": "model",
        "uri": uri,
        "target": "bert",
        "kind": FetchKind.MODEL,
        "file": "model.bin",
        "whole": True,
        "ca": True,
    }
    return PlanFetch(**{**defaults, **rest})  # type: ignore[arg-type]


def archive(
    *members: tuple[str, bytes | None], links: tuple[tuple[str, str, bytes], ...] = ()
) -> bytes:
    """A layer: files (name, content; None for a folder) and links (name, target, type)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = (
                (tarfile.DIRTYPE, 0) if data is None else (tarfile.REGTYPE, len(data))
            )
            made.addfile(info, None if data is None else io.BytesIO(data))
        for name, target, kind in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            made.addfile(info)
    return gzip.compress(out.getvalue(), 1)


def test_an_artifact_of_titled_files_by_tag_and_by_digest(trusting: Pod, hub: Registry) -> None:
    pushed = hub.push(
        "models/bert",
        "v1",
        (FILE, {TITLE: "1/model.bin"}, DATA),
        (FILE, {TITLE: "1/data/x"}, b"side"),
        (FILE, {TITLE: "config.pbtxt"}, b"c"),
    )
    trusting.plan(model(hub, "models/bert:v1"))
    code, report = trusting.load()
    assert code == 0, trusting.output
    assert trusting.tree() == ["bert/1/data/x", "bert/1/model.bin"]
    assert (trusting.models / "bert/1/model.bin").read_bytes() == DATA
    assert report.sources[0].resolved_revision == pushed
    assert [item.reason for item in report.findings] == [LoadReason.FILES_IGNORED]
    trusting.recorded()
    hub.push("models/bert", "v1", (FILE, {TITLE: "1/model.bin"}, b"another"))
    trusting.another()
    code, report = trusting.load()
    assert (code, report.sources[0].resolved_revision) == (0, pushed), trusting.output
    assert (trusting.models / "bert/1/model.bin").read_bytes() == DATA


def test_a_file_and_a_tokenizer_out_of_an_artifact(
    trusting: Pod, hub: Registry, minilm: Path, authority: Authority
) -> None:
    hub.push("models/one", "latest", (FILE, {TITLE: "net.bin"}, b"weights"))
    hub.push(
        "models/text",
        "v2",
        (FILE, {TITLE: "tokenizer.json"}, (minilm / "tokenizer.json").read_bytes()),
        (FILE, {TITLE: "README.md"}, b"x"),
    )
    trusting.trust("tokenizer", authority.identity)
    one = model(
        hub, "models/one", kind=FetchKind.FILE, file=None, whole=False, target="bert/1/model.bin"
    )
    text = PlanFetch(
        step="tokenizer",
        uri=f"oci://{hub.host}/models/text",
        revision="v2",
        kind=FetchKind.TOKENIZER,
        target="t/1/tokenizer.json",
        ca=True,
    )
    trusting.plan(one, text)
    code, _ = trusting.load()
    assert code == 0, trusting.output
    assert (trusting.models / "bert/1/model.bin").read_bytes() == b"weights"
    assert (trusting.models / "t/1/tokenizer.json").read_bytes() == (
        minilm / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize("path", ["text", "text/", "text/tokenizer.json"])
@pytest.mark.parametrize("form", ["artifact", "image"])
def test_the_path_of_a_tokenizer_is_a_directory_or_a_file(
    trusting: Pod, hub: Registry, minilm: Path, authority: Authority, form: str, path: str
) -> None:
    data = (minilm / "tokenizer.json").read_bytes()
    name = "text/tokenizer.json"
    layer = (
        (FILE, {TITLE: name}, data) if form == "artifact" else (LAYER, {}, archive((name, data)))
    )
    hub.push(f"tokenizers/{form}", "v1", layer)
    trusting.trust("tokenizer", authority.identity)
    item = PlanFetch(
        step="tokenizer",
        uri=f"oci://{hub.host}/tokenizers/{form}:v1",
        path=path,
        kind=FetchKind.TOKENIZER,
        target="t/1/tokenizer.json",
        ca=True,
    )
    trusting.plan(item)
    code, _ = trusting.load()
    assert code == 0, trusting.output
    assert (trusting.models / "t/1/tokenizer.json").read_bytes() == data


def test_an_image_of_layers_laid_over_each_other(trusting: Pod, hub: Registry) -> None:
    base = archive(
        ("bin", None), ("models", None), ("models/bert/1/model.bin", b"old"),
        ("models/bert/1/gone", b"x"), ("models/bert/1/dir/a", b"x"),
        links=(("bin/sh", "/bin/busybox", tarfile.SYMTYPE),),
    )  # fmt: skip
    top = archive(
        ("./models/bert/1/model.bin", DATA),
        ("models/bert/1/.wh.gone", b""),
        ("models/bert/1/dir/.wh..wh..opq", b""),
        ("models/bert/1/dir/b", b"b"),
    )
    manifest = hub.push("images/bert", "v1", (LAYER, {}, base), (LAYER, {}, top))
    trusting.plan(model(hub, "images/bert:v1", path="models/bert"))
    code, report = trusting.load()
    assert code == 0, trusting.output
    assert trusting.tree() == ["bert/1/dir/b", "bert/1/model.bin"]
    assert (trusting.models / "bert/1/model.bin").read_bytes() == DATA
    assert report.sources[0].resolved_revision == manifest
    assert "unpacking 2 layers" in trusting.output
    trusting.another()
    trusting.plan(model(hub, "images/bert:v1", path="models/bert/1/model.bin", whole=False))
    assert trusting.load()[0] == 0, trusting.output
    assert trusting.tree() == ["bert/1/model.bin"]


def test_a_folder_that_oras_packed(trusting: Pod, hub: Registry) -> None:
    packed = archive(("bert/1/model.bin", b"w"), ("bert/1/x/y", b"z"))
    hub.push(
        "models/packed",
        "v1",
        (LAYER, {TITLE: "bert", "io.deis.oras.content.unpack": "true"}, packed),
        (LAYER, {TITLE: "env.tar.gz"}, b"kept"),
    )
    packed_file = model(
        hub,
        "models/packed:v1",
        kind=FetchKind.FOLDER,
        path="env.tar.gz",
        file=None,
        whole=False,
        target="bert",
    )
    trusting.plan(model(hub, "models/packed:v1", path="bert"))
    assert trusting.load()[0] == 0, trusting.output
    assert trusting.tree() == ["bert/1/model.bin", "bert/1/x/y"]
    trusting.another()
    trusting.plan(packed_file)
    assert trusting.load()[0] == 0, trusting.output
    assert (trusting.models / "bert/env.tar.gz").read_bytes() == b"kept"


def test_an_index_of_platforms(trusting: Pod, hub: Registry) -> None:
    hub.push("images/multi", "amd", (FILE, {TITLE: "model.bin"}, b"ours"))
    hub.push("images/multi", "arm", (FILE, {TITLE: "model.bin"}, b"theirs"))
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    entries = []
    for tag, architecture in (("arm", "s390x"), ("amd", machine)):
        config = {
            "mediaType": "application/vnd.oci.empty.v1+json",
            **hub.blob("images/multi", b"{}"),
        }
        content = {TITLE: "model.bin"}, b"ours" if tag == "amd" else b"theirs"
        layer = {
            "mediaType": FILE,
            **hub.blob("images/multi", content[1]),
            "annotations": content[0],
        }
        body = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [layer],
        }
        digest = hub.manifest("images/multi", tag, body)
        size = len(json.dumps(body).encode())
        entries.append(
            {
                "mediaType": body["mediaType"],
                "digest": digest,
                "size": size,
                "platform": {"os": "linux", "architecture": architecture},
            }
        )
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": entries,
    }
    pushed = hub.manifest("images/multi", "all", index)
    trusting.plan(model(hub, "images/multi:all"))
    code, report = trusting.load()
    assert (code, report.sources[0].resolved_revision) == (0, pushed), trusting.output
    assert (trusting.models / "bert/1/model.bin").read_bytes() == b"ours"
    hub.manifest("images/multi", "none", {**index, "manifests": entries[:1]})
    trusting.plan(model(hub, "images/multi:none"))
    code, report = trusting.load()
    assert code == 2
    assert f"has no image for linux/{machine} (it has linux/s390x)" in report.findings[0].message


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (archive(("m/../../evil", b"x")), "is not a plain path below its directory"),
        (
            archive(("m/model.bin", b"x"), links=(("m/link", "/etc/passwd", tarfile.SYMTYPE),)),
            "m/link is a link to /etc/passwd",
        ),
        (
            archive(("m/model.bin", b"x"), links=(("m/hard", "other/x", tarfile.LNKTYPE),)),
            "m/hard is a hard link to other/x",
        ),
        (
            archive(("m/model.bin", b"x"), links=(("m/dev", "", tarfile.CHRTYPE),)),
            "m/dev is not a file",
        ),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
        (gzip.compress(b"no archive at all" * 100), "not a valid tar archive"),
        (archive(("m/model.bin", DATA))[:-100_000], "not a valid tar archive"),
    ],
    # Of their own: those made of the bytes hold the time of compression, and differ between the
    # workers of one run.
    ids=["climbs", "symbolic-link", "hard-link", "device", "zstd", "no-archive", "cut-short"],
)
def test_layers_with_paths_outside_are_rejected(
    trusting: Pod, hub: Registry, layer: bytes, says: str
) -> None:
    hub.push("images/bad", "v1", (LAYER, {}, layer))
    trusting.plan(model(hub, "images/bad:v1", path="m"))
    code, report = trusting.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_UNAVAILABLE), trusting.output
    assert says in report.findings[0].message
    assert not list(trusting.options.root.parent.rglob("evil"))
    assert not list(trusting.options.state.rglob("image"))


def test_a_title_with_a_path_is_rejected(trusting: Pod, hub: Registry) -> None:
    hub.push("models/bad", "v1", (FILE, {TITLE: "../../evil"}, b"x"))
    trusting.plan(model(hub, "models/bad:v1"))
    code, report = trusting.load()
    assert code == 2
    assert "is not a plain path below its directory" in report.findings[0].message


@pytest.mark.proves("spec.source.secretRef.name", "behaviour")
@pytest.mark.parametrize("form", ["user", "docker", "docker-path"])
def test_a_private_repository_with_each_form_of_secret(
    trusting: Pod, hub: Registry, form: str
) -> None:
    hub.push("private/bert", "v1", (FILE, {TITLE: "model.bin"}, b"w"))
    auth = base64.b64encode(":".join(USER).encode()).decode()
    entries = {
        f"https://{hub.host}/private": {"auth": auth},
        f"https://{hub.host}": {"username": "x", "password": "s3cret-token-41d8"},
    }
    auths = {
        "docker": {hub.host: {"username": USER[0], "password": USER[1]}},
        "docker-path": entries,
    }
    secret = (
        {"username": USER[0], "password": USER[1]}
        if form == "user"
        else {".dockerconfigjson": json.dumps({"auths": auths[form]})}
    )
    trusting.secret("model", **secret)
    trusting.plan(model(hub, "private/bert:v1", credentials=True))
    assert trusting.load()[0] == 0, trusting.output
    assert (trusting.models / "bert/1/model.bin").read_bytes() == b"w"
    assert auth not in trusting.output


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        (None, "set its credentials in source.secretRef"),
        (
            {"username": "ada", "password": "s3cret-token-41d8"},
            "check the Secret in source.secretRef",
        ),
        (
            {".dockerconfigjson": '{"auths": {"other.example": {"auth": "eDp5"}}}'},
            "has no entry for 127.0.0.1",
        ),
        ({".dockerconfigjson": "s3cret-token-41d8"}, ".dockerconfigjson contains invalid JSON"),
        (
            {"password": "s3cret-token-41d8"},
            "the secret must contain .dockerconfigjson, or username and password (it has password)",
        ),
    ],
)
def test_a_missing_read_permission_names_the_remedy(
    trusting: Pod, hub: Registry, secret: dict[str, str] | None, says: str
) -> None:
    if secret is not None:
        trusting.secret("model", **secret)
    trusting.plan(model(hub, "private/bert:v1", credentials=secret is not None))
    code, report = trusting.load()
    assert code == 2, trusting.output
    assert says in report.findings[0].message
    assert len([line for line in trusting.output.splitlines() if "attempt" in line]) == 0


def test_a_registry_with_passwords(
    trusting: Pod,
    authority: Authority,
    server_files: tuple[Path, Path],
    tmp_path: Path,
    hub: Registry,
) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    trusting.secret("model", username=USER[0], password=USER[1])
    with registry(
        tmp_path,
        server_files,
        {"htpasswd": {"realm": "r", "path": str(tmp_path / "htpasswd")}},
        free_port(),
    ) as url:
        trusting.plan(
            model(
                hub,
                "x",
                uri=f"oci://{url.removeprefix('https://')}/models/none:v1",
                credentials=True,
            )
        )
        code, report = trusting.load()
        # The password is right: the registry says what it has.
        assert code == 2, trusting.output
        assert "the registry has no models/none:v1" in report.findings[0].message
        trusting.secret("model", password="s3cret-token-41d8")
        code, report = trusting.load()
        assert code == 2
        assert "check the Secret in source.secretRef" in report.findings[0].message


def test_a_connection_that_breaks_is_resumed(trusting: Pod, hub: Registry) -> None:
    digest = hub.push("models/large", "v1", (FILE, {TITLE: "model.bin"}, DATA))
    with Relay(hub.url, stop_after=3_000_000, breaks=True) as relay:
        trusting.map(f"oci://={relay.url}")
        trusting.plan(model(hub, "models/large:v1", sha256=hashlib.sha256(DATA).hexdigest()))
        code, report = trusting.load()
    assert (code, report.sources[0].resolved_revision) == (0, digest), trusting.output
    assert "resumes at" in trusting.output
    assert (trusting.models / "bert/1/model.bin").read_bytes() == DATA


def test_a_token_that_the_registry_refuses_is_not_asked_for_for_ever(
    trusting: Pod, hub: Registry
) -> None:
    hub.push("models/slow", "v1", (FILE, {TITLE: "a"}, b"1"), (FILE, {TITLE: "model.bin"}, b"2"))
    before = len(hub.asked)
    hub.seconds = -100
    try:
        trusting.plan(model(hub, "models/slow:v1"))
        code, _ = trusting.load()
        assert code == 2, trusting.output
    finally:
        hub.seconds = 300
    assert len(hub.asked) - before == 1
    assert trusting.load()[0] == 0, trusting.output


def test_a_token_that_runs_out_is_asked_for_again(
    hub: Registry, authority: Authority, tmp_path: Path
) -> None:
    hub.push("models/slow", "v2", (FILE, {TITLE: "model.bin"}, DATA))
    (tmp_path / "ca.crt").write_bytes(authority.identity.certificate)
    learned: list[str] = []
    credentials = SourceCredentials(ca_file=tmp_path / "ca.crt")
    with httpx.Client(verify=credentials.ssl_context(), timeout=60) as client:
        uri = parse_registry(f"oci://{hub.host}/models/slow:v2")
        source = OciSource(
            client,
            uri,
            None,
            endpoint=None,
            credentials=credentials,
            on_secret=learned.append,
            workspace=tmp_path / "w",
        )
        source.resolve()
        # What the registry thinks of a token after its minutes.
        source._headers = {"Authorization": f"Bearer {learned[0][:-8]}AAAAAAAA"}
        with source.open("model.bin") as body:
            assert b"".join(body.chunks) == DATA
    assert len(learned) == 2


def test_a_blob_that_is_not_what_its_manifest_says_is_refused(
    trusting: Pod, tls: ssl.SSLContext
) -> None:
    """A stand-in for the registry: the real one checks what is pushed to it."""
    layer = {
        "mediaType": FILE,
        "digest": f"sha256:{hashlib.sha256(b'right').hexdigest()}",
        "size": 5,
        "annotations": {TITLE: "model.bin"},
    }

    def wrong(request: Request) -> Response:
        if "/blobs/" in request.path:
            return Response(200, {}, b"wrong")
        return Response(200, {}, json.dumps({"schemaVersion": 2, "layers": [layer]}).encode())

    with LoopbackServer(wrong, tls) as server:
        trusting.map(f"oci://={server.url}")
        uri = "oci://registry.example/models/x:v1"
        trusting.plan(
            PlanFetch(
                step="model",
                uri=uri,
                target="bert",
                kind=FetchKind.MODEL,
                file="model.bin",
                ca=True,
            )
        )
        code, report = trusting.load()
        assert code == 3, trusting.output
        assert (
            f"the source announced {hashlib.sha256(b'right').hexdigest()}"
            in report.findings[0].message
        )
        # Nor a manifest that is not what was asked for.
        trusting.plan(
            PlanFetch(
                step="model",
                uri=uri.replace(":v1", f"@sha256:{'0' * 64}"),
                target="b",
                kind=FetchKind.FOLDER,
                ca=True,
            )
        )
        assert "returned different content" in trusting.load()[1].findings[0].message


def test_what_is_not_there_is_named(trusting: Pod, hub: Registry) -> None:
    hub.push("models/bert", "v9", (FILE, {TITLE: "other.bin"}, b"x"))
    for uri, says in (
        ("models/bert:v8", "the registry has no models/bert:v8"),
        ("models/bert:v9", "has no file model.bin; the directory contains other.bin"),
        ("Models/bert:v9", "the URI has no repository"),
        ("models/bert:a b", "is not a valid OCI tag or digest"),
    ):
        trusting.plan(model(hub, uri))
        code, report = trusting.load()
        assert code == 2, trusting.output
        assert says in report.findings[0].message
    trusting.plan(model(hub, "models/bert:v9", path="nope"))
    assert "no file or directory nope" in trusting.load()[1].findings[0].message

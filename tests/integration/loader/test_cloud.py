"""gs:// and az:// sources against emulators of both (fake-gcs-server, Azurite) with TLS.

Neither checks every rule of the real service. The GCS emulator takes any token: that one is signed
with the key file is looked at on the way.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import obstore
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from e2e.local.pki import Authority
from tests.integration.loader.conftest import Pod
from tests.integration.loader.servers import ACCOUNT, ACCOUNT_KEY, Azure, Gcs, azure, gcs
from tests.support.relay import Relay
from tests.support.web import LoopbackServer, Request, Response
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch, PlanVersions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

DATA = os.urandom(6_000_000)
MAIL = "loader@project.iam.gserviceaccount.com"


@pytest.fixture(scope="module")
def google(
    server_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gcs]:
    with gcs(tmp_path_factory.mktemp("gcs"), server_files) as started:
        yield started


@pytest.fixture(scope="module")
def blobs(
    server_files: tuple[Path, Path], authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Azure]:
    folder = tmp_path_factory.mktemp("azure")
    (folder / "ca.crt").write_bytes(authority.identity.certificate)
    with azure(folder, server_files, folder / "ca.crt") as started:
        yield started


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def key_file(private_key: rsa.RSAPrivateKey) -> str:
    pem = private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return json.dumps(
        {
            "type": "service_account",
            "private_key_id": "k1",
            "private_key": pem,
            "client_email": MAIL,
        }
    )


@pytest.fixture
def keyed(trusting: Pod, key_file: str) -> Pod:
    """A pod with a service account's key file."""
    trusting.secret("model", serviceAccountKey=key_file)
    return trusting


def item(uri: str, **rest: object) -> PlanFetch:
    defaults: dict[str, object] = {
        "step": "model",
        "uri": uri,
        "target": "bert",
        "kind": FetchKind.MODEL,
        "file": "model.bin",
    }
    return PlanFetch(**{**defaults, "credentials": True, "ca": True, **rest})  # type: ignore[arg-type]


# --- Google Cloud Storage


def test_versions_in_a_bucket_and_their_listing(keyed: Pod, google: Gcs) -> None:
    for name in (
        "bert/1/model.bin",
        "bert/2/model.bin",
        "bert/2/more/a b+c.bin",
        "bert/config.pbtxt",
    ):
        google.put("models", name, name.encode())
    keyed.plan(item("gs://models/bert", endpoint=google.url, versions=PlanVersions(latest=2)))
    code, report = keyed.load()
    assert code == 0, keyed.output
    assert keyed.tree() == ["bert/1/model.bin", "bert/2/model.bin", "bert/2/more/a b+c.bin"]
    assert (keyed.models / "bert/2/more/a b+c.bin").read_bytes() == b"bert/2/more/a b+c.bin"
    recorded = report.sources[0].resolved_revision or ""
    assert recorded.startswith("versions=1,2;listing=")
    keyed.recorded()
    google.put("models", "bert/3/model.bin", b"newer")
    keyed.another()
    code, report = keyed.load()
    assert (code, report.sources[0].resolved_revision) == (0, recorded), keyed.output
    google.put("models", "bert/2/model.bin", b"overwritten")
    keyed.another()
    code, report = keyed.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED)
    assert "the listing differs from that of this revision's first load" in keyed.output


def test_an_object_with_its_generation(keyed: Pod, google: Gcs) -> None:
    generation = google.put("models", "one/net.bin", DATA)
    keyed.plan(item("gs://models/one/net.bin", endpoint=google.url))
    code, report = keyed.load()
    assert (code, report.sources[0].resolved_revision) == (0, generation), keyed.output
    assert (keyed.models / "bert/1/model.bin").read_bytes() == DATA


class Forward:
    """A proxy before the emulator, which finds buckets by its own host's name.

    ``cut`` ends the first answers with a body that long.
    """

    def __init__(self, url: str, cut: int | None = None, times: int = 1) -> None:
        self._url, self._cut, self._times = url, cut, times

    def __call__(self, request: Request) -> Response:
        asked = {
            name: value
            for name, value in request.headers.items()
            if name in ("authorization", "range", "if-match")
        }
        answer = httpx.request(
            request.method, self._url + request.path, headers=asked, verify=False, timeout=20
        )
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name.lower() not in ("connection", "transfer-encoding", "content-length")
        }
        response = Response(answer.status_code, kept, answer.content)
        if self._cut is not None and len(answer.content) > self._cut and self._times:
            self._times -= 1
            response.cut = self._cut
        return response


def test_a_broken_connection_to_gcs_is_resumed(pod: Pod, google: Gcs, key_file: str) -> None:
    google.put("models", "breaks.bin", DATA)
    pod.secret("model", serviceAccountKey=key_file)
    with LoopbackServer(Forward(google.url, cut=4_500_000)) as proxy:
        pod.plan(item("gs://models/breaks.bin", endpoint=proxy.url, ca=False))
        assert pod.load()[0] == 0, pod.output
    assert "resumes at" in pod.output
    assert [
        request.headers["range"] for request in proxy.requests if "range" in request.headers
    ] != []
    assert (pod.models / "bert/1/model.bin").read_bytes() == DATA


def test_an_object_replaced_between_two_attempts_is_fetched_again(
    pod: Pod, google: Gcs, key_file: str
) -> None:
    """The emulator ignores If-Match: that the rest belongs to another object shows in its ETag."""
    google.put("models", "replaced.bin", DATA)
    pod.secret("model", serviceAccountKey=key_file)
    fresh, forward = os.urandom(len(DATA)), Forward(google.url, cut=4_500_000)

    def replacing(request: Request) -> Response:
        if "range" in request.headers:
            google.put("models", "replaced.bin", fresh)
        return forward(request)

    with LoopbackServer(replacing) as proxy:
        pod.plan(item("gs://models/replaced.bin", endpoint=proxy.url, ca=False))
        assert pod.load()[0] == 0, pod.output
    assert (pod.models / "bert/1/model.bin").read_bytes() == fresh


def test_requests_are_signed_with_the_key_file(
    pod: Pod, google: Gcs, key_file: str, private_key: rsa.RSAPrivateKey
) -> None:
    google.put("models", "signed.bin", b"weights")
    with LoopbackServer(Forward(google.url)) as proxy:
        pod.secret("model", serviceAccountKey=key_file)
        pod.plan(
            item(
                "gs://models/signed.bin",
                endpoint=proxy.url,
                ca=False,
                kind=FetchKind.FILE,
                file=None,
                target="bert/1/model.bin",
            )
        )
        code, report = pod.load()
    assert code == 0, pod.output
    token = proxy.requests[0].headers["authorization"].removeprefix("Bearer ")
    head, claims, signature = token.split(".")
    private_key.public_key().verify(
        _b64(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
    )
    assert json.loads(_b64(claims))["iss"] == MAIL
    assert token not in pod.output
    # On loopback nothing leaves the pod; elsewhere the same is reported.
    assert [item.reason for item in report.findings] == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"serviceAccountKey": "s3cret-token-41d8"}, "serviceAccountKey contains invalid JSON"),
        (
            {"serviceAccountKey": '{"type": "authorized_user"}'},
            "is not the key file of a service account",
        ),
        (
            {"serviceAccountKey": '{"client_email": "a@b", "private_key": "s3cret-token-41d8"}'},
            "the store cannot be used as configured",
        ),
        ({"token": "s3cret-token-41d8"}, "the secret has no serviceAccountKey (it has token)"),
    ],
)
def test_a_key_file_that_is_none(
    trusting: Pod, google: Gcs, values: dict[str, str], says: str
) -> None:
    trusting.secret("model", **values)
    trusting.plan(item("gs://models/x.bin", endpoint=google.url))
    code, report = trusting.load()
    assert code == 2, trusting.output
    assert says in report.findings[0].message


def test_what_gcs_does_not_have(keyed: Pod, google: Gcs) -> None:
    for uri, says in (
        ("gs://models/nope", "no object nope and no objects below it"),
        ("gs://models/bert@", "no objects below"),
    ):
        keyed.plan(item(uri, endpoint=google.url))
        code, report = keyed.load()
        assert code == 2, keyed.output
        assert says in report.findings[0].message
    keyed.plan(item("gs://models/bert", endpoint=google.url, revision="123"))
    assert "is an object's version" in keyed.load()[1].findings[0].message


# --- Azure Blob Storage


@pytest.fixture
def account(trusting: Pod) -> Pod:
    """A pod with an account's key."""
    trusting.secret("model", accountName=ACCOUNT, accountKey=ACCOUNT_KEY)
    return trusting


def uri(key: str, container: str = "models") -> str:
    return f"az://{ACCOUNT}/{container}/{key}"


def test_a_folder_of_a_container_with_a_key(account: Pod, blobs: Azure) -> None:
    store = blobs.store("models")
    for name in ("bert/model.bin", "bert/sub/a b+c.txt", "bertha/x"):
        obstore.put(store, name, name.encode())
    account.plan(item(uri("bert/"), endpoint=blobs.endpoint, whole=True))
    code, report = account.load()
    assert code == 0, account.output
    assert account.tree() == ["bert/1/model.bin", "bert/1/sub/a b+c.txt"]
    assert (report.sources[0].resolved_revision or "").startswith("listing=")
    assert ACCOUNT_KEY not in account.output
    account.recorded()
    obstore.put(store, "bert/sub/a b+c.txt", b"changed")
    account.another()
    code, report = account.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED), account.output


def test_a_shared_access_signature_and_a_broken_connection(trusting: Pod, blobs: Azure) -> None:
    etag = obstore.put(blobs.store("models"), "large.bin", DATA)["e_tag"]
    sas = blobs.sas("rl")
    trusting.secret("model", sasToken=f"?{sas}")
    with Relay(blobs.url, stop_after=4_500_000, breaks=True) as relay:
        trusting.plan(item(uri("large.bin"), endpoint=f"{relay.url}/{ACCOUNT}"))
        code, report = trusting.load()
    assert (code, report.sources[0].resolved_revision) == (0, etag), trusting.output
    assert "resumes at" in trusting.output
    assert (trusting.models / "bert/1/model.bin").read_bytes() == DATA
    signature = httpx.QueryParams(sas)["sig"]
    for said in (sas, signature):
        assert said not in trusting.output + report.to_json()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"accountKey": base64.b64encode(b"s3cret-access-key-77aa").decode()},
            "the secret of source.secretRef cannot read",
        ),
        ({"accountKey": "s3cret-token-41d8!"}, "accountKey is not base64"),
        (
            {"accountName": "other", "accountKey": ACCOUNT_KEY},
            f"the secret is for account other, but the URI names {ACCOUNT}",
        ),
        (
            {"accountName": ACCOUNT},
            "must contain accountKey (with accountName) or sasToken (it has accountName)",
        ),
        (
            {
                "sasToken": "sv=2018-11-09&ss=b&srt=sco&sp=rl&se=2099-01-01T00:00:00Z"
                "&sig=s3cret-token-41d8"
            },
            "cannot read",
        ),
    ],
)
def test_credentials_that_do_not_fit(
    trusting: Pod, blobs: Azure, values: dict[str, str], says: str
) -> None:
    obstore.put(blobs.store("models"), "closed.bin", b"x")
    trusting.secret("model", **values)
    trusting.plan(item(uri("closed.bin"), endpoint=blobs.endpoint))
    code, report = trusting.load()
    assert code == 2, trusting.output
    assert says in report.findings[0].message, report.findings[0].message
    for value in values.values():
        assert value in (ACCOUNT, "other") or value not in trusting.output


def test_what_azure_does_not_have(account: Pod, blobs: Azure) -> None:
    blobs.store("models")
    for where, says in (
        (uri("nope/x.bin"), "no object nope/x.bin"),
        (uri("x", "nocontainer"), "check"),
        (f"az://{ACCOUNT}", "has no container"),
    ):
        account.plan(item(where, endpoint=blobs.endpoint))
        code, report = account.load()
        assert code == 2, account.output
        assert says in report.findings[0].message


def test_a_certificate_of_an_unknown_authority(
    pod: Pod, google: Gcs, blobs: Azure, key_file: str
) -> None:
    pod.secret("model", serviceAccountKey=key_file, accountKey=ACCOUNT_KEY)
    for where, endpoint in (("gs://models/x", google.url), (uri("x"), blobs.endpoint)):
        pod.plan(item(where, endpoint=endpoint, ca=False))
        code, report = pod.load()
        assert code == 2, pod.output
        assert "set its CA in source.caRef" in report.findings[0].message


def _b64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_host_of_an_endpoint_is_told_when_credentials_go_there_in_the_clear() -> None:
    from triton_pipelines.loader.cleartext import source_cleartext_host as insecure
    from triton_pipelines.loader.uris import SourceLocation

    assert insecure(SourceLocation("gs://b/k"), "http://store.example/x") == "store.example"
    assert insecure(SourceLocation("gs://b/k"), "https://store.example") is None
    assert (
        insecure(SourceLocation("s3://b/k", "http://mirror", mapped=True), "https://store.example")
        == "mirror"
    )
    assert (
        insecure(SourceLocation("s3://b/k", "https://mirror", mapped=True), "http://store.example")
        is None
    )
    assert insecure(SourceLocation("http://files.example/x", mapped=True), None) == "files.example"
    assert insecure(SourceLocation("http://127.0.0.1:1/x"), None) is None
    assert insecure(SourceLocation("pvc://c/x"), None) is None

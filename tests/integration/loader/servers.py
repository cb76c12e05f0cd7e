"""Real servers of source protocols on loopback, with TLS.

A registry with tokens, and emulators of GCS and Azure Blob Storage.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from obstore.store import AzureStore

from e2e.local import binaries, cache
from e2e.local.pki import Identity
from e2e.local.processes import Process, free_port
from tests.support.web import Request, Response
from triton_pipelines.loader.sources.stores import azure_store

AZURITE = Path(__file__).parents[3] / "e2e/local/npm/azurite"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own account, public knowledge: no secret."""
SERVICE, ISSUER = "registry.test", "issuer.test"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@contextlib.contextmanager
def running(
    name: str, command: list[str], folder: Path, url: str, env: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """A process, once ``url`` answers anything."""
    process = Process(name, command, folder / f"{name}.log", dict(env or {}))
    try:
        deadline = time.monotonic() + 60
        while True:
            process.check()
            try:
                httpx.get(url, verify=False, timeout=2)
                break
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                threading.Event().wait(0.05)
        yield process
    finally:
        process.stop()


# --- Google Cloud Storage


@dataclass
class Gcs:
    """fake-gcs-server; its objects are written through its JSON API."""

    url: str

    def bucket(self, name: str) -> None:
        answer = httpx.post(
            f"{self.url}/storage/v1/b?project=p",
            json={"name": name, "versioning": {"enabled": True}},
            verify=False,
            timeout=20,
        )
        assert answer.status_code in (200, 409), answer.text

    def put(self, bucket: str, name: str, data: bytes) -> str:
        """Write an object; its generation."""
        query = f"uploadType=media&name={quote(name, safe='')}"
        url = f"{self.url}/upload/storage/v1/b/{bucket}/o?{query}"
        answer = httpx.post(url, content=data, verify=False, timeout=20)
        answer.raise_for_status()
        return str(answer.json()["generation"])


@contextlib.contextmanager
def gcs(folder: Path, tls: tuple[Path, Path]) -> Iterator[Gcs]:
    """A running GCS emulator."""
    port = free_port()
    command = [
        str(binaries.path_of("fake-gcs-server")),
        "-backend",
        "memory",
        "-scheme",
        "https",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
    ]
    command += [
        "-public-host",
        f"127.0.0.1:{port}",
        "-cert-location",
        str(tls[0]),
        "-private-key-location",
        str(tls[1]),
    ]
    with running("fake-gcs-server", command, folder, f"https://127.0.0.1:{port}/storage/v1/b"):
        made = Gcs(f"https://127.0.0.1:{port}")
        made.bucket("models")
        yield made


# --- Azure Blob Storage


@dataclass
class Azure:
    """Azurite; ``store(container)`` writes to it."""

    url: str
    ca: Path

    @property
    def endpoint(self) -> str:
        return f"{self.url}/{ACCOUNT}"

    def sas(self, permissions: str) -> str:
        """Return an account's shared access signature.

        It follows Azure Storage services, Create an account SAS, version 2018-11-09.
        """
        expiry = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        signed = "\n".join((ACCOUNT, permissions, "b", "sco", "", expiry, "", "", "2018-11-09", ""))
        mac = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
        return urlencode(
            {
                "sv": "2018-11-09",
                "ss": "b",
                "srt": "sco",
                "sp": permissions,
                "se": expiry,
                "sig": base64.b64encode(mac).decode(),
            }
        )

    def store(self, container: str) -> AzureStore:
        answer = httpx.put(
            f"{self.endpoint}/{container}?restype=container&{self.sas('rwdlacup')}",
            verify=False,
            timeout=20,
        )
        assert answer.status_code in (201, 409), answer.text
        return azure_store(
            ACCOUNT,
            container,
            endpoint=self.endpoint,
            account_key=ACCOUNT_KEY,
            sas_token=None,
            ca=self.ca,
        )


@contextlib.contextmanager
def azure(folder: Path, tls: tuple[Path, Path], ca: Path) -> Iterator[Azure]:
    """A running Azure emulator.

    A test that needs it is skipped where there is no npm to install it with.
    """
    port = free_port()
    command = [
        "node",
        str(_azurite()),
        "--inMemoryPersistence",
        "--extentMemoryLimit",
        "200",
        "--disableTelemetry",
        "--skipApiVersionCheck",
    ]
    command += [
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--cert",
        str(tls[0]),
        "--key",
        str(tls[1]),
    ]
    with running("azurite", command, folder, f"https://127.0.0.1:{port}/"):
        yield Azure(f"https://127.0.0.1:{port}", ca)


def _azurite() -> Path:
    """Azurite's program, installed once as its lock file says.

    None of its packages' scripts run.
    """
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Azurite needs node and npm")
    target = (
        cache.cache_root() / f"npm-azurite-{cache.digest_tree(AZURITE, AZURITE.glob('*.json'))}"
    )
    with cache.locked(target):
        if not target.exists():
            scratch = target.with_name(f"{target.name}.tmp")
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(AZURITE, scratch)
            command = [
                "nice",
                "npm",
                "ci",
                "--ignore-scripts",
                "--omit=dev",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
            ]
            subprocess.run(command, cwd=scratch, check=True, timeout=300, stdin=subprocess.DEVNULL)
            scratch.replace(target)
    return target / "node_modules/azurite/dist/src/blob/main.js"


# --- OCI registry


@dataclass
class Registry:
    """distribution, the reference registry; ``issue`` answers as its token server for one user."""

    url: str
    user: tuple[str, str]
    identity: Identity
    asked: list[Request] = field(default_factory=list)
    seconds: int = 300

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def issue(self, request: Request) -> Response:
        """A token, as the token specification of distribution has it.

        For the private part of the registry to its user alone.
        """
        self.asked.append(request)
        scope = httpx.URL(f"http://x{request.path}").params.get("scope", "")
        name = scope.split(":")[1] if scope.count(":") == 2 else ""
        known = "Basic " + base64.b64encode(":".join(self.user).encode()).decode()
        presented = request.headers.get("authorization")
        if presented not in (None, known) or (presented is None and name.startswith("private/")):
            return Response(
                401,
                {"Content-Type": "application/json"},
                b'{"details": "incorrect username or password"}',
            )
        body = {"token": self.token(name, ["pull"]), "expires_in": self.seconds}
        return Response(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def token(self, name: str, actions: list[str]) -> str:
        """A signed token (JWT, ES256) for a repository."""
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": "",
            "aud": SERVICE,
            "exp": now + self.seconds,
            "nbf": now - 10,
            "iat": now,
            "jti": str(time.monotonic_ns()),
        }
        access = [{"type": "repository", "name": name, "actions": actions}]
        certificate = x509.load_pem_x509_certificate(self.identity.certificate).public_bytes(
            serialization.Encoding.DER
        )
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(certificate).decode()]}
        text = ".".join(
            _b64(json.dumps(part).encode()) for part in (header, {**claims, "access": access})
        )
        key = serialization.load_pem_private_key(self.identity.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        r, s = utils.decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def blob(self, name: str, data: bytes) -> dict[str, object]:
        """Push a blob; its descriptor without a type."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        with self._client(name) as client:
            started = client.post(f"{self.url}/v2/{name}/blobs/uploads/")
            started.raise_for_status()
            client.put(
                httpx.URL(started.headers["location"]).copy_merge_params({"digest": digest}),
                content=data,
            ).raise_for_status()
        return {"digest": digest, "size": len(data)}

    def manifest(self, name: str, reference: str, body: Mapping[str, object]) -> str:
        """Push a manifest or index; its digest."""
        data = json.dumps(body).encode()
        with self._client(name) as client:
            client.put(
                f"{self.url}/v2/{name}/manifests/{reference}",
                content=data,
                headers={"Content-Type": str(body["mediaType"])},
            ).raise_for_status()
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def push(self, name: str, reference: str, *layers: tuple[str, Mapping[str, str], bytes]) -> str:
        """Push an artifact or image of ``layers`` (media type, annotations, content).

        Its digest.
        """
        config = {"mediaType": "application/vnd.oci.empty.v1+json", **self.blob(name, b"{}")}
        pushed = [
            {
                "mediaType": media,
                **self.blob(name, data),
                **({"annotations": dict(notes)} if notes else {}),
            }
            for media, notes, data in layers
        ]
        return self.manifest(
            name,
            reference,
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": pushed},
        )

    def _client(self, name: str) -> httpx.Client:
        return httpx.Client(
            verify=False,
            timeout=20,
            headers={"Authorization": f"Bearer {self.token(name, ['pull', 'push'])}"},
        )


@contextlib.contextmanager
def registry(
    folder: Path, tls: tuple[Path, Path], auth: Mapping[str, object], port: int
) -> Iterator[str]:
    """A running registry; its address."""
    config = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / f"registry-{port}")}},
        "http": {
            "addr": f"127.0.0.1:{port}",
            "tls": {"certificate": str(tls[0]), "key": str(tls[1])},
        },
        "auth": dict(auth),
    }
    # The configuration is YAML, of which JSON is a part.
    path = folder / f"registry-{port}.yml"
    path.write_text(json.dumps(config))
    url = f"https://127.0.0.1:{port}"
    with running(
        f"registry-{port}",
        [str(binaries.path_of("registry")), "serve", str(path)],
        folder,
        f"{url}/v2/",
        {"OTEL_TRACES_EXPORTER": "none"},
    ):
        yield url


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

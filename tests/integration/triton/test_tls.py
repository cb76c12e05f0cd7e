"""TLS and mutual TLS of one real Triton, with the arguments and files that a pod gets."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.integration.triton.test_control import full_config
from tests.support import builders, pipelines
from tests.support.certificates import CLIENT, HOST, SERVER, Authority
from tests.support.python_backend import texts
from tests.support.triton import triton_server
from triton_pipelines.api import names
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.controllers.autoscaler import triton_pod
from triton_pipelines.controllers.pipeline.certificate_checks import read_certificate
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.server_certificate import CertificateError
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot
from triton_pipelines.controllers.pipeline.tls_trust import NO_TLS, tls_trust
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import UnreachableError
from triton_pipelines.triton.local_server import LocalTriton
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import probe
from triton_pipelines.triton.tls import ClientCertificate, TlsIdentity, accepted_identity

pytestmark = pytest.mark.integration
KEY = "0f8ad1c2-test-key"
EXAMPLE = {"TEXT": texts("the quick fox", "a dog")}
AUTHORITY = Authority(dt.datetime.now(dt.UTC))
OTHER = Authority(dt.datetime.now(dt.UTC), "another authority")
Content = Mapping[str, bytes]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "models"
    pipelines.write_pipeline(path)
    return path


def arguments(folder: Path, mode: TlsMode) -> list[str]:
    """The arguments of a pod that TLS adds, with the files in a folder."""
    tls = {"secretName": "certs", "mode": mode.value}
    template = builders.built(server={"tls": tls}).render().template
    (server,) = template["spec"]["containers"]
    added = [item for item in server["args"] if names.PATH_TLS in item or "-use-ssl" in item]
    (restricted,) = [item for item in server["args"] if "--http-restricted-api" in item]
    key = f"$({names.ENV_CONTROL_KEY})"
    # The server of the tests restricts the groups of control itself.
    restricted = restricted.replace(f",{names.CONTROL_GROUPS}:", ":").replace(key, KEY)
    return [restricted, *(item.replace(names.PATH_TLS, str(folder)) for item in added)]


@contextlib.contextmanager
def tls_server(
    repository: Path, folder: Path, content: Content, mode: TlsMode, **options: Any
) -> Iterator[LocalTriton]:
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    extra = [*arguments(folder, mode), *options.pop("extra_args", ())]
    with triton_server(
        repository, [pipelines.ENSEMBLE], control_key=KEY, extra_args=extra, **options
    ) as running:
        yield running


def identity(content: Content, mode: TlsMode = TlsMode.SIMPLE) -> TlsIdentity:
    """What the operator knows of a Secret."""
    found = read_certificate(content, "certs", mode)
    return TlsIdentity(found.roots.encode(), found.name, found.client)


SIMPLE = AUTHORITY.secret(HOST)
FORMER = AUTHORITY.secret("former.nlp.svc")
MUTUAL = AUTHORITY.secret(HOST, usages=[SERVER, CLIENT])


@pytest.fixture(scope="module")
def simple(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    folder = tmp_path_factory.mktemp("simple") / "tls"
    with tls_server(repository, folder, SIMPLE, TlsMode.SIMPLE) as running:
        yield running


async def live(server: LocalTriton, tls: TlsIdentity | None) -> bool:
    async with TritonClient(server.grpc_address, KEY, tls=tls) as client:
        return await client.model_ready(pipelines.ENSEMBLE)


@pytest.mark.proves("spec.server.tls.secretName", "behaviour")
async def test_every_call_of_the_operator_works_over_tls(
    simple: LocalTriton, repository: Path
) -> None:
    async with TritonClient(simple.grpc_address, KEY, tls=identity(SIMPLE)) as client:
        assert await client.model_ready(pipelines.ENSEMBLE)
        assert await client.infer(pipelines.ENSEMBLE, EXAMPLE)
        assert await client.first_response(pipelines.ENSEMBLE, EXAMPLE)
        for count in (2, 1):
            changed = full_config(repository, pipelines.TOKENIZER, count)
            await client.load_model(pipelines.TOKENIZER, changed)
            assert await client.instance_count(pipelines.TOKENIZER) == count
    request = ProbeRequest(EXAMPLE)
    probed = await probe(
        simple.grpc_address, pipelines.ENSEMBLE, KEY, request, 10, identity(SIMPLE)
    )
    assert probed.healthy


async def test_the_certificate_alone_is_trusted_without_its_authority(simple: LocalTriton) -> None:
    """A public authority is not in the Secret."""
    content = {key: data for key, data in SIMPLE.items() if key != names.KEY_AUTHORITIES}
    assert await live(simple, identity(content))


@pytest.mark.parametrize(
    "tls",
    [None, identity(OTHER.secret(HOST)), TlsIdentity(identity(SIMPLE).roots, "other.nlp.svc")],
    ids=["plaintext", "another certificate", "another host"],
)
async def test_other_connections_over_grpc_fail(
    simple: LocalTriton, tls: TlsIdentity | None
) -> None:
    with pytest.raises(UnreachableError):
        await live(simple, tls)
    probed = await probe(simple.grpc_address, pipelines.ENSEMBLE, KEY, None, 10, tls)
    assert probed.error
    assert not probed.healthy


async def test_a_pod_is_reached_that_already_presents_a_renewed_certificate(
    simple: LocalTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restarted before the renewal is rolled out, and the host name has changed."""
    renewed, former = (read_certificate(one, "certs", TlsMode.SIMPLE) for one in (SIMPLE, FORMER))
    roots = {one.digest: one.roots for one in (renewed, former)}
    hosts = {one.digest: one.name for one in (renewed, former)}
    live = {names.KEY_STATE: json.dumps({"certificate": {"roots": roots, "hosts": hosts}})}
    raw = {"metadata": {"name": "p", "annotations": {names.ANNOTATION_CERTIFICATE: former.digest}}}
    pod = Pod.of({**raw, "status": {"podIP": simple.address}})
    children = {("ConfigMap", names.live_name("p")): {"data": live}}
    trust = tls_trust(Snapshot({"metadata": {"name": "p"}}, children, (pod,)), NO_TLS)
    tls = trust.identity(pod)
    assert tls is not None
    assert tls.name == "former.nlp.svc"
    request = ProbeRequest(EXAMPLE)
    probed = await probe(simple.grpc_address, pipelines.ENSEMBLE, KEY, request, 10, tls)
    assert probed.healthy
    monkeypatch.setattr(triton_pod, "PORT_GRPC", simple.grpc_port)
    graph = builders.built().graph
    async with triton_pod.client_of(ProbeTarget(pod, graph, KEY, None, tls)) as client:
        assert await client.instance_count(pipelines.TOKENIZER)


async def test_no_alternative_is_accepted_without_trust(simple: LocalTriton) -> None:
    other = TlsIdentity(OTHER.certificate, HOST)
    tls = TlsIdentity(identity(SIMPLE).roots, "former.nlp.svc", alternatives=(other,))
    assert await accepted_identity(simple.grpc_address, tls) is tls
    assert (await probe(simple.grpc_address, pipelines.ENSEMBLE, KEY, None, 10, tls)).error


async def test_a_pod_that_does_not_answer_is_given_up_in_time() -> None:
    tls = TlsIdentity(b"", "a", alternatives=(TlsIdentity(b"", "b"),))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await accepted_identity(address, tls, 0.2) is tls


@pytest.mark.parametrize(
    "key",
    [Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP521R1())],
    ids=["Ed25519", "P-521"],
)
async def test_keys_of_other_types_are_rejected_because_no_connection_succeeds(
    repository: Path, tmp_path: Path, key: CertificateIssuerPrivateKeyTypes
) -> None:
    content = AUTHORITY.secret(HOST, key=key)
    with pytest.raises(CertificateError):
        identity(content)
    with (
        tls_server(repository, tmp_path / "tls", content, TlsMode.SIMPLE) as server,
        pytest.raises(UnreachableError),
    ):
        await live(server, TlsIdentity(content["ca.crt"], HOST))


async def test_http_answers_the_kubelet_alone(simple: LocalTriton) -> None:
    model = f"/v2/models/{pipelines.ENSEMBLE}"
    async with httpx.AsyncClient(base_url=simple.http_url, trust_env=False) as web:
        for path in ("/v2/health/live", f"{model}/ready"):
            assert (await web.get(path)).status_code == httpx.codes.OK
        for path in ("/v2", model, f"{model}/config", f"{model}/stats"):
            assert (await web.get(path)).status_code == httpx.codes.FORBIDDEN
        for path in (f"{model}/infer", f"{model}/generate", f"{model}/generate_stream"):
            assert (await web.post(path, json={})).status_code == httpx.codes.FORBIDDEN


@pytest.mark.proves("spec.server.tls.mode", "behaviour")
async def test_mutual_tls_admits_clients_of_the_authority_alone(
    repository: Path, tmp_path: Path
) -> None:
    with tls_server(repository, tmp_path / "tls", MUTUAL, TlsMode.MUTUAL) as server:
        assert await live(server, identity(MUTUAL, TlsMode.MUTUAL))
        server_known = identity(MUTUAL)
        for roots in (server_known.roots,):
            with pytest.raises(UnreachableError):
                await live(server, TlsIdentity(roots, HOST))
            stranger = OTHER.secret("client", usages=[CLIENT])
            foreign = ClientCertificate(stranger["tls.crt"], stranger["tls.key"])
            with pytest.raises(UnreachableError):
                await live(server, TlsIdentity(roots, HOST, foreign))
            own = AUTHORITY.secret("client", usages=[CLIENT])
            client = ClientCertificate(own["tls.crt"], own["tls.key"])
            assert await live(server, TlsIdentity(roots, HOST, client))


@contextlib.asynccontextmanager
async def service(targets: list[LocalTriton], moved: asyncio.Event) -> AsyncIterator[str]:
    """Forward each new connection to the last target, as a Service does to the ready pods.

    ``moved`` is set whenever a connection ends and all others are to the last target.
    """
    connected: list[LocalTriton] = []

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = targets[-1]
        connected.append(target)
        pod = await asyncio.open_connection(target.address, target.grpc_port)
        await asyncio.gather(copy(reader, pod[1]), copy(pod[0], writer))
        connected.remove(target)
        if all(one is targets[-1] for one in connected):
            moved.set()

    listener = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with listener:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def test_no_request_is_lost_while_a_certificate_is_replaced(
    repository: Path, tmp_path: Path
) -> None:
    """Ordinary clients, which trust the authority, move to the new pod before the old one ends."""
    aged = {"extra_args": ["--grpc-max-connection-age=500"]}
    old, new = AUTHORITY.secret(HOST), AUTHORITY.secret(HOST)
    credentials = grpc.ssl_channel_credentials(AUTHORITY.certificate)
    options = [("grpc.ssl_target_name_override", HOST), ("grpc.use_local_subchannel_pool", 1)]
    outcomes: asyncio.Queue[str] = asyncio.Queue()
    seen: list[str] = []
    phase, done, moved = "old", asyncio.Event(), asyncio.Event()

    async def client(address: str) -> None:
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ModelInferRequest(model_name=pipelines.ENSEMBLE)
            tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=[1, 1])
            tensor.contents.bytes_contents.append(b"a dog")
            while not done.is_set():
                sent = phase
                try:
                    await stub.ModelInfer(request, timeout=30)
                    outcomes.put_nowait(sent)
                except grpc.aio.AioRpcError as error:
                    outcomes.put_nowait(f"{error.code()}: {error.details()}")

    async def answers(more: int) -> None:
        async with asyncio.timeout(60):
            seen.extend([await outcomes.get() for _ in range(more)])

    with contextlib.ExitStack() as servers:
        first = servers.enter_context(contextlib.ExitStack())
        running = [
            first.enter_context(
                tls_server(repository, tmp_path / "old", old, TlsMode.SIMPLE, **aged)
            )
        ]
        async with service(running, moved) as address, asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(client(address))
            await answers(100)
            second = await asyncio.to_thread(
                servers.enter_context,
                tls_server(repository, tmp_path / "new", new, TlsMode.SIMPLE, **aged),
            )
            running.append(second)
            moved.clear()
            # The connections end within their age and a tenth; a pod drains for longer.
            await asyncio.wait_for(moved.wait(), 30)
            phase = "new"
            await asyncio.to_thread(first.close)
            await answers(outcomes.qsize() + 100)
            done.set()
        while not outcomes.empty():
            seen.append(outcomes.get_nowait())
        assert set(seen) == {"old", "new"}
        assert await live(second, identity(new))
        with pytest.raises(UnreachableError):
            await live(second, identity({key: old[key] for key in ("tls.crt", "tls.key")}))

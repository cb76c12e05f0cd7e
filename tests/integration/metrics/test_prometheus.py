"""The collector on a real Prometheus, with injected faults.

Prometheus scrapes a real Triton and pages in Triton's format.
"""

import asyncio
import datetime
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.local.pki import Authority
from tests.support.faultproxy import Fault, FaultProxy, plain_upstream
from tests.support.prometheus import Pages, PrometheusServer, Target, page
from tests.support.recorder import until
from tests.support.triton import triton_server, write_model
from triton_pipelines.autoscaling.metrics.collector import PrometheusCollector
from triton_pipelines.autoscaling.metrics.connection import Connection
from triton_pipelines.autoscaling.metrics.rates import rates
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration

MODELS = frozenset({"tokenizer", "model"})
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())]) for r in requests]
"""  # noqa: E501
ECHO_CONFIG = """
name: "echo" backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""  # noqa: E501
USER, PASSWORD = "operator", "c0rrect horse"
# bcrypt of the password, with the cheapest cost.
HASH = "$2b$04$abcdefghijklmnopqrstuuLw4a6zzhmP3yhLbN7O6IGz7nfuX0j2G"
COUNTERS = r"query\?query=%7B__name__"  # the query for counters, as it stands in a URL
Key = tuple[str, str]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "echo", ECHO_CONFIG, {"model.py": ECHO})
    with triton_server(repository, ["echo"]) as server:
        yield server


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    with Pages() as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(triton: LocalTriton, pages: Pages) -> Iterator[PrometheusServer]:
    """Run a Prometheus that scrapes Triton and the pages.

    Triton is pod triton-0 of namespace real. Pages are pods of namespace default, some of them
    scraped in more than one way.
    """
    pages.text = {
        name: page(100) for name in ("a", "b", "twice", "clusters", "reset", "nan", "restarted")
    }
    pages.text["boxed"] = page(100, gpu=None)
    targets = [
        Target(f"127.0.0.1:{triton.metrics_port}", {"namespace": "real", "pod": "triton-0"}),
        *(pages.target(name) for name in ("a", "b", "boxed", "twice", "reset", "nan", "restarted")),
        pages.target("twice", job="again"),
        pages.target("clusters", cluster="one"),
        pages.target("clusters", cluster="two"),
        pages.target("down"),
    ]
    with PrometheusServer(targets) as server:
        yield server


@asynccontextmanager
async def faulty(
    prometheus: PrometheusServer, folder: Path, **more: Any
) -> AsyncIterator[tuple[PrometheusCollector, FaultProxy]]:
    """A collector that reaches Prometheus through a proxy that injects faults."""
    async with FaultProxy(plain_upstream(prometheus.url, folder / "upstream")) as proxy:
        connection = Connection.model_validate({"url": proxy.url, "timeoutSeconds": 10, **more})
        async with PrometheusCollector(connection) as made:
            yield made, proxy


def expected(
    *pods: str, namespace: str = "default", models: frozenset[str] = MODELS
) -> dict[Key, ExpectedPods]:
    return {(namespace, pods[0]): ExpectedPods(namespace, dict.fromkeys(pods, ""), models, 60.0)}


async def look(
    made: PrometheusCollector,
    wanted: dict[Key, ExpectedPods],
    holds: Callable[[PipelineSample | MetricsFailure], bool],
    seconds: float = 30,
) -> Any:
    """Collects until what is known of the one pipeline is as awaited."""
    said: PipelineSample | MetricsFailure | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                (said,) = (await made.collect(wanted)).values()
                if holds(said):
                    return said
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s; last seen: {said}") from None


def seen(said: PipelineSample | MetricsFailure) -> bool:
    return isinstance(said, PipelineSample)


async def test_counters_of_a_real_triton_are_its_own_and_times_are_those_of_the_scrapes(
    triton: LocalTriton, prometheus: PrometheusServer, tmp_path: Path
) -> None:
    wanted = expected("triton-0", namespace="real", models=frozenset({"echo"}))
    body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
    async with (
        faulty(prometheus, tmp_path) as (made, proxy),
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
    ):
        first = await look(made, wanted, seen)
        for _ in range(20):
            (
                await client.post(f"{triton.http_url}/v2/models/echo/infer", json=body)
            ).raise_for_status()
        own = (await client.get(f"{triton.http_url}/v2/models/echo/stats")).json()["model_stats"][0]
        found = await look(
            made,
            wanted,
            lambda said: (
                seen(said) and said.pods["triton-0"].scrapes[-1].models["echo"].success == 20
            ),
        )
        newest = found.pods["triton-0"].scrapes[-1].models["echo"]
        assert newest.execs == own["execution_count"]
        assert newest.compute_infer_us == pytest.approx(
            own["inference_stats"]["compute_infer"]["ns"] / 1000, abs=20
        )
        assert newest.pending == 0
        (raw,) = prometheus.query('nv_inference_request_success{pod="triton-0"}[1m]')
        times = {at for at, _ in raw["values"]}
        assert {scrape.at for scrape in found.pods["triton-0"].scrapes} <= times
        assert found.interval == pytest.approx(1.0, abs=0.5)
        usage = found.pods["triton-0"].usage
        assert usage is None or usage.gpu is None, "there is no GPU here"
        assert first.pods["triton-0"].scrapes[0].models["echo"].success == 0
    windows = [
        int(one)
        for request in proxy.requests
        for one in re.findall(r"%5B(\d+)ms%5D$", request.target.split("&")[0])
    ]
    assert windows[0] == 75000
    assert all(window < 75000 for window in windows[1:])


async def test_pods_that_are_scraped_twice_or_exist_twice(prometheus: PrometheusServer) -> None:
    async with PrometheusCollector(Connection(url=prometheus.url)) as made:
        twice = await look(
            made, expected("twice"), lambda said: seen(said) and len(said.pods["twice"].scrapes) > 2
        )
        assert twice.pods["twice"].scrapes[-1].models["model"].success == 100
        assert any(
            "scraped more than once (job: 'again' and 'triton')" in note for note in twice.notes
        )
        foreign = await look(
            made,
            expected("clusters"),
            lambda said: (
                isinstance(said, MetricsFailure) and said.problem is MetricsProblem.PARTIAL
            ),
        )
        assert "cluster: 'one' and 'two'" in foreign.message
    async with PrometheusCollector(
        Connection(url=prometheus.url, matchers={"cluster": "two"})
    ) as made:
        alone = await look(made, expected("clusters"), seen)
        assert alone.notes == ()
        assert alone.pods["clusters"].usage.gpu == 0.5
    async with PrometheusCollector(Connection(url=prometheus.url)) as made:
        down = await look(made, expected("down"), lambda said: "up is 0" in said.message)
        assert down.problem is MetricsProblem.MISSING


async def test_raw_counters_pass_a_reset_and_nan_is_no_sample(
    prometheus: PrometheusServer, pages: Pages
) -> None:
    async with PrometheusCollector(Connection(url=prometheus.url)) as made:
        await look(made, expected("reset"), seen)
        pages.text["reset"] = page(3)
        found = await look(
            made,
            expected("reset"),
            lambda said: seen(said) and said.pods["reset"].scrapes[-1].models["model"].success == 3,
        )
        history = found.pods["reset"]
        counted = [scrape.models["model"].success for scrape in history.scrapes]
        assert [count for count, _ in itertools.groupby(counted)] == [100, 3]
        measured = rates(history, "model", 60.0)
        assert measured is None or not measured.covered
        await look(made, expected("nan", "a"), lambda said: seen(said) and len(said.pods) == 2)
        pages.text["nan"] = page(100).replace(" 100\n", " NaN\n", 1)
        partial = await look(
            made, expected("nan", "a"), lambda said: seen(said) and len(said.pods) == 1
        )
        assert set(partial.pods) == {"a"}
        assert "pod nan has no usable samples" in partial.notes[0]
        assert "nv_inference_request_success of model 'tokenizer' is NaN" in partial.notes[0]
        pages.text["nan"] = page(100)


CONTAINER = """
container_cpu_usage_seconds_total{{container="triton",namespace="default",pod="boxed",cpu="total",id="/x"}} {cpu}
container_cpu_usage_seconds_total{{container="",namespace="default",pod="boxed",cpu="total",id="/"}} {cpu}9
container_cpu_cfs_periods_total{{container="triton",namespace="default",pod="boxed"}} {periods}
container_cpu_cfs_throttled_periods_total{{container="triton",namespace="default",pod="boxed"}} {throttled}
container_memory_working_set_bytes{{container="triton",namespace="default",pod="boxed"}} 123456789
DCGM_FI_DEV_GPU_UTIL{{exported_namespace="default",exported_pod="boxed",gpu="0"}} 40
DCGM_FI_DEV_GPU_UTIL{{exported_namespace="default",exported_pod="boxed",gpu="1"}} 75
"""  # noqa: E501


async def test_figures_of_containers_and_of_a_gpu_exporter(
    prometheus: PrometheusServer, pages: Pages
) -> None:
    """Series as cAdvisor and the DCGM exporter name them, on a stand-in's page."""
    plain = page(100, gpu=None)
    pages.text["boxed"] = plain + CONTAINER.format(cpu=1000, periods=1000, throttled=1000)

    def measured(said: PipelineSample | MetricsFailure) -> bool:
        usage = said.pods["boxed"].usage if isinstance(said, PipelineSample) else None
        return usage is not None and bool(usage.cpu_cores) and usage.gpu is not None

    async def stored(query: str) -> None:
        await until(
            lambda: asyncio.to_thread(prometheus.query, query), f"samples that give {query}", 20
        )

    await stored('count_over_time(container_cpu_usage_seconds_total{container="triton"}[1m]) > 1')
    pages.text["boxed"] = plain + CONTAINER.format(cpu=1006, periods=1040, throttled=1010)
    await stored('container_cpu_usage_seconds_total{container="triton"} == 1006')
    async with PrometheusCollector(Connection(url=prometheus.url)) as made:
        found = await look(made, expected("boxed"), measured)
    usage = found.pods["boxed"].usage
    (rate,) = prometheus.query('rate(container_cpu_usage_seconds_total{container="triton"}[60s])')
    assert usage.cpu_cores == pytest.approx(float(rate["value"][1]), rel=0.3)
    assert usage.throttled == pytest.approx(0.25)
    assert usage.memory_bytes == 123456789
    assert usage.gpu == pytest.approx(0.75)


def without(names: str) -> Callable[[bytes], bytes]:
    def rewrite(body: bytes) -> bytes:
        document = json.loads(body)
        kept = [
            one
            for one in document["data"]["result"]
            if not re.search(names, json.dumps(one["metric"]))
        ]
        return json.dumps({**document, "data": {**document["data"], "result": kept}}).encode()

    return rewrite


def with_values(value: str) -> Callable[[bytes], bytes]:
    return lambda body: re.sub(rb'(\[[\d.]+,)"[^"]*"\]', rb'\1"' + value.encode() + rb'"]', body)


def doubled(body: bytes) -> bytes:
    document = json.loads(body)
    document["data"]["result"] *= 2
    return json.dumps(document).encode()


FAULTS = {
    "503": (Fault(status=503), MetricsProblem.ERROR, "HTTP 503"),
    "dropped": (Fault(drop=True), MetricsProblem.ERROR, "ended early|cannot be reached"),
    "cut": (Fault(cut_after=200), MetricsProblem.ERROR, "ended early|is not JSON"),
    "dripping": (Fault(drip=0.05), MetricsProblem.ERROR, "no complete response within 1 s"),
    "hanging": (Fault(delay=30), MetricsProblem.ERROR, "no complete response within 1 s"),
    "error inside 200": (
        Fault(rewrite=lambda _: b'{"status":"error","errorType":"execution","error":"oops"}'),
        MetricsProblem.ERROR,
        "execution: oops",
    ),
    "a page": (
        Fault(rewrite=lambda _: b"<html>sign in</html>"),
        MetricsProblem.ERROR,
        "is not JSON",
    ),
    "NaN": (Fault(rewrite=with_values("NaN")), MetricsProblem.PARTIAL, "is NaN"),
    "Inf": (Fault(rewrite=with_values("+Inf")), MetricsProblem.PARTIAL, r"is \+Inf"),
    "negative": (Fault(rewrite=with_values("-1")), MetricsProblem.PARTIAL, "is -1"),
    "a metric lacks": (
        Fault(rewrite=without("exec_count")),
        MetricsProblem.PARTIAL,
        "has no nv_inference_exec_count",
    ),
    "a model lacks": (
        Fault(rewrite=without('"tokenizer"')),
        MetricsProblem.PARTIAL,
        "no series for model 'tokenizer'",
    ),
    "everything lacks": (Fault(rewrite=without(".")), MetricsProblem.STALE, r"more than \d+ s old"),
    "duplicates": (
        Fault(rewrite=doubled),
        MetricsProblem.PARTIAL,
        "the same series occurs twice",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_a_failure_with_its_name_and_passes(
    name: str, prometheus: PrometheusServer, tmp_path: Path
) -> None:
    fault, trouble, words = FAULTS[name]
    fault.path, fault.times = COUNTERS, None
    said: list[PipelineSample | MetricsFailure] = []
    async with faulty(prometheus, tmp_path, timeoutSeconds=1) as (made, proxy):
        before = await look(
            made, expected("a"), lambda one: seen(one) and len(one.pods["a"].scrapes) > 2
        )
        proxy.inject(fault)
        # On a busy machine an answer may also miss the deadline of 1 s, which is another problem.
        await look(
            made,
            expected("a"),
            lambda one: (
                said.append(one)
                or (
                    isinstance(one, MetricsFailure)
                    and one.problem is trouble
                    and re.search(words, one.message) is not None
                )
            ),
        )
        proxy.clear()
        after = await look(made, expected("a"), lambda one: said.append(one) or seen(one))
    assert after.pods["a"].scrapes[-1].at >= before.pods["a"].scrapes[-1].at
    counted = {
        scrape.models["model"].success
        for one in (before, *said)
        if isinstance(one, PipelineSample)
        for scrape in one.pods["a"].scrapes
    }
    assert counted == {100.0}, "a value that no page had"


async def test_a_server_without_container_figures_or_targets_is_asked_no_more_than_needed(
    prometheus: PrometheusServer, tmp_path: Path
) -> None:
    wanted = {
        ("default", name): ExpectedPods("default", {name: ""}, MODELS, 60.0) for name in ("a", "b")
    }
    async with faulty(prometheus, tmp_path) as (made, proxy):
        await made.collect(wanted)
        assert len(proxy.requests) == 3, "time, counters, figures"
        await made.collect(wanted)
        assert len(proxy.requests) == 5


async def test_tls_with_an_own_authority_a_client_certificate_a_password_and_a_path_prefix(
    tmp_path: Path,
) -> None:
    authority = Authority(datetime.datetime.now(datetime.UTC))
    server, client = authority.server("prometheus", ["127.0.0.1"]), authority.client("operator")
    files = {
        "ca.crt": authority.identity.certificate,
        "server.crt": server.certificate,
        "server.key": server.key,
        "tls.crt": client.certificate,
        "tls.key": client.key,
        "user": USER.encode(),
        "password": PASSWORD.encode(),
        "other-ca.crt": Authority(datetime.datetime.now(datetime.UTC)).identity.certificate,
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    web = {
        "tls_server_config": {
            "cert_file": str(tmp_path / "server.crt"),
            "key_file": str(tmp_path / "server.key"),
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(tmp_path / "ca.crt"),
        },
        "basic_auth_users": {USER: HASH},
    }
    trust = {
        "caFile": tmp_path / "ca.crt",
        "certFile": tmp_path / "tls.crt",
        "keyFile": tmp_path / "tls.key",
    }
    basic = {"usernameFile": tmp_path / "user", "passwordFile": tmp_path / "password"}
    context = httpx.create_ssl_context(verify=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with PrometheusServer(
        web=web, prefix="/prom", ready={"verify": context, "auth": (USER, PASSWORD)}
    ) as server_process:

        async def said(**connection: Any) -> str:
            made = Connection.model_validate({"url": server_process.url, **connection})
            async with PrometheusCollector(made) as collector:
                (answer,) = (await collector.collect(expected("a"))).values()
            assert isinstance(answer, MetricsFailure)
            assert PASSWORD not in answer.message + repr(made)
            return answer.message

        assert "no series" in await said(tls=trust, basicAuth=basic)
        assert "HTTP 401" in await said(tls=trust)
        assert "certificate" in await said(tls={"caFile": tmp_path / "ca.crt"}, basicAuth=basic)
        assert "TLS: unable to get local issuer certificate" in await said(basicAuth=basic)
        assert "TLS: " in await said(
            tls={**trust, "caFile": tmp_path / "other-ca.crt"}, basicAuth=basic
        )
        assert "no series" in await said(
            tls={**trust, "caFile": None}, basicAuth=basic, security="Insecure"
        )
        assert "path prefix" in await said(
            url=server_process.url.removesuffix("/prom") + "/other", tls=trust, basicAuth=basic
        )
        made = Connection.model_validate(
            {
                "url": server_process.url,
                "tls": {**trust, "caFile": tmp_path / "other-ca.crt"},
                "basicAuth": basic,
            }
        )
        async with PrometheusCollector(made) as collector:
            assert "TLS: " in next(iter((await collector.collect(expected("a"))).values())).message
            (tmp_path / "other-ca.crt").write_bytes(
                files["ca.crt"]
            )  # as the kubelet does when the ConfigMap changes
            assert (
                "no series" in next(iter((await collector.collect(expected("a"))).values())).message
            )


async def test_a_restart_with_empty_storage_is_a_gap_and_no_new_beginning(
    prometheus: PrometheusServer, pages: Pages
) -> None:
    """The last test of this file: it restarts the server that all share."""
    said: list[PipelineSample | MetricsFailure] = []
    async with PrometheusCollector(Connection(url=prometheus.url)) as made:
        await look(
            made,
            expected("restarted"),
            lambda one: seen(one) and len(one.pods["restarted"].scrapes) > 2,
        )
        await asyncio.to_thread(prometheus.stop)
        down = await look(made, expected("restarted"), lambda one: isinstance(one, MetricsFailure))
        assert "cannot be reached: Connection refused" in down.message
        pages.text["restarted"] = page(160)
        await asyncio.to_thread(prometheus.start, empty=True)
        empty = await look(
            made,
            expected("restarted"),
            lambda one: (
                said.append(one)
                or (isinstance(one, MetricsFailure) and one.problem is MetricsProblem.STALE)
            ),
        )
        assert "s old" in empty.message
        back = await look(made, expected("restarted"), lambda one: said.append(one) or seen(one))
    values = [scrape.models["model"].success for scrape in back.pods["restarted"].scrapes]
    assert values[0] == 100
    assert values[-1] == 160
    assert values == sorted(values)

"""``make demo``: show the product on this machine, then on a real single-node cluster.

    python -m e2e.demo            KEEP=1 keeps the cluster and what is installed in it

Everything runs on loopback and in a network namespace of its own, and is removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from e2e import scaling_demo
from e2e.local import binaries, native, packages
from e2e.local.cluster import PRODUCT_IMAGES, Cluster
from e2e.local.images import SAMPLES_IMAGE
from e2e.local.kind import KindCluster, docker_is_available
from e2e.models import tree
from e2e.models.__main__ import source_map
from e2e.showing import DemoError, console, say
from e2e.suite import diagnostics
from e2e.suite.access import Images
from e2e.suite.installation import Installation, namespace
from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import Pipeline, merged, sample
from e2e.suite.reach import Reach
from e2e.suite.scraping import Scraper, scraper

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "demo"
TOOL = Path(sys.executable).with_name("tritonpipe")
SAMPLE = ROOT / "manifests" / "samples" / "sentiment.yaml"
CLUSTER = "demo"
AnyCluster = Cluster | KindCluster
CLUSTERS: dict[str, type[AnyCluster]] = {kind.__name__: kind for kind in (Cluster, KindCluster)}
"""By the name that the process which builds the cluster gets."""
TEXTS = (
    "What a wonderful evening, I enjoyed every minute.",
    "The food was cold and nobody cared.",
    "I would gladly come again.",
)
EXPECTED = ("positive", "negative", "positive")
SERVE_SECONDS = 90.0
CLUSTER_SECONDS = 30 * 60.0


def main() -> int:
    """Run the demo; exit code 1 when a step failed."""
    OUT.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    figures: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster, obstacle = _choose_cluster()
    try:
        native.install()  # before the cluster's builds, which would delay the first answer
        with contextlib.ExitStack() as stack:
            building = stack.enter_context(_cluster_build(cluster)) if cluster else None
            figures.append(_serve(began))
            if cluster is None or building is None:
                console.print(f"skipping the part on a cluster: {obstacle}")
            else:
                _wait_for(building)
                figures += _on_cluster(cluster)
    except (
        DemoError,
        AssertionError,
        subprocess.SubprocessError,
        OSError,
        native.NativeBuildError,
    ) as error:
        console.print(f"[red]the demo failed:[/red] {error}", markup=True)
        console.print(f"logs: {OUT.relative_to(ROOT)}/", markup=False)
        return 1
    finally:
        if cluster and os.environ.get("KEEP") != "1":
            say("Cleaning up: removing the cluster")
            cluster.down()
    console.print(
        f"\n[bold green]done in {time.monotonic() - began:.0f} s:[/bold green]"
        f" {' · '.join(figures)}",
        soft_wrap=True,
    )
    return 0


def _choose_cluster() -> tuple[AnyCluster | None, str]:
    """Return the cluster of the demo, or why none can be started.

    It is kind on request, or if a local node cannot run here and Docker is available.
    """
    obstacle = _no_local_cluster()
    if os.environ.get("CLUSTER") == "kind":
        obstacle = "CLUSTER=kind needs Docker, and `docker info` fails"
    elif not obstacle:
        return Cluster(CLUSTER), ""
    return (KindCluster(CLUSTER), "") if docker_is_available() else (None, obstacle)


def _no_local_cluster() -> str:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"a local node needs Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    if os.geteuid() != 0:
        return (
            "a local node needs root; run `sudo make demo`,"
            " or install the chart on your cluster (docs/user/install.md)"
        )
    return ""


# --- on this machine alone


def _serve(began: float) -> str:
    say("1. The pipeline on this machine: a real Triton on CPU, without a cluster or GPU")
    console.print(f"$ tritonpipe serve {SAMPLE.relative_to(ROOT)}", markup=False)
    log = OUT / "serve.log"
    ports = ["--port=0", "--grpc-port=0", "--metrics-port=0"]
    command = [str(TOOL), "serve", str(SAMPLE), *ports, *source_map(tree.build())]
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as server,
    ):
        try:
            url = _served_url(server, log)
            _infer(url)
            seconds = time.monotonic() - began
            console.print(f"first answer after [bold]{seconds:.0f} s[/bold]")
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
    return f"first local answer after {seconds:.0f} s"


def _served_url(server: subprocess.Popen[bytes], log: Path) -> str:
    tick = threading.Event()
    end = time.monotonic() + SERVE_SECONDS
    while time.monotonic() < end:
        found = re.search(r"HTTP\s+(http://\S+)/infer", log.read_text())
        if found:
            return found[1]
        if server.poll() is not None:
            raise DemoError(f"tritonpipe serve ended:\n{log.read_text()[-2000:]}")
        tick.wait(0.2)
    raise DemoError(
        f"tritonpipe serve was not ready within {SERVE_SECONDS:.0f} s:\n{log.read_text()[-2000:]}"
    )


def _infer(url: str) -> None:
    console.print(f'$ tritonpipe infer {url} "…" "…" "…"', markup=False)
    subprocess.run([str(TOOL), "infer", url, *TEXTS], check=True)
    _check(url)


def _check(url: str) -> None:
    """Check the answer: the demo proves nothing if it is wrong."""
    body = {
        "inputs": [
            {"name": "TEXT", "datatype": "BYTES", "shape": [len(TEXTS), 1], "data": list(TEXTS)}
        ]
    }
    answer = httpx.post(f"{url}/infer", json=body, timeout=30, trust_env=False).json()
    labels = tuple(next(item["data"] for item in answer["outputs"] if item["name"] == "LABEL"))
    if labels != EXPECTED:
        raise DemoError(f"expected {EXPECTED}, got {labels}")


# --- on a cluster


@contextlib.contextmanager
def _cluster_build(cluster: AnyCluster) -> Iterator[subprocess.Popen[bytes]]:
    """Build the cluster at low priority while the first part runs."""
    with (OUT / "cluster.log").open("w") as output:
        building = subprocess.Popen(
            ["nice", sys.executable, "-m", "e2e.demo", "--cluster", type(cluster).__name__],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield building
    finally:
        if building.poll() is None:
            os.killpg(building.pid, signal.SIGTERM)
            building.wait(60)


def _build_cluster(cluster: AnyCluster) -> None:
    binaries.path_of("helm")  # needed right after
    if isinstance(cluster, KindCluster):
        cluster.up()
        return
    packages.install(packages.PROMETHEUS)
    cluster.up(images=(*PRODUCT_IMAGES, SAMPLES_IMAGE))


def _wait_for(building: subprocess.Popen[bytes]) -> None:
    say(
        "2. A real single-node Kubernetes cluster"
        " (the first build takes about 10 minutes, later ones under a minute)"
    )
    log, shown = OUT / "cluster.log", 0
    tick, end = threading.Event(), time.monotonic() + CLUSTER_SECONDS
    while True:
        ended = building.poll() is not None
        lines = log.read_text(errors="replace").splitlines()
        for line in lines[shown:]:
            console.print(f"  {line}", markup=False)
        shown = len(lines)
        if ended:
            break
        if time.monotonic() > end:
            raise DemoError(f"the cluster was not up within {CLUSTER_SECONDS / 60:.0f} minutes")
        tick.wait(0.5)
    if building.returncode:
        raise DemoError(f"the cluster could not be built (exit code {building.returncode})")


def _on_cluster(cluster: AnyCluster) -> list[str]:
    kube = Kube(cluster.kubeconfig, cluster.context)
    say("3. The operator, installed from the chart")
    made = Installation(kube, Images.of(os.environ))
    try:
        with contextlib.ExitStack() as stack:
            # Pods in a kind node do not reach a Prometheus on this machine.
            scraping = (
                None
                if isinstance(cluster, KindCluster)
                else stack.enter_context(scraper(cluster, scaling_demo.SCRAPE_SECONDS))
            )
            return _shown(kube, made, cluster, scraping)
    except BaseException:
        console.print(f"diagnostics: {diagnostics.collect('demo', made, ['demo'])}", markup=False)
        raise


def _shown(
    kube: Kube, made: Installation, cluster: AnyCluster, scraping: Scraper | None
) -> list[str]:
    made.install({"prometheus": {"url": scraping.url}} if scraping else {})
    console.print(kube.kubectl("get", "pods", "--namespace=triton-pipelines"), markup=False)

    say("4. The same file on the cluster: kubectl apply, then a request")
    kube.apply(namespace("demo"))
    pipeline = Pipeline(kube, "demo", "sentiment")
    began = time.monotonic()
    kube.kubectl("apply", "--namespace=demo", f"--filename={SAMPLE}")
    console.print(
        kube.kubectl(
            "wait", "--namespace=demo", "--for=condition=Ready", "ipl/sentiment", "--timeout=180s"
        ),
        markup=False,
    )
    if scraping:
        scraping.watch(kube, "demo")
    reach = Reach(kube)
    with reach.service("demo", "sentiment") as endpoint:
        url = f"{endpoint.http}/v2/models/sentiment"
        _infer(url)
        ready = time.monotonic() - began
        console.print(kube.kubectl("get", "ipl", "--namespace=demo"), markup=False)
        figures = [f"from kubectl apply to the first answer: {ready:.1f} s"]

        say("5. A bad change: three classes for a model with two")
        wrong = merged(
            sample("sentiment"),
            {
                "metadata": {"namespace": "demo"},
                "spec": {
                    "model": {"outputs": [{"name": "logits", "dataType": "FP32", "dims": [3]}]},
                    "postprocess": {"labels": ["negative", "neutral", "positive"]},
                    # Small enough that a second pod fits next to the first, even on two cores.
                    "server": {
                        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                        "gpu": {"count": 1},
                    },
                },
            },
        )
        with _continuous_requests(url) as asked:
            kube.apply(wrong, manager="kubectl")
            status = _wait_for_report(pipeline)
        console.print(status, markup=False)
        console.print(kube.kubectl("get", "ipl", "--namespace=demo"), markup=False)
        if asked.failed:
            raise DemoError(
                f"{asked.failed} of {asked.sent} requests failed during the bad change:"
                f" {asked.error}"
            )
        console.print(f"the old revision keeps serving: {asked.sent} requests, none failed")
        figures.append(f"bad change reported, {asked.failed} of {asked.sent} requests failed")
        _check(url)
        kube.apply(
            {**sample("sentiment"), "metadata": {"name": "sentiment", "namespace": "demo"}},
            manager="kubectl",
        )
        pipeline.wait_ready()
        console.print("the original file, applied again: Ready", markup=False)
    if scraping:
        figures.append(scaling_demo.show(kube, reach, scraping, "demo"))
    else:
        console.print("skipping live scaling: it needs the local cluster's Prometheus")
    if os.environ.get("KEEP") == "1":
        console.print(
            f"cluster kept: export KUBECONFIG={cluster.kubeconfig}"
            " (Prometheus is stopped; without it, instance counts stay)",
            markup=False,
        )
    return figures


def _wait_for_report(pipeline: Pipeline) -> str:
    """Wait until the bad change is reported; return the condition."""

    def stalled(item: Object | None) -> Object | None:
        conditions = ((item or {}).get("status") or {}).get("conditions") or ()
        return next(
            (
                found
                for found in conditions
                if found["type"] == "Stalled" and found["status"] == "True"
            ),
            None,
        )

    def observe() -> Object | None:
        return stalled(pipeline.kube.find("InferencePipeline", pipeline.namespace, pipeline.name))

    condition = wait_for("the bad change reported", observe, bool, 120.0)
    assert condition is not None
    return f"Stalled, {condition['reason']}: {condition['message']}"


class _RequestCounts:
    sent = 0
    failed = 0
    error = ""


@contextlib.contextmanager
def _continuous_requests(url: str) -> Iterator[_RequestCounts]:
    """Send requests continuously, each over a new connection."""
    stop, counts = threading.Event(), _RequestCounts()

    def run() -> None:
        while not stop.is_set():
            counts.sent += 1
            try:
                _check(url)
            except (DemoError, httpx.HTTPError, KeyError) as error:
                counts.failed += 1
                counts.error = str(error)
            stop.wait(0.02)

    client = threading.Thread(target=run)
    client.start()
    try:
        yield counts
    finally:
        stop.set()
        client.join()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cluster"]:
        _build_cluster(CLUSTERS[sys.argv[2]](CLUSTER))
    else:
        sys.exit(main())

"""The tutorial from the demo to removal, run as written on a local cluster of its own.

Replaced are only the cluster's name and address, and ports that other programs may use.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from e2e.local import packages
from e2e.local.cluster import PRODUCT_IMAGES, Cluster
from e2e.local.processes import free_port
from e2e.suite.access import own_cluster
from tests.unit.docs import markdown

PAGE = markdown.ROOT / "docs/user/walkthrough.md"
NOT_RUN = {"make demo", ". .venv/bin/activate", "make cluster", "make cluster-down"}
"""The demo has its own test, the environment is active, and the fixture starts the cluster."""
FILES = {
    "from pathlib": "make_reviews.py",
    "image:": "values.yaml",
}
"""Names of the files that the page tells readers to save, by how each begins."""
SECONDS = 800
REQUESTS = re.compile(r"^ concurrency \d+ .* (\d+)   (?:yes|no)", re.MULTILINE)
"""A line of the table of ``bench``, with the number of failed requests."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Start a cluster: the tutorial installs the operator, which the suite's cluster has."""
    started = Cluster(f"{own_cluster()}-walkthrough")
    packages.install(packages.PROMETHEUS)
    with started.reserved():
        try:
            started.up(images=PRODUCT_IMAGES)
            yield started
        finally:
            started.down()


def replaced(text: str, replacements: Mapping[str, str]) -> str:
    """Return the text with the values of this run."""
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def script(cluster: Cluster) -> str:
    """Write the page's files, and return its commands."""
    host = str(next(cluster.subnets.link.hosts()))
    http, grpc, metrics, files, prometheus = (str(free_port()) for _ in range(5))
    values = {
        "10.99.0.1": host,
        "9000": files,
        "127.0.0.1:8000": f"127.0.0.1:{http}",
        "127.0.0.1:9091": f"127.0.0.1:{prometheus}",
        "e2e.local kubeconfig": f"e2e.local kubeconfig --name {cluster.name}",
        "e2e.local load-image": f"e2e.local load-image --name {cluster.name}",
        "serve reviews.yaml": (
            f"serve reviews.yaml --port {http} --grpc-port {grpc} --metrics-port {metrics}"
        ),
        "infer reviews.yaml": f"infer reviews.yaml --url http://127.0.0.1:{http}",
    }
    page = PAGE.read_text(encoding="utf-8")
    assert [old for old in values if old not in page] == []
    lines = [f"trap 'kill $(jobs -p) 2> {os.devnull} || true' EXIT"]
    for fence in markdown.fences(PAGE):
        text = replaced(fence.text, values)
        if fence.language == "bash":
            lines += [line for line in text.splitlines() if line not in NOT_RUN]
        else:
            (name,) = (name for begin, name in FILES.items() if text.startswith(begin))
            lines += [f"cat > {name} <<'END OF FILE'", text + "END OF FILE"]
    return "\n".join(lines)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with what the commands of the page read of a checkout."""
    for name in ("charts", "manifests"):
        shutil.copytree(markdown.ROOT / name, tmp_path / name)
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.timeout(SECONDS + 300)
def test_the_walkthrough_runs_as_written(cluster: Cluster, checkout: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{packages.search_path()}",
        "PYTHONPATH": str(markdown.ROOT),
        "COLUMNS": "120",
        "NO_PROXY": "*",
    }
    with (checkout / "log").open("w+") as log:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script(cluster)],
            cwd=checkout,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=SECONDS,
        )
        log.seek(0)
        output = log.read()
    assert done.returncode == 0, output[-6000:]
    assert REQUESTS.findall(output) == ["0"], output
    assert re.search(r"tokenizer +1 +[2-9] +TokenizerBound", output), output
    assert output.count("positive │") == 3
    assert "nothing is left" in output.splitlines()
    assert b"<html" in (checkout / "reviews.html").read_bytes()

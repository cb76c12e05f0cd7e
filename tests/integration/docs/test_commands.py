"""Commands of the documentation, run as written.

Each command on each page is either run here or has an entry in `EXCLUDED` with the reason. They run
in a folder like a checkout, which also has the files that the pages tell readers to make, on an API
server with all kinds that the pages use. No pod runs there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.local import api, binaries
from e2e.models import tree
from tests.integration.gateway.test_gateway import definitions
from tests.support import libyaml
from tests.support.controlplane import ControlPlane
from tests.support.operators import CRD_FILE
from tests.unit.docs import markdown
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NAMESPACES = ("team-a", "nlp", "argocd", "triton-pipelines")
SECONDS = 120
PLACEHOLDERS = {
    "NAMESPACE": "default",
    "NAME": "sentiment",
    "NODE": "node-a",
    "REVISION": "a0c555906e",
}

# Commands that do not run here, by a pattern of the command, with the reason.
EXCLUDED = {
    r"hf://|--token-file": "needs a model hub",
    r"tritonpipe (serve|bench|tune|infer)\b|\bcurl --|^header=": "needs a pipeline that is served:"
    " test_tour.py runs those of the tutorials",
    r"kubectl (wait|port-forward|logs|exec|rollout)": "needs a pod: the end-to-end suite",
    r"--watch|^python -m http\.server|e2e\.models serve": "runs until it is interrupted",
    r"^([A-Z]+=\w+ )?make|^eval|\bpytest ": "builds the project or runs its tests",
    r"^\.venv/bin/pre-commit|hack\.code_figures": "needs the repository of git",
    r"^\.venv/bin/(pip|towncrier)|tests\.corpus\.releases": "changes the checkout",
    r"python -m e2e\.local (down|load-image|kubeconfig)": "needs the local cluster",
    r"^(docker|kind|minikube|sudo)\b|nvdp": "needs Docker or a GPU: not run anywhere",
    r"^(cosign|skopeo|openssl|base64)\b|SHA256SUMS|provenance": "needs a published release",
    r"delete customresourcedefinition": "would remove the kind for the other commands",
    r"--kustomize manifests/(base|overlays)": "owns the objects of the chart, which are installed",
    r"--kustomize manifests/monitoring|podMonitor": "needs other kinds: test_dashboards.py",
}
WALKTHROUGH = "docs/user/walkthrough.md"
ANSWERS_ONE = ("tritonpipe status", "kubectl auth can-i", "diff ")
"""Commands that answer with the exit code 1: not ready, no, different."""


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text[:70]}"

    @property
    def reason(self) -> str:
        """Why it does not run here; empty if it does."""
        if self.page == WALKTHROUGH:
            return "needs the local cluster: e2e/suite/test_walkthrough.py runs the page"
        return next((why for what, why in EXCLUDED.items() if re.search(what, self.text)), "")


def logical_lines(fence: markdown.Fence) -> Iterator[str]:
    """Yield the commands of a block; one may continue over several lines."""
    lines = fence.text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    pending = ""
    for line in lines:
        pending = f"{pending}\n{line}" if pending else line
        try:
            shlex.split(pending, comments=True)
        except ValueError:
            continue
        if shlex.split(pending, comments=True):
            yield pending.strip()
        pending = ""
    assert not pending, f"{fence}: a command does not end: {pending}"


def commands() -> list[Command]:
    """Return every command of every page once."""
    found: dict[str, Command] = {}
    for page in markdown.pages():
        for fence in markdown.fences(page):
            if fence.language in ("console", "bash", "sh"):
                for text in logical_lines(fence):
                    found.setdefault(text, Command(fence.page, text))
    return list(found.values())


COMMANDS = commands()
RUN = [command for command in COMMANDS if not command.reason]


def test_most_commands_of_the_command_line_run() -> None:
    assert len(COMMANDS) >= 185
    assert len(RUN) >= 80


@pytest.mark.parametrize("pattern", EXCLUDED)
def test_every_exclusion_is_needed(pattern: str) -> None:
    assert any(re.search(pattern, command.text) for command in COMMANDS)


def block(page: str, words: str) -> str:
    """Return the YAML block of a page that contains these words."""
    (found,) = [
        fence.text
        for fence in markdown.fences(markdown.ROOT / f"docs/user/{page}.md")
        if fence.language == "yaml" and words in fence.text
    ]
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    """Start an API server with all kinds, the namespaces of the pages and a pipeline."""
    with ControlPlane(crds=(CRD_FILE, *definitions())) as plane:
        with api.client(plane.kubeconfig) as connection:
            for name in NAMESPACES:
                item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                api.apply(connection, f"/api/v1/namespaces/{name}", item)
            item = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
            api.apply(connection, "/api/v1/nodes/node-a", item)
            item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"}}
            api.apply(connection, "/api/v1/namespaces/argocd/configmaps/argocd-cm", item)
        yield plane


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder: the checkout, and the files that pages tell readers to make."""
    folder, built = tmp_path_factory.mktemp("checkout"), tree.build()
    for entry in markdown.ROOT.iterdir():
        if entry.name not in ("out", ".git"):
            (folder / entry.name).symlink_to(entry)
    sample = markdown.ROOT / "manifests/samples/sentiment.yaml"
    model = built / "s3/models/sentiment/model.onnx"
    tokenizer = built / "hub/sentence-transformers/all-MiniLM-L6-v2/tokenizer.json"
    for name, source in {
        "topics/model.onnx": model,
        "topics/tokenizer.json": tokenizer,
        "model.onnx": model,
        "tokenizer.json": tokenizer,
        "reranker/model.onnx": built / "s3/models/reranker/model.onnx",
        "reranker/tokenizer.json": tokenizer,
        "sentiment.yaml": sample,
        "topics.yaml": sample,
        "previous.yaml": sample,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, folder / name)
    shutil.copytree(markdown.ROOT / "tests/corpus/repositories/article", folder / "models")
    (folder / "operator.yaml").write_text("source_map: ['hf://=https://mirror/']\n")
    (folder / "patch.yaml").write_text("spec: {model: {maxBatchSize: 16}}\n")
    (folder / "values.yaml").write_text(block("quickstart", "substituteRunner"))
    for name in ("key.json", "ca.crt", "model.onnx.data", "old.yaml"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def shell(cluster: ControlPlane, checkout: Path) -> dict[str, str]:
    """Return the environment of the commands; the pipeline exists."""
    tools = binaries.folder(["kubectl", "helm"])
    with api.client(cluster.kubeconfig) as connection:
        sample = libyaml.load((checkout / "manifests/samples/sentiment.yaml").read_text())
        api.apply(connection, INFERENCE_PIPELINES.path("default", "sentiment"), sample)
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(tools), os.environ["PATH"]]),
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(checkout),
        "COLUMNS": "120",
        "built": str(tree.build()),
    }


@pytest.mark.parametrize("command", RUN, ids=str)
def test_a_command_runs_as_written(command: Command, shell: dict[str, str], checkout: Path) -> None:
    text = command.text
    for name, value in PLACEHOLDERS.items():
        text = re.sub(rf"(?<![\w$]){name}\b", value, text)
    if text.startswith("tritonpipe init") and (target := re.search(r"--output-file (\S+)", text)):
        (checkout / target[1]).unlink(missing_ok=True)
    text = text.removeprefix("export ")  # it hides the exit code of a substitution
    if text.startswith("helm"):
        text = prepare_helm(text, shell, checkout)
    if text.endswith("--kustomize crds"):
        text += " --force-conflicts"  # the kind is there, applied by the local cluster
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=checkout,
        env=shell,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    # Two pages create the same Secret.
    repeated = text.startswith("kubectl create") and "already exists" in done.stderr
    expected = (0, 1) if text.startswith(ANSWERS_ONE) or repeated else (0,)
    assert done.returncode in expected, done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def prepare_helm(text: str, shell: dict[str, str], checkout: Path) -> str:
    """Return the command without waiting for pods; install or remove the chart before it."""
    helm = ["helm", "--namespace", "triton-pipelines"]
    release = "triton-pipelines"
    subprocess.run([*helm, "uninstall", release, "--ignore-not-found"], env=shell, check=True)
    if " install " not in text and " template " not in text:
        chart = [release, "charts/triton-pipelines", "--set", "crds.enabled=false"]
        subprocess.run([*helm, "install", *chart], env=shell, cwd=checkout, check=True)
        if " rollback " in text:
            subprocess.run([*helm, "upgrade", *chart], env=shell, cwd=checkout, check=True)
    if " install " in text:
        text += " --set crds.enabled=false"  # the kind is there, and owned by nobody
    return re.sub(r" --wait\b", "", text)


def test_exported_pipelines_can_be_restored_and_applied_again(
    shell: dict[str, str], checkout: Path
) -> None:
    (restore,) = [
        fence.text
        for fence in markdown.fences(markdown.ROOT / "docs/user/backup.md")
        if "> pipelines.yaml" in fence.text
    ]
    export, *rest = restore.replace("\\\n", " ").splitlines()

    def run(*commands: str) -> None:
        script = "\n".join(commands)
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=checkout, env=shell, check=True
        )

    sample = "kubectl apply --filename manifests/samples/sentiment.yaml"
    run(sample, export, "kubectl delete inferencepipelines --all --all-namespaces", *rest, sample)

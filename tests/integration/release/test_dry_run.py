"""A dry run of a release, checked as its users would check it, and releases that cannot be made."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import triton_pipelines
from e2e.local import binaries, native_release
from hack import chart
from hack.release import images
from tests.support import release
from tests.unit.docs import markdown
from triton_pipelines.api.names import NATIVE_TOKENIZER_LIBRARY
from triton_pipelines.cli.documents import check_resource
from triton_pipelines.compile.graph import Options

# A changed image is built within the first test.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

VERSION = triton_pipelines.__version__
IMAGE = "registry.example.com/mirror/triton-pipelines"
HOME = "https://git.example.com/team/triton-pipelines"
PAGE = markdown.ROOT / "docs/user/verify-release.md"


@dataclass(frozen=True)
class Made:
    """A finished dry run."""

    folder: Path
    output: str

    def path(self, pattern: str) -> Path:
        (found,) = self.folder.glob(pattern)
        return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release.committed_copy(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "release.key"
    options = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(path)]
    subprocess.run(["openssl", "genpkey", *options], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def made(repository: Path, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    out = tmp_path_factory.mktemp("out")
    addresses = [f"--image={IMAGE}", f"--home={HOME}"]
    done = release.make_release(
        repository, VERSION, "--dry-run", f"--sign-key={key}", f"--out={out}", *addresses
    )
    assert done.returncode == 0, done.stderr
    yield Made(out / f"{VERSION}-dry-run", done.stdout)
    shutil.rmtree(out)  # hundreds of megabytes


def verify(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the commands of the first block of the page about verification."""
    block = next(fence for fence in markdown.fences(PAGE) if fence.language == "bash")
    return subprocess.run(
        ["bash", "-e", "-c", block.text], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_documented_checks_succeed(made: Made) -> None:
    done = verify(made.folder)
    assert done.returncode == 0, done.stderr
    assert "Verified OK" in done.stdout
    unsigned = {"SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.der", "release-key.pub"}
    names = {path.name for path in made.folder.iterdir()}
    assert {line.rpartition(": ")[0] for line in done.stdout.splitlines()[1:]} == names - unsigned


@pytest.mark.parametrize("name", ["SHA256SUMS", "RELEASE-NOTES.md"])
def test_a_changed_byte_is_detected(made: Made, name: str, tmp_path: Path) -> None:
    for path in made.folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    data = bytearray((made.folder / name).read_bytes())
    data[0] ^= 1
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(data)
    assert verify(tmp_path).returncode != 0


def test_the_wheel_runs_in_a_new_environment(made: Made, tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", f"--python={sys.executable}", tmp_path], check=True)
    lock = markdown.ROOT / "requirements/operator.txt"
    options = [f"--python={tmp_path / 'bin/python'}", "--quiet", f"--constraints={lock}"]
    subprocess.run([uv, "pip", "install", *options, made.path("*.whl")], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for program in ("tritonpipe", "kubectl-tritonpipe"):
        done = subprocess.run(
            [tmp_path / "bin" / program, "--version"],
            cwd=tmp_path,
            env=clean,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == VERSION


def test_the_wheel_has_the_native_tokenizer_of_each_architecture(made: Made) -> None:
    with zipfile.ZipFile(made.path("*.whl")) as wheel:
        found = {Path(name).parent.name: name for name in wheel.namelist() if name.endswith(".so")}
        assert set(found) == set(native_release.MACHINES)
        for machine, name in found.items():
            native_release.check(wheel.read(name), machine, native_release.GLIBC)


def test_the_source_distribution_has_no_binaries(made: Made) -> None:
    with tarfile.open(made.path("triton_pipelines-*.tar.gz")) as archive:
        names = archive.getnames()
    assert any(name.endswith("operator/triton_pipelines/cli/main.py") for name in names)
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


def helm(*arguments: str | Path) -> str:
    return subprocess.run(
        [binaries.path_of("helm"), *arguments], capture_output=True, text=True, check=True
    ).stdout


def rendered(made: Made) -> list[dict[str, Any]]:
    text = helm("template", "triton-pipelines", made.path("*.tgz"), "--namespace=triton-pipelines")
    return [document for document in yaml.safe_load_all(text) if document]


def test_the_chart_installs_the_image_of_the_release(made: Made) -> None:
    helm("lint", "--strict", made.path("*.tgz"))
    (deployment,) = (item for item in rendered(made) if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{IMAGE}:{VERSION}"
    metadata = yaml.safe_load(helm("show", "chart", made.path("*.tgz")))
    assert (metadata["version"], metadata["appVersion"]) == (VERSION, VERSION)
    addresses = [metadata["home"], metadata["icon"], *metadata["sources"]]
    assert [address for address in addresses if not address.startswith(HOME)] == []
    assert (markdown.ROOT / metadata["icon"].removeprefix(f"{HOME}/")).is_file()
    assert {"CustomResourceDefinition"} <= {item["kind"] for item in rendered(made)}


def layout_files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as layout:
        return {
            member.name: stream.read()
            for member in layout.getmembers()
            if (stream := layout.extractfile(member))
        }


def test_the_image_archive_has_both_architectures(made: Made) -> None:
    content = layout_files(made.path("*.oci.tar"))
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for name, data in content.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == Path(name).name
    digest, index = images.index(made.path("*.oci.tar"))
    assert digest in made.output
    found = {}
    for entry in index["manifests"]:
        manifest = json.loads(content["blobs/" + entry["digest"].replace(":", "/")])
        config = json.loads(content["blobs/" + manifest["config"]["digest"].replace(":", "/")])
        assert config["config"]["Entrypoint"] == ["tritonpipe"]
        assert config["config"]["User"] == "65532:65532"
        assert config["config"]["Labels"]["org.opencontainers.image.version"] == VERSION
        assert entry["platform"]["architecture"] == config["architecture"]
        found[config["architecture"]] = [layer["digest"] for layer in manifest["layers"]]
    assert set(found) == {"amd64", "arm64"}
    machines = {name: elf_machines(content, layers) for name, layers in found.items()}
    assert machines == {"amd64": {62}, "arm64": {183}}
    for layers in found.values():
        assert any(NATIVE_TOKENIZER_LIBRARY in name for name in file_names(content, layers))


LIBRARY = re.compile(r"\.cpython-|/triton_pipelines/native/")


def elf_machines(content: dict[str, bytes], layers: list[str]) -> set[int]:
    """Return the machine numbers of the libraries of the package and of extension modules."""
    found = set()
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(content["blobs/" + layer.replace(":", "/")])) as files:
            for member in files:
                if "site-packages" in member.name and LIBRARY.search(member.name):
                    stream = files.extractfile(member) if member.isfile() else None
                    head = stream.read(20) if stream and member.name.endswith(".so") else b""
                    found |= {int.from_bytes(head[18:20], "little")} if head else set()
    return found


def file_names(content: dict[str, bytes], layers: list[str]) -> list[str]:
    """Return the paths of the files in the layers of an image."""
    names: list[str] = []
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(content["blobs/" + layer.replace(":", "/")])) as files:
            names += files.getnames()
    return names


def test_the_boms_name_every_locked_requirement(made: Made) -> None:
    lock = (markdown.ROOT / "requirements/operator.txt").read_text(encoding="utf-8")
    pinned = [Requirement(line.split(" \\")[0]) for line in lock.splitlines() if line[:1].isalnum()]
    assert len(pinned) > 50
    expected = {
        f"pkg:pypi/{item.name.lower()}@{str(item.specifier).removeprefix('==')}" for item in pinned
    }
    cyclonedx = json.loads(made.path("*.cdx.json").read_text(encoding="utf-8"))
    assert expected <= {item["purl"] for item in cyclonedx["components"]}
    spdx = json.loads(made.path("*.spdx.json").read_text(encoding="utf-8"))
    named = {
        reference["referenceLocator"]
        for package in spdx["packages"]
        for reference in package.get("externalRefs", ())
    }
    assert named == {item["purl"] for item in cyclonedx["components"]}
    assert any(purl.startswith("pkg:cargo/tokenizers@") for purl in named)


def test_the_provenance_names_every_file_and_the_commit(made: Made, repository: Path) -> None:
    envelope = json.loads(made.path("provenance.*").read_text(encoding="utf-8"))
    statement = json.loads(base64.b64decode(envelope["payload"]))
    subjects = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    sums = (made.folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = dict(reversed(line.split("  ")) for line in sums)  # type: ignore[misc]
    del listed["provenance.intoto.json"]
    assert subjects == listed
    head = ["git", "-C", repository, "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    definition = statement["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}
    assert definition["externalParameters"]["baseImage"] == "local stand-in (dry run)"
    assert len(envelope["signatures"]) == 1


def test_the_olm_bundle_describes_what_the_chart_installs(made: Made) -> None:
    with tarfile.open(made.path("*-olm-bundle-*.tar.gz")) as archive:
        bundle = {
            member.name: list(yaml.safe_load_all(stream.read()))
            for member in archive.getmembers()
            if member.name.endswith(".yaml") and (stream := archive.extractfile(member))
        }
    objects = {(item["kind"], item["metadata"]["name"]): item for item in rendered(made)}
    (csv,) = bundle.pop("manifests/triton-pipelines.clusterserviceversion.yaml")
    strategy = csv["spec"]["install"]["spec"]
    (deployment,) = strategy["deployments"]
    digest, _ = images.index(made.path("*.oci.tar"))
    text = json.dumps(deployment["spec"])
    assert f"{IMAGE}@{digest}" in text
    as_in_chart = json.loads(text.replace(f"@{digest}", f":{VERSION}"))
    assert as_in_chart == objects["Deployment", "triton-pipelines"]["spec"]
    (cluster,), (own,) = strategy["clusterPermissions"], strategy["permissions"]
    assert cluster["rules"] == objects["ClusterRole", "triton-pipelines"]["rules"]
    assert own["rules"] == objects["Role", "triton-pipelines-key"]["rules"]
    (example,) = json.loads(csv["metadata"]["annotations"]["alm-examples"])
    assert not check_resource("example", example, Options()).findings
    assert base64.b64decode(csv["spec"]["icon"][0]["base64data"]).startswith(b"<svg")
    others = {
        (item["kind"], item["metadata"]["name"]) for item in bundle["additional-objects.yaml"]
    }
    files = {
        (item["kind"], item["metadata"]["name"])
        for name, items in bundle.items()
        if name.startswith("manifests/")
        for item in items
    }
    described = {
        ("Deployment", "triton-pipelines"),
        ("ServiceAccount", "triton-pipelines"),
        ("ClusterRole", "triton-pipelines"),
        ("ClusterRoleBinding", "triton-pipelines"),
        ("Role", "triton-pipelines-key"),
        ("RoleBinding", "triton-pipelines-key"),
    }
    assert files | others | described == set(objects)
    assert not files & others


def test_the_notes_are_those_of_the_changelog(made: Made) -> None:
    notes = made.path("RELEASE-NOTES.md").read_text(encoding="utf-8")
    changelog = (markdown.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    paragraphs = [part for part in notes.split("\n\n") if part in changelog]
    assert len(paragraphs) > 5


def test_the_output_says_that_it_is_a_dry_run(made: Made) -> None:
    assert "DRY RUN" in made.output
    assert "skopeo copy --all oci-archive:" in made.output


REJECTED = [
    pytest.param("1.2", [], "VERSION=1.2: must be MAJOR.MINOR.PATCH", id="version"),
    pytest.param("99.0.0", ["--dry-run"], "pyproject.toml: project.version is", id="mismatch"),
    pytest.param(VERSION, [], "IMAGE is not set", id="no image"),
    pytest.param(
        VERSION,
        ["--dry-run", "--sign-key=Makefile"],
        "SIGN_KEY=Makefile: not a private key in PEM",
        id="key",
    ),
]


@pytest.mark.parametrize(("version", "arguments", "message"), REJECTED)
def test_a_release_that_cannot_be_made_says_why(
    repository: Path, version: str, arguments: list[str], message: str
) -> None:
    done = release.make_release(repository, version, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


def test_missing_programs_are_named_with_their_packages(repository: Path, tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git
    (tmp_path / "git").symlink_to(git)
    done = release.make_release(repository, VERSION, "--dry-run", path=str(tmp_path))
    assert done.returncode == 1
    assert "apt-get install buildah mmdebstrap" in done.stderr


def test_changes_that_are_not_committed_are_rejected(repository: Path) -> None:
    extra = repository / "not-committed.txt"
    extra.touch()
    try:
        done = release.make_release(repository, VERSION, "--dry-run")
    finally:
        extra.unlink()
    assert done.returncode == 1
    assert "not committed: not-committed.txt" in done.stderr


def test_the_chart_of_the_repository_renders_the_same_kinds(made: Made) -> None:
    assert [item["kind"] for item in rendered(made)] == [item["kind"] for item in chart.render()]

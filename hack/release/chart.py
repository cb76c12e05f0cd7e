"""Package the Helm chart, and write the metadata of its repository for Artifact Hub."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.local import binaries
from hack.release import files
from hack.release.errors import ReleaseError
from hack.release.model import NAME, PLACEHOLDER_HOME, Release
from hack.release.source import CHART

_REPOSITORY: Final = re.compile(r"^  repository: triton-pipelines/operator$", re.MULTILINE)


def helm(*arguments: str) -> str:
    """Return the output of a helm command.

    Raises:
        ReleaseError: helm failed, with its message, or is missing.
    """
    try:
        command = [str(binaries.path_of("helm")), *arguments]
    except binaries.BinaryError as error:
        raise ReleaseError(f"helm: {error}") from None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = (done.stdout + done.stderr).strip()
        raise ReleaseError(f"helm {arguments[0]} failed: {message}")
    return done.stdout


def package(release: Release) -> Path:
    """Return the packaged chart, which installs the image of the release.

    Raises:
        ReleaseError: the chart is not valid.
    """
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(scratch) / NAME
        shutil.copytree(release.source / CHART, chart)
        _set_addresses(chart, release)
        _set_metadata(chart / "Chart.yaml", release)
        helm("lint", "--strict", str(chart))
        helm("package", str(chart), f"--destination={release.folder}")
    target = release.folder / f"{NAME}-{release.version}.tgz"
    with tempfile.TemporaryDirectory() as scratch:
        files.repack(target, Path(scratch), release.epoch)
    return target


def render(chart: Path, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects of a packaged chart.

    Args:
        chart: the package.
        settings: values, each as NAME=VALUE.

    Raises:
        ReleaseError: helm failed.
    """
    options = [f"--set={setting}" for setting in settings]
    text = helm("template", NAME, str(chart), f"--namespace={NAME}", *options)
    return [document for document in yaml.safe_load_all(text) if document]


def write_repository_metadata(release: Release) -> Path:
    """Write ``artifacthub-repo.yml``, which claims the chart's repository on Artifact Hub."""
    chart = _metadata(release.source / CHART / "Chart.yaml")
    owners = [
        {"name": item["name"], "email": item["email"]}
        for item in chart["maintainers"]
        if "email" in item
    ]
    target = release.folder / "artifacthub-repo.yml"
    lines = "# Set repositoryID to the ID that Artifact Hub shows for the repository.\n"
    document = {"repositoryID": "", **({"owners": owners} if owners else {})}
    target.write_text(lines + yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return target


def _set_addresses(chart: Path, release: Release) -> None:
    """Replace the placeholder addresses in the files of a chart."""
    for path in sorted(path for path in chart.rglob("*") if path.suffix in {".yaml", ".json"}):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(PLACEHOLDER_HOME, release.home), encoding="utf-8")
    values = chart / "values.yaml"
    text, count = _REPOSITORY.subn(
        f"  repository: {release.image}", values.read_text(encoding="utf-8")
    )
    if count != 1:
        raise ReleaseError(
            f"{CHART}/values.yaml: image.repository must be triton-pipelines/operator, so that "
            "the release can replace it"
        )
    values.write_text(text, encoding="utf-8")


def _metadata(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def _set_metadata(path: Path, release: Release) -> None:
    metadata = _metadata(path)
    image = {
        "name": "operator",
        "image": f"{release.image}:{release.version}",
        "platforms": ["linux/amd64", "linux/arm64"],
    }
    metadata["annotations"] |= {
        "artifacthub.io/images": yaml.safe_dump([image], sort_keys=False),
        "artifacthub.io/links": yaml.safe_dump(
            [
                {"name": "Changelog", "url": f"{release.home}/CHANGELOG.md"},
                {"name": "Documentation", "url": f"{release.home}/docs/index.md"},
            ],
            sort_keys=False,
        ),
    }
    path.write_text(yaml.safe_dump(metadata, sort_keys=False, width=120), encoding="utf-8")

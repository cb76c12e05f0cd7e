"""What one release is made of, for all parts that make its files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import Version

NAME: Final = "triton-pipelines"
PLATFORMS: Final = ("amd64", "arm64")
"""Architectures of the image."""
PLACEHOLDER_HOME: Final = "https://example.com/triton-pipelines"
"""Address of the project in the chart of the repository."""
PLACEHOLDER_IMAGE: Final = "registry.example.com/triton-pipelines/operator"


@dataclass(frozen=True)
class Release:
    """One release."""

    version: str
    """The version as SemVer."""
    commit: str
    """The Git commit that it is made from."""
    epoch: int
    """Time of everything in the release, in seconds since 1970."""
    source: Path
    """An export of the commit."""
    folder: Path
    """Where the files of the release go."""
    image: str
    """The repository to which the image will be pushed, without a tag."""
    home: str
    """Address of the project, below which the files of the repository can be read."""
    base_image: str
    """The base image of the Dockerfile. Empty in a dry run, which uses local stand-ins."""

    @property
    def python_version(self) -> str:
        """The version in the form that PEP 440 prescribes."""
        return str(Version(self.version))

    @property
    def is_dry_run(self) -> bool:
        """Whether the images stand on local stand-ins and must not be published."""
        return not self.base_image

    @property
    def created(self) -> str:
        """The time of the release as RFC 3339."""
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

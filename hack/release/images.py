"""Build the image of operator and loader as an OCI archive for all architectures."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from e2e.local import cache
from e2e.local.images import build as local_images
from e2e.local.images import buildah
from e2e.local.progress import step
from hack.release import files
from hack.release.errors import ReleaseError
from hack.release.model import PLATFORMS, Release

KEPT_ARCHIVES: Final = 2
_INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"


def archive_name(release: Release) -> str:
    """Return the file name of the archive."""
    return f"triton-pipelines-operator-{release.version}.oci.tar"


def build(release: Release) -> Path:
    """Return the archive: an OCI image layout whose index has one image for each architecture.

    A dry run takes it from the cache if its inputs have not changed. A release always builds,
    because a base image of the same name may have changed.

    Raises:
        ReleaseError: the build failed, with its last lines.
    """
    target = release.folder / archive_name(release)
    try:
        if not release.is_dry_run:
            bases = dict.fromkeys(PLATFORMS, release.base_image)
            _build(release, bases, release.base_image, target)
            return target
        bases = {platform: local_images.base_image(platform) for platform in PLATFORMS}
        inputs = cache.digest_tree(release.source, local_images.operator_inputs(release.source))
        key = cache.digest([*bases.values(), inputs, release.version, str(release.epoch)])
        cached = cache.cache_root() / f"release-image-{key}.tar"
        with cache.locked(cached.with_name("release-image")):
            if not cached.exists():
                _build(release, bases, bases["amd64"], cached)
            _forget_old(cached)
        shutil.copyfile(cached, target)
    except buildah.ImageError as error:
        advice = "" if release.is_dry_run else _base_advice(release)
        raise ReleaseError(f"building the image failed: {error}{advice}") from None
    return target


def _base_advice(release: Release) -> str:
    return (
        f"\nIf the base image {release.base_image} cannot be pulled, name another with "
        "BASE_IMAGE=…; DRY_RUN=1 makes everything else on a local base image"
    )


def index(archive: Path) -> tuple[str, dict[str, Any]]:
    """Return digest and content of the index that lists the images of all architectures.

    Raises:
        ReleaseError: the archive has no such index.
    """
    with tarfile.open(archive) as layout:

        def read(name: str) -> dict[str, Any]:
            member = layout.extractfile(name)
            document: dict[str, Any] = json.load(member) if member else {}
            return document

        for entry in read("index.json").get("manifests", ()):
            if entry["mediaType"] == _INDEX_TYPE:
                algorithm, _, digest = entry["digest"].partition(":")
                return entry["digest"], read(f"blobs/{algorithm}/{digest}")
    raise ReleaseError(f"{archive.name}: no index of several architectures in it")


def _build(release: Release, bases: dict[str, str], build_image: str, target: Path) -> None:
    listing = f"localhost/triton-pipelines/release:{release.version}"
    _buildah("manifest", "rm", listing, may_fail=True)
    _buildah("manifest", "create", listing)
    for platform in PLATFORMS:
        with step(f"building the image for {platform}"):
            tag = f"{listing}-{platform}"
            buildah.build(
                release.source,
                tag,
                bases[platform],
                f"--platform=linux/{platform}",
                f"--build-arg=BUILD_IMAGE={build_image}",
                local_images.PACKAGED_NATIVE,
                f"--build-arg=VERSION={release.version}",
                f"--build-arg=CREATED={release.created}",
                f"--timestamp={release.epoch}",
                pull="never" if release.is_dry_run else "always",
            )
            _buildah("manifest", "add", listing, tag)
    with (
        step("writing the OCI archive"),
        tempfile.TemporaryDirectory(dir=cache.cache_root()) as scratch,
    ):
        layout, made = Path(scratch) / "layout", Path(scratch) / "image.tar"
        buildah.push_all(listing, f"oci:{layout}:{release.version}")
        files.write_tar(layout, made, release.epoch)
        shutil.move(made, target)
    _buildah("manifest", "rm", listing)


def _buildah(*arguments: str, may_fail: bool = False) -> None:
    try:
        buildah.execute([*buildah.command_line(), *arguments])
    except buildah.ImageError:
        if not may_fail:
            raise


def _forget_old(current: Path) -> None:
    archives = sorted(
        current.parent.glob("release-image-*.tar"), key=lambda path: path.stat().st_mtime
    )
    for old in [path for path in archives if path != current][: -(KEPT_ARCHIVES - 1)]:
        old.unlink(missing_ok=True)

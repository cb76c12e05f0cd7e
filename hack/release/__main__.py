"""Make all files of a release: ``python -m hack.release VERSION``.

``make release`` calls it with the variables of its command line.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from e2e.local import packages as machine
from hack.release import (
    bundle,
    chart,
    files,
    images,
    notes,
    packages,
    provenance,
    sbom,
    signing,
    source,
)
from hack.release.errors import ReleaseError
from hack.release.model import PLACEHOLDER_HOME, PLACEHOLDER_IMAGE, Release
from triton_pipelines.loader.files import sha256_of

ROOT: Final = Path(__file__).resolve().parents[2]
OUT: Final = ROOT / "out" / "release"
BASE_IMAGE: Final = "docker.io/library/python:3.12-slim-bookworm"
PROGRAMS: Final = {"git": "git", "buildah": "buildah"}
"""Program -> the Debian package that has it."""
DRY_RUN_PROGRAMS: Final = {"mmdebstrap": "mmdebstrap"}


def require_tools(is_dry_run: bool) -> None:
    """Raise `ReleaseError` if a program is missing."""
    needed = {**PROGRAMS, **(DRY_RUN_PROGRAMS if is_dry_run else {})}
    if missing := machine.missing(needed):
        raise ReleaseError(
            f"missing programs; install the Debian packages: apt-get install {' '.join(missing)}"
        )


def prepare(options: argparse.Namespace, export: Path) -> Release:
    """Check everything that can be checked before the first build.

    Args:
        options: the arguments of the command line.
        export: where the files of the commit are written.

    Raises:
        ReleaseError: the release cannot be made.
    """
    version = source.parse_version(options.version)
    require_tools(options.dry_run)
    for name, value in (("IMAGE", options.image), ("HOME_URL", options.home)):
        if not value and not options.dry_run:
            raise ReleaseError(
                f"{name} is not set; a release states its addresses, for example "
                f"IMAGE={PLACEHOLDER_IMAGE} HOME_URL={PLACEHOLDER_HOME}"
            )
    source.require_clean(ROOT)
    source.export(ROOT, export)
    source.require_version(source.stated_versions(export), version)
    commit = source.git(ROOT, "rev-parse", "HEAD").decode().strip()
    epoch = (
        os.environ.get("SOURCE_DATE_EPOCH")
        or source.git(ROOT, "log", "-1", "--format=%ct").decode()
    )
    return Release(
        version=options.version,
        commit=commit,
        epoch=int(epoch),
        source=export,
        folder=options.out / (f"{options.version}-dry-run" if options.dry_run else options.version),
        image=options.image or PLACEHOLDER_IMAGE,
        home=(options.home or PLACEHOLDER_HOME).rstrip("/"),
        base_image="" if options.dry_run else options.base_image,
    )


def make(release: Release, key: ec.EllipticCurvePrivateKey | None) -> str:
    """Make all files; return the digest of the image.

    Raises:
        ReleaseError: a file cannot be made.
    """
    text = notes.release_notes(release.source, release.version)
    shutil.rmtree(release.folder, ignore_errors=True)
    release.folder.mkdir(parents=True)
    packages.add_native_tokenizer(release.source)
    packages.build(release)
    digest, _ = images.index(images.build(release))
    package = chart.package(release)
    chart.write_repository_metadata(release)
    bundle.write(release, package, digest)
    sbom.write(release, digest)
    (release.folder / "RELEASE-NOTES.md").write_text(text + "\n", encoding="utf-8")
    seal(release, key)
    return digest


def seal(release: Release, key: ec.EllipticCurvePrivateKey | None) -> None:
    """Write provenance, checksums and signature, in this order."""
    digests = files.sha256_of_files(release.folder)
    statement = provenance.statement(release, digests)
    attestation = release.folder / provenance.FILE
    envelope = signing.envelope(signing.dump(statement).encode(), key)
    attestation.write_text(signing.dump(envelope), encoding="utf-8")
    digests[attestation.name] = sha256_of(attestation)
    sums = release.folder / files.CHECKSUMS
    sums.write_text(files.checksum_lines(digests), encoding="utf-8")
    if key is None:
        (release.folder / "UNSIGNED").write_text(
            "This release is not signed. Make it with SIGN_KEY=FILE to sign it.\n", encoding="utf-8"
        )
        return
    signature = signing.sign(key, sums.read_bytes())
    sums.with_name(f"{files.CHECKSUMS}.sig").write_text(signature, encoding="utf-8")
    (release.folder / "release-key.pub").write_text(signing.public_key(key), encoding="utf-8")


def push_commands(release: Release) -> list[str]:
    """Return the commands that publish a release, for its maintainer to run."""
    folder = _shown(release.folder)
    repository = release.image.rpartition("/")[0]
    stem = f"triton_pipelines-{release.python_version}"
    return [
        f"git tag --annotate v{release.version} --message v{release.version} {release.commit}",
        f"git push origin v{release.version}",
        f"skopeo copy --all oci-archive:{folder / images.archive_name(release)} "
        f"docker://{release.image}:{release.version}",
        f"helm push {folder}/triton-pipelines-{release.version}.tgz oci://{repository}/charts",
        f"twine upload {folder}/{stem}-py3-none-any.whl {folder}/{stem}.tar.gz",
        f"gh release create v{release.version} --verify-tag "
        f"--notes-file {folder}/RELEASE-NOTES.md {folder}/*",
    ]


def _shown(folder: Path) -> Path:
    """Return a folder relative to the current one, if it is inside."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _report(release: Release, key: ec.EllipticCurvePrivateKey | None, digest: str) -> None:
    print(f"{release.version} of commit {release.commit} is in {_shown(release.folder)}")
    print(f"image: {release.image}@{digest}")
    print(f"signature: {'ECDSA P-256, verify with release-key.pub' if key else 'UNSIGNED'}")
    if notes.fragments(release.source):
        print(
            "warning: changelog.d has fragments; the notes contain them, CHANGELOG.md does not. "
            f"Run `towncrier build --version {release.version}` before the release"
        )
    if release.is_dry_run:
        print(
            "DRY RUN: the images stand on local base images made from Debian packages. The arm64 "
            "image was never started. Do not publish these files. A release would be published by:"
        )
    else:
        print("publish it with:")
    for command in push_commands(release):
        print(f"  {command}")


def arguments(words: list[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="version to release")
    parser.add_argument("--image", default="", help="repository of the image, without a tag")
    parser.add_argument("--home", default="", help="address of the project")
    parser.add_argument("--base-image", default=BASE_IMAGE, help="base image of the Dockerfile")
    parser.add_argument("--sign-key", type=Path, help="private key in PEM")
    parser.add_argument("--dry-run", action="store_true", help="use local base images")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the files")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Make a release; exit code 1 if it cannot be made."""
    options = arguments(words)
    try:
        password = os.environ.get("SIGN_PASSWORD")
        key = signing.load_key(options.sign_key, password) if options.sign_key else None
        with tempfile.TemporaryDirectory() as scratch:
            release = prepare(options, Path(scratch))
            digest = make(release, key)
            _report(release, key, digest)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

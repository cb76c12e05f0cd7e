"""State how the files of a release were made: an in-toto statement with SLSA provenance."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hack.release.model import Release
from triton_pipelines.loader.files import sha256_of

FILE: Final = "provenance.intoto.json"
BUILD_TYPE: Final = "https://tritonpipelines.io/release/v1"
LOCKS: Final = (
    "requirements/dev.txt",
    "requirements/operator.txt",
    "requirements/build.txt",
    "requirements/native.txt",
    "requirements/release.txt",
    "native/Cargo.lock",
)


def statement(release: Release, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the statement.

    Args:
        release: the release.
        digests: SHA-256 of each file of the release, by name.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "version": release.version,
                    "image": release.image,
                    "home": release.home,
                    "baseImage": release.base_image or "local stand-in (dry run)",
                },
                "internalParameters": {"sourceDateEpoch": release.epoch, "tools": tools()},
                "resolvedDependencies": [
                    {
                        "uri": f"git+{release.home}@{release.commit}",
                        "digest": {"gitCommit": release.commit},
                    },
                    *(
                        {"uri": lock, "digest": {"sha256": sha256_of(release.source / lock)}}
                        for lock in LOCKS
                    ),
                ],
            },
            "runDetails": {
                # The machine of a maintainer: SLSA build level 1.
                "builder": {"id": f"{BUILD_TYPE}/maintainer"},
                "metadata": {"invocationId": f"{release.version}-{release.commit}"},
            },
        },
    }


def tools() -> dict[str, str]:
    """Return the versions of the programs that make the files."""
    return {
        "python": sys.version.split()[0],
        "uv": _version(str(Path(sys.executable).with_name("uv")), "--version"),
        "buildah": _version("buildah", "--version"),
    }


def _version(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()

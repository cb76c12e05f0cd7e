"""Print the compatibility matrix: ``python -m hack.compatibility``.

Versions of Kubernetes and rules about releases of Triton come from the code that uses them. The
tests in ``tests/integration/compatibility`` compare them with real API servers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from e2e.local import binaries
from triton_pipelines.compile.graph.advisories import known_problems, spelled
from triton_pipelines.compile.graph.options import DEFAULT_SERVER_IMAGE
from triton_pipelines.compile.graph.server_checks import FLOOR_VERSION, INFLIGHT_VERSION
from triton_pipelines.compile.graph.server_settings import FLAG_RELEASES, server_version
from triton_pipelines.compile.validation.backend_identity import AOTI_SINCE
from triton_pipelines.compile.validation.models import METRICS_SINCE

ROOT: Final = Path(__file__).resolve().parent.parent
TESTED_TRITON: Final = (24, 10)
"""The release that the tests run."""
DEVICE_CLAIMS_SINCE: Final = (1, 31)
"""First minor version of Kubernetes whose pods name a claim template as `gpu.claimTemplate` needs.

The feature itself is on by default from 1.34.
"""
IMAGE_VOLUMES_SINCE: Final = (1, 35)
"""First minor version with image volumes (by default), which `image://` sources need."""
RESIZE_SINCE: Final = (1, 33)
"""First minor version with the subresource `resize` of pods (by default)."""

_HEAD: Final = """\
# Compatibility

This page lists the versions of Kubernetes, Triton and Python that the project supports and tests.
It is generated: `python -m hack.compatibility` prints it.
"""
_KUBERNETES: Final = """\
For each tested version, `make compatibility` starts a real API server of that version. The test
installs the chart with its CRD and admission policies, and checks that the API server

- rejects every invalid resource of the test corpus with the field, and with the message of our
  rules;
- stores every valid resource without a warning;
- accepts every object that the operator renders, without unknown fields;
- lets the operator, with the permissions of the chart, create the objects of a pipeline, write its
  status and follow its scale subresource. The pipeline can be deleted without the operator.

Only the pinned version runs with controllers, a scheduler and a node, in the integration and
end-to-end tests. Managed Kubernetes services were not tested.
"""
_TRITON: Final = """\
The operator reads the release from the tag of the image or from `server.version`
([upgrades](../user/upgrades.md#change-the-triton-release)). It rejects a feature that the release
does not have. `tritonpipe serve` reads the version of the server itself.
"""
_PYTHON: Final = """\
The operator image and the CLI need Python {versions}. To run the unit tests with another version
than that of `.venv`, pass both variables:

```sh
make unit VENV=out/venv-3.12 PYTHON=python3.12
```
"""


def minor(version: str) -> tuple[int, int]:
    """Return the minor version of Kubernetes, such as (1, 30)."""
    major, second = version.split(".")[:2]
    return int(major), int(second)


def kubernetes() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of Kubernetes versions, its heading first."""
    versions = (*binaries.OLDER_KUBERNETES, binaries.KUBERNETES_VERSION)
    yield ("Kubernetes", *versions)
    chart = yaml.safe_load((ROOT / "charts/triton-pipelines/Chart.yaml").read_text())
    oldest = minor(chart["kubeVersion"].removeprefix(">=").removesuffix("-0"))
    for name, since in (
        ("chart, CRD and operator", oldest),
        (
            "GPUs by a claim ([`gpu.claimTemplate`](api.md))",
            DEVICE_CLAIMS_SINCE,
        ),
        ("[in-place CPU resize](../user/cpu-resize.md)", RESIZE_SINCE),
        ("[sources in image volumes](../user/sources.md#image-volumes)", IMAGE_VOLUMES_SINCE),
    ):
        first = f"from {since[0]}.{since[1]}"
        yield (
            f"{name}, {first}",
            *("yes" if minor(version) >= since else "no" for version in versions),
        )


def triton() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of Triton releases, its heading first."""
    default = server_version(None, DEFAULT_SERVER_IMAGE)
    assert default is not None
    yield ("Feature", "First release")
    rows = [
        ("all features without a row of their own", FLOOR_VERSION),
        ("[`ensemble.maxInflightRequests`](api.md)", INFLIGHT_VERSION),
        ("`model_metrics` in a `configPatch`", METRICS_SINCE),
        ("the platform `torch_aoti` in an auxiliary model", AOTI_SINCE),
        *((f"the argument `{flag}`", since) for flag, since in FLAG_RELEASES.items()),
        *(
            (f"survives the request `{one.id}`", one.fixed_in)
            for one in known_problems().fatal_requests
        ),
        (
            "all known security bulletins fixed",
            max(one.fixed_in for one in known_problems().advisories),
        ),
    ]
    for name, since in sorted(rows, key=lambda row: row[1]):
        notes = {TESTED_TRITON: " (the release of the tests)", default: " (the default)"}
        yield (name, spelled(since) + notes.get(since, ""))


def table(rows: Iterator[tuple[str, ...]]) -> str:
    """Return a Markdown table; the first row is its heading."""
    heading, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ("---",) * len(heading), *body))


def python_versions() -> tuple[str, ...]:
    """Return the minor versions of Python that the Makefile accepts."""
    found = re.search(
        r"\(3, (\d+)\) <= sys\.version_info < \(3, (\d+)\)", (ROOT / "Makefile").read_text()
    )
    assert found
    return tuple(f"3.{second}" for second in range(int(found[1]), int(found[2])))


def page() -> str:
    """Return the page."""
    default = spelled(server_version(None, DEFAULT_SERVER_IMAGE) or FLOOR_VERSION)
    return "\n".join(
        [
            _HEAD,
            "## Kubernetes",
            "",
            table(kubernetes()),
            "",
            _KUBERNETES,
            "## Triton",
            "",
            table(triton()),
            "",
            _TRITON,
            f"The tests run release {spelled(TESTED_TRITON)}. The default is {default}, on which"
            " the operator was not\ntested; see [limitations](../user/limitations.md).",
            "",
            "## Python",
            "",
            _PYTHON.format(versions=" or ".join(python_versions())).rstrip(),
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(page())

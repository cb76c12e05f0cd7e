"""Facts about the server and the model folders that validation needs in addition to the configs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Release = tuple[int, int]
"""Year and month of a Triton release, such as (24, 10) for 24.10."""

OLDEST: Final[Release] = (24, 8)
"""The oldest release whose rules are known."""

_VERSION: Final = re.compile(r"[1-9][0-9]*|0")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One Triton server and the files next to the configs.

    A value that is None or missing is unknown and leads to no finding.
    """

    release: Release = OLDEST
    """Year and month of the server's release."""
    gpus: int | None = None
    """GPUs that the server sees; 0 for a server on CPUs; None if unknown."""
    backends: Mapping[str, frozenset[str]] | None = None
    """Names of the files in each backend's folder, by backend.

    The product cannot read the image, so only the differential test knows them. With them, it
    distinguishes a refusal because of files in the image from a missing rule.
    """
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Size in bytes of each file: model → path below its folder → size.

    A folder without files ends in "/".
    """
    rate_limiting: bool = False
    """Whether the server runs with ``--rate-limit=execution_count``."""
    root: str | None = None
    """Folder of the model repository as the server sees it.

    It is needed to check absolute paths in parameters.
    """

    def versions(self, model: str) -> frozenset[int] | None:
        """Return the version folders of a model; None if its files are unknown.

        As in Triton, a name with a leading zero is not a version.
        """
        files = self.files.get(model)
        if files is None:
            return None
        return frozenset(
            int(top)
            for path in files
            if (top := path.split("/", 1)[0]) != path and _VERSION.fullmatch(top)
        )

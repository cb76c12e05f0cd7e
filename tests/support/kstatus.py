"""Kstatus verdicts on objects.

Flux, Helm 4 and kustomize-style tools wait by these rules. They come from the tools' own code.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.local import binaries

TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Verdict:
    """Result of kstatus.

    `status` is Current, InProgress, Failed, Terminating, NotFound or Unknown; `message` has the
    reason.
    """

    status: str
    message: str


def verdicts(objects: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """The verdict on each object, in order.

    Raises:
        RuntimeError: kstatus could not read an object; its own message.
    """
    done = subprocess.run(
        [binaries.path_of("kstatus")],
        input=json.dumps(list(objects)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return [Verdict(**item) for item in json.loads(done.stdout)]

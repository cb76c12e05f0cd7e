"""``python -m tests.corpus.grown VERSION`` (with ``operator`` on the path): keep what this version takes and makes of it, for later ones to be held to.

Part of a release. An existing folder is not touched: what was released is released.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import yaml

from tests.corpus import GROWN
from tests.support.meaning import dump, meaning
from triton_pipelines.api import crd

ROOT = Path(__file__).parents[3]
SOURCES = ("tests/corpus/good", "manifests/samples")


def keep(version: str) -> int:
    """Write the folder of a version; returns how many resources it holds."""
    folder = GROWN / version
    for name in ("good", "meaning"):
        (folder / name).mkdir(parents=True)
    (folder / "crd.yaml").write_text(crd.render(), encoding="utf-8")
    (folder / "accepted.yaml").write_text("schema: []\nmeaning: []\n", encoding="utf-8")
    files = [file for source in SOURCES for file in sorted((ROOT / source).glob("*.yaml"))]
    for file in files:
        shutil.copyfile(file, folder / "good" / file.name)
        (folder / "meaning" / file.name).write_text(
            dump(meaning(yaml.safe_load(file.read_text(encoding="utf-8")))), encoding="utf-8"
        )
    return len(files)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.corpus.grown VERSION")
    print(f"kept {keep(sys.argv[1])} resources")

"""Record what a release created for a pipeline, for the test of upgrades from it.

Reads the output of ``kubectl get … --output json``, and prints the file of the release:
docs/releasing.md shows the command.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

from triton_pipelines.api import names

KIND = "InferencePipeline"
HEAD = """\
# What the operator had created for a pipeline when this release was made, read from a cluster. Left
# out: Secrets, what the API server adds, and the program files of the steps.
"""


class Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""


Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def recorded(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what the API server adds, and without program files."""
    metadata = {key: item["metadata"][key] for key in ("name", "labels") if key in item["metadata"]}
    kept = {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}
    if "data" in item:
        kept["data"] = {key: text for key, text in item["data"].items() if not key.endswith(".py")}
    if item["kind"] == "Service":
        kept["spec"] = {
            key: value for key, value in item["spec"].items() if not key.startswith("clusterIP")
        }
    return kept


def is_recorded(item: dict[str, Any]) -> bool:
    """Return whether the test needs the object."""
    labels = item["metadata"].get("labels") or {}
    return item["kind"] == KIND or (
        item["kind"] != "Secret" and labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY
    )


if __name__ == "__main__":
    items = [recorded(item) for item in json.load(sys.stdin)["items"] if is_recorded(item)]
    items.sort(key=lambda item: item["kind"] != KIND)
    print(HEAD + yaml.dump_all(items, Dumper=Dumper, width=98), end="")

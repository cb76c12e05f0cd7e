"""The CustomResourceDefinition, generated from the models.

The models are the single source for the API server, the command line and the reference.
``python -m triton_pipelines.api.crd`` prints the definition. ``crds/`` contains the printed text;
a test checks that both are equal.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping
from typing import Any

import yaml

from . import names
from .status import Status
from .structural_schema import VALIDATIONS, structural, write_once
from .v1alpha1 import ROOT_RULES, InferencePipeline, PipelineSpec


def _column(
    name: str, path: str, description: str, kind: str = "string", priority: int = 0
) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "description": description,
        "jsonPath": path,
        **({"priority": priority} if priority else {}),
    }


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


PRINTER_COLUMNS = (
    _column("Ready", _condition("Ready", "status"), "Whether every pod serves the latest spec."),
    _column(
        "Replicas",
        ".status.readyReplicas",
        "Pods in which the ensemble is ready.",
        "integer",
    ),
    _column(
        "Tokenizers",
        ".status.tokenizer.summary",
        "Current and maximum number of tokenizer instances in each pod.",
    ),
    _column(
        "Bottleneck",
        ".status.scaling.bottleneck",
        "Bottleneck of the pipeline, as determined by live scaling.",
    ),
    # Without it, `kubectl get -w` would not show why a rollout waits or failed.
    _column("Reason", _condition("Ready", "reason"), "Reason of the Ready condition."),
    _column("Age", ".metadata.creationTimestamp", "Time since creation.", "date"),
    _column("Revision", ".status.revision", "Revision of the latest spec.", priority=1),
    _column(
        "Message", _condition("Ready", "message"), "Message of the Ready condition.", priority=1
    ),
)


NOT_OBSERVED = -1
"""``status.observedGeneration`` of a resource that the operator has not processed yet."""


def root_schema() -> dict[str, Any]:
    """Return the structural schema of the whole resource."""
    return {
        "type": "object",
        "description": f"{names.KIND}: {(InferencePipeline.__doc__ or '').strip()}",
        "properties": {
            "apiVersion": {
                "type": "string",
                "description": "Version of this object's schema.",
            },
            "kind": {"type": "string", "description": "Kind of this object."},
            "metadata": {"type": "object"},
            "spec": write_once(structural(PipelineSpec), "spec"),
            # Until the operator has processed the object, its observed generation must differ
            # from the real one: otherwise kstatus (Flux, Helm) treats a new object as current.
            "status": {
                **structural(Status, defaults=False),
                "default": {"observedGeneration": NOT_OBSERVED},
            },
        },
        "required": ["spec"],
        VALIDATIONS: [dict(rule) for rule in ROOT_RULES],
    }


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition (``apiextensions.k8s.io/v1``) as a dictionary."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            "labels": {names.LABEL_NAME: names.APP},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in PRINTER_COLUMNS],
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": root_schema()},
                }
            ],
        },
    }


def stored(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource as an API server stores it.

    The API server writes the schema's defaults into every object that is present. Values that do
    not fit the schema are kept. The argument is not modified.
    """

    def filled(value: Any, schema: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [filled(item, schema.get("items", {})) for item in value]
        if not isinstance(value, Mapping):
            return value
        known = schema.get("properties", {})
        value = {
            key: copy.deepcopy(part["default"]) for key, part in known.items() if "default" in part
        } | dict(value)
        return {
            key: filled(item, known.get(key) or schema.get("additionalProperties", {}))
            for key, item in value.items()
        }

    result: dict[str, Any] = filled(document, _root_schema())
    return result


@functools.cache
def _root_schema() -> dict[str, Any]:
    return root_schema()


class _Dumper(yaml.SafeDumper):
    """Writes no anchors and aliases: kubectl reads them, but people do not."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def render() -> str:
    """Return the CustomResourceDefinition as YAML; the same bytes on every call."""
    text: str = yaml.dump(
        definition(), Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True
    )
    return (
        "# Generated by `python -m triton_pipelines.api.crd` from the models in"
        " operator/triton_pipelines/api. Do not edit.\n" + text
    )


if __name__ == "__main__":
    sys.stdout.write(render())

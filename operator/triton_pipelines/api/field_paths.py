"""Find fields of the resource by path, and suggest the field meant by an unknown name.

Users come from Triton's ``config.pbtxt``, KServe, Seldon and Helm charts. This module maps the
field names of those products to ours.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from .base import ApiModel
from .suggestions import nearest, plain
from .v1alpha1 import InferencePipeline

Place = tuple[str, ...]
"""Path of a field: the names from the root to it, without list indices."""
SLOTS = ("tokenizer", "model", "postprocess")
"""Steps that have a field of their own in the spec."""
Location = Sequence[int | str]
"""A location in a document, as pydantic reports it: field names and list indices."""

_MOST_NAMED = 3
# Names of a field in other products, without case and separators, with the fields that correspond
# to it. The first one that exists below the same parent is suggested, otherwise the last one at any
# path; if the last one is empty, nothing is suggested.
_CALLED: dict[str, tuple[str, ...]] = {
    # Triton's config.pbtxt
    "input": ("inputs",),
    "output": ("outputs",),
    "type": ("dataType", "products", "platform"),
    "datatype": ("dataType",),
    "dtype": ("dataType",),
    "shape": ("dims",),
    "name": ("modelName", "metadata.name"),
    "instancegroup": ("instances",),
    "kind": ("instances.kind", "server.gpu.count"),
    "allowraggedbatch": ("ragged",),
    "defaultmodelfilename": ("source.fileName",),
    "modelwarmup": ("warmup",),
    "modeltransactionpolicy": ("decoupled",),
    "ensemblescheduling": ("steps",),
    "step": ("steps",),
    "executionaccelerators": ("optimization.tensorrt",),
    "maxqueuedelay": ("maxQueueDelayMicroseconds",),
    "inputmap": ("inputs[].from",),
    "outputmap": ("ensemble.outputs",),
    "ratelimiter": ("configPatch",),
    # KServe and Seldon
    "predictor": ("model",),
    "predictors": ("model",),
    "transformer": ("steps",),
    "graph": ("steps",),
    "children": ("steps",),
    "storageuri": ("uri", "source.uri"),
    "modeluri": ("uri", "source.uri"),
    "storage": ("source.uri",),
    "modelformat": ("platform",),
    "framework": ("platform",),
    "runtime": ("platform",),
    "implementation": ("platform",),
    "runtimeversion": ("server.version",),
    "minreplicas": ("replicas",),
    "maxreplicas": ("replicas",),
    "batcher": ("dynamicBatching",),
    "batching": ("dynamicBatching",),
    "containers": ("server.podTemplate",),
    "volumes": ("server.podTemplate",),
    "serviceaccount": ("server.serviceAccountName",),
    # Helm charts
    "replicacount": ("replicas",),
    "imagename": ("server.image",),
    "repository": ("uri", "server.image"),
    "podannotations": ("server.podTemplate",),
    "podlabels": ("server.podTemplate",),
    "command": ("server.args",),
    "extraargs": ("server.args",),
    "enabled": ("mode", "inference", ""),
    "replicas": ("instances.count", "replicas"),
    "resources": ("resourcesPerInstance", "server.resources"),
    "gpus": ("server.gpu.count",),
    "nvidia.com/gpu": ("server.gpu.count",),
    "product": ("products", "server.gpu.products"),
    "key": ("",),
    "gpucount": ("server.gpu.count",),
    "shmsize": ("server.sharedMemory",),
    "livenessprobe": ("health",),
    "readinessprobe": ("health",),
    # Hugging Face and everyday words
    "url": ("uri", "source.uri"),
    "repo": ("uri", "source.uri"),
    "path": ("source.path", ""),
    "file": ("path", "source.path"),
    "filename": ("fileName", "source.fileName"),
    "branch": ("revision", "source.revision"),
    "commit": ("revision", "source.revision"),
    "tag": ("revision", "server.version"),
    "checksum": ("sha256", "source.sha256"),
    "digest": ("sha256", "source.sha256"),
    "secret": ("secretRef", "source.secretRef"),
    "secretname": ("secretRef.name", "source.secretRef.name"),
    "credentials": ("secretRef", "source.secretRef"),
    "token": ("secretRef", "source.secretRef"),
    "p99": ("p99Milliseconds",),
    "p99latency": ("p99Milliseconds",),
    "maxtokens": ("maxLength",),
    "maxlen": ("maxLength",),
    "maxseqlength": ("maxLength",),
    "modelmaxlength": ("maxLength",),
    "id2label": ("labels",),
    "classes": ("labels",),
    "batchsize": ("maxBatchSize",),
    "maxbatch": ("maxBatchSize",),
    "workers": ("instances.count",),
    "instancecount": ("instances.count",),
    "mininstances": ("instances.min",),
    "maxinstances": ("instances.max",),
}


def fields_of(model: type[ApiModel]) -> dict[str, FieldInfo]:
    """Return a model's fields by their JSON names."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


# Fields that other steps have, or that this step had → why it has not.
_NOT_HERE: dict[Place, str] = {
    ("spec", "tokenizer", "instances", "groups"): (
        "unknown field, because the tokenizer has one instance group, whose count is scaled live;"
        " use count, or initial, min and max"
    ),
    ("spec", "tokenizer", "implementation"): (
        "this field was removed, because the built-in tokenizer has only one implementation;"
        " delete it"
    ),
}


def model_below(annotation: object) -> type[ApiModel] | None:
    """Return the model of a field's type, single or in a list, optional or required."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next(
        (found for one in typing.get_args(annotation) if (found := model_below(one)) is not None),
        None,
    )


def model_at(location: Location) -> type[ApiModel] | None:
    """Return the model at a location of a document.

    ``None`` below a mapping with free keys, and at a location that the schema does not have.
    """
    model: type[ApiModel] | None = InferencePipeline
    for part in location:
        if isinstance(part, str):
            info = fields_of(model).get(part) if model is not None else None
            model = None if info is None else model_below(info.annotation)
    return model


def field_at(location: Location) -> FieldInfo | None:
    """Return the field at a location of a document."""
    model = model_at(location[:-1]) if location and isinstance(location[-1], str) else None
    return fields_of(model).get(str(location[-1])) if model is not None else None


def written(location: Location) -> str:
    """Return a location as a path, such as ``spec.model.inputs[0].dims``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@cache
def _places() -> tuple[Place, ...]:
    return tuple(_below(InferencePipeline, ()))


@cache
def _plain_places() -> tuple[tuple[Place, Place], ...]:
    """Return each place, and the same with plain names."""
    return tuple(
        (place, tuple(plain(part.removesuffix("[]")) for part in place)) for place in _places()
    )


def _below(model: type[ApiModel], place: Place) -> Iterator[Place]:
    for name, info in fields_of(model).items():
        yield (*place, name)
        below = model_below(info.annotation)
        if below is not None:
            repeated = typing.get_origin(info.annotation) is tuple
            yield from _below(below, (*place, f"{name}[]" if repeated else name))


def unknown_field(location: Location) -> str:
    """Return the message for an unknown field name.

    It suggests the field that was probably meant, or lists all fields of the parent.
    """
    parent, name = location[:-1], str(location[-1])
    place = tuple(part for part in location if isinstance(part, str))
    if place in _NOT_HERE:
        return _NOT_HERE[place]
    model = model_at(parent)
    siblings = list(fields_of(model)) if model is not None else []
    same = [str(parent[-1]), name] if parent and isinstance(parent[-1], str) else []
    meant = (
        _sibling(name, siblings)
        or (_elsewhere(same, parent) if same else [])
        or _called(name, parent)
    )
    if not meant and plain(name) not in _CALLED:
        meant = _elsewhere([name], parent)
    if not meant:
        near = nearest(name, siblings)
        meant = [near] if near else []
    if meant:
        return f"unknown field; did you mean {' or '.join(meant)}?"
    return (
        f"unknown field; the fields of {written(parent) or 'the document'} are"
        f" {', '.join(siblings)}"
    )


def _sibling(name: str, siblings: Sequence[str]) -> list[str]:
    return [one for one in siblings if plain(one) == plain(name)]


def _called(name: str, parent: Location) -> list[str]:
    """Return the fields for another product's name: below the same parent, else at any path."""
    chains = _CALLED.get(plain(name), ())
    here = tuple(part for part in parent if isinstance(part, str))
    for chain in chains:
        places = {tuple(part.removesuffix("[]") for part in place): place for place in _places()}
        if (
            found := places.get((*here, *(part.removesuffix("[]") for part in chain.split("."))))
        ) is not None:
            below = ".".join(found[len(here) :])
            return [f"{written(parent)}.{below}" if "." in below and parent else below]
    return _elsewhere(chains[-1].split("."), parent) if chains and chains[-1] else []


def _elsewhere(chain: Sequence[str], parent: Location) -> list[str]:
    """Return the paths that end with these names.

    Among them, return those that share the longest prefix with ``parent``; of these, the shortest.
    """
    here = tuple(part for part in parent if isinstance(part, str))
    ends = tuple(plain(part) for part in chain)
    found = [place for place, names in _plain_places() if names[-len(ends) :] == ends]

    def rank(place: Place) -> tuple[int, int]:
        shared = 0
        for ours, theirs in zip(here, place, strict=False):
            if ours != theirs.removesuffix("[]"):
                break
            shared += 1
        return -shared, len(place)

    best = min(map(rank, found), default=(0, 0))
    # Steps, the model and auxiliary models inherit their fields from one type: the first path of
    # each field is enough.
    first: dict[object, Place] = {}
    for place in found:
        if rank(place) == best:
            first.setdefault(_declaring(place), place)
    return [_field_next_to(place, -best[0], parent) for place in first.values()][:_MOST_NAMED]


def _declaring(place: Place) -> object:
    """Return the class that declares a field of the model at this path."""
    model = model_at([part.removesuffix("[]") for part in place[:-1]])
    ancestors = reversed(model.__mro__) if model is not None else ()
    return next(
        (
            one
            for one in ancestors
            if issubclass(one, ApiModel) and place[-1].removesuffix("[]") in fields_of(one)
        ),
        model,
    )


def _field_next_to(place: Place, shared: int, parent: Location) -> str:
    """Return a path with the document's list indices, as far as both share a prefix."""
    way: list[int | str] = []
    for part in parent:
        if isinstance(part, str) and sum(isinstance(one, str) for one in way) == shared:
            break
        way.append(part)
    return ".".join([*([written(way)] if way else []), *place[shared:]])


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A step of a document that may violate the schema."""

    name: str
    """Its name in ``from``."""
    model_name: str
    """Name of its model."""
    outputs: tuple[str, ...]
    """Names of the outputs that it declares."""


def named_steps(document: Mapping[str, Any]) -> list[NamedStep]:
    """Return the steps that a document names, even if the document is otherwise invalid."""
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        return []
    slots = [(name, spec[name]) for name in SLOTS if isinstance(spec.get(name), Mapping)]
    listed = spec.get("steps")
    steps = listed if isinstance(listed, list) else []
    slots += [
        (step["name"], step)
        for step in steps
        if isinstance(step, Mapping) and isinstance(step.get("name"), str)
    ]
    return [
        NamedStep(name, str(step.get("modelName", name)), tuple(_names(step.get("outputs"))))
        for name, step in slots
    ]


def _names(tensors: object) -> Iterator[str]:
    for tensor in tensors if isinstance(tensors, list) else []:
        if isinstance(tensor, Mapping) and isinstance(tensor.get("name"), str):
            yield tensor["name"]

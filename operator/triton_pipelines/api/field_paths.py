"""Where the resource's fields stand, and which one was probably meant by a name that is none.

People come from Triton's ``config.pbtxt``, KServe, Seldon and Helm charts: what those call a field
is known here by their names.
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
"""Names of fields from the root to one of them, without the indices of lists."""
SLOTS = ("tokenizer", "model", "postprocess")
"""Steps with a place of their own."""
Location = Sequence[int | str]
"""A place in a document, as pydantic names it."""

_MOST_NAMED = 3
# What others call a field, without case and separators, and the fields that say it: the first of
# them that stands below the same parent, else the last, wherever it stands (none where that is
# empty).
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
    """A model's fields by their names on the wire."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def model_below(annotation: object) -> type[ApiModel] | None:
    """The model that a field holds, alone or in a list, may it be left out or not."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next(
        (found for one in typing.get_args(annotation) if (found := model_below(one)) is not None),
        None,
    )


def model_at(location: Location) -> type[ApiModel] | None:
    """The model at a place of a document.

    ``None`` below a mapping of the user's own, and where nothing may stand.
    """
    model: type[ApiModel] | None = InferencePipeline
    for part in location:
        if isinstance(part, str):
            info = fields_of(model).get(part) if model is not None else None
            model = None if info is None else model_below(info.annotation)
    return model


def field_at(location: Location) -> FieldInfo | None:
    """The field at a place of a document."""
    model = model_at(location[:-1]) if location and isinstance(location[-1], str) else None
    return fields_of(model).get(str(location[-1])) if model is not None else None


def written(location: Location) -> str:
    """A place as people write it: ``spec.model.inputs[0].dims``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@cache
def _places() -> tuple[Place, ...]:
    return tuple(_below(InferencePipeline, ()))


def _below(model: type[ApiModel], place: Place) -> Iterator[Place]:
    for name, info in fields_of(model).items():
        yield (*place, name)
        below = model_below(info.annotation)
        if below is not None:
            repeated = typing.get_origin(info.annotation) is tuple
            yield from _below(below, (*place, f"{name}[]" if repeated else name))


def unknown_field(location: Location) -> str:
    """What to say about a name that is no field.

    The field that was meant, or all that may stand there.
    """
    parent, name = location[:-1], str(location[-1])
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
        return f"is not a field here; did you mean {' or '.join(meant)}?"
    return f"is not a field; {written(parent) or 'the document'} has {', '.join(siblings)}"


def _sibling(name: str, siblings: Sequence[str]) -> list[str]:
    return [one for one in siblings if plain(one) == plain(name)]


def _called(name: str, parent: Location) -> list[str]:
    """By what others call it: below the same parent, else wherever it stands."""
    wanted = _CALLED.get(plain(name), ())
    here = tuple(part for part in parent if isinstance(part, str))
    for chain in wanted:
        places = {tuple(part.removesuffix("[]") for part in place): place for place in _places()}
        if (
            found := places.get((*here, *(part.removesuffix("[]") for part in chain.split("."))))
        ) is not None:
            below = ".".join(found[len(here) :])
            return [f"{written(parent)}.{below}" if "." in below and parent else below]
    return _elsewhere(wanted[-1].split("."), parent) if wanted and wanted[-1] else []


def _elsewhere(chain: Sequence[str], parent: Location) -> list[str]:
    """Places that end with these names.

    Those that share most of the way with ``parent``, of these the shortest.
    """
    here = tuple(part for part in parent if isinstance(part, str))
    ends = tuple(plain(part) for part in chain)
    found = [
        place
        for place in _places()
        if tuple(plain(part.removesuffix("[]")) for part in place[-len(ends) :]) == ends
    ]

    def rank(place: Place) -> tuple[int, int]:
        shared = 0
        for ours, theirs in zip(here, place, strict=False):
            if ours != theirs.removesuffix("[]"):
                break
            shared += 1
        return -shared, len(place)

    best = min(map(rank, found), default=(0, 0))
    # Steps, the model and auxiliary models have their fields from one type: the first place of each
    # is enough.
    first: dict[object, Place] = {}
    for place in found:
        if rank(place) == best:
            first.setdefault(_declaring(place), place)
    return [_beside(place, -best[0], parent) for place in first.values()][:_MOST_NAMED]


def _declaring(place: Place) -> object:
    """The type that brings a field into the model where it stands."""
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


def _beside(place: Place, shared: int, parent: Location) -> str:
    """A place with the indices of the document as far as both go the same way."""
    way: list[int | str] = []
    for part in parent:
        if isinstance(part, str) and sum(isinstance(one, str) for one in way) == shared:
            break
        way.append(part)
    return ".".join([*([written(way)] if way else []), *place[shared:]])


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A step of a document that need not fit the schema.

    Its name in ``from``, its model's name, and the outputs it declares.
    """

    name: str
    model_name: str
    outputs: tuple[str, ...]


def named_steps(document: Mapping[str, Any]) -> list[NamedStep]:
    """The steps that a document names, whatever else is wrong with it."""
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

"""Check that every field of the resource has an effect on the models or on another object.

The corpus of good resources writes every field. The test omits or changes each field, one at a
time, until some output of the operator differs. For a field of Triton's configuration that is a
rendered config; for any other field it is a file, the pod, the Service or another object. Fields
that control the operator itself are excepted; separate tests cover them.
"""

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest

from hack import field_coverage
from tests.corpus import good
from tests.support.fields import fields, fields_of, owners
from tests.support.golden import deployment_of, objects_of
from tests.support.meaning import OPTIONS, rendered

SAMPLES = sorted(good(), key=lambda sample: len(str(sample.document)))
SCHEMA = fields()
# What the operator does or judges, rather than writes into an object.
STEERS = {
    "spec.health.*": "the operator's own inferences",
    "spec.suspend": "how many pods the operator asks for",
    "spec.slo.[mn]*": "what lint, the tuner and the watch after a rollout hold figures against",
    "spec.*.lengths.*": "what check and lint compare with padding",
    "spec.server.version": "which rules Triton has, and which flags it takes",
}
# What only changes together with other fields; tests of their own show these.
TOGETHER = {
    "spec.*.inputs[[]].optional": "without it something has to feed the input",
    "spec.*.precision": "INT8 needs its table, the others forbid it",
    "spec.*.python.runner": "own code in its place",
    "spec.*.controls[[]].kind": "each kind only once",
    "spec.*.sequenceBatching.strategy": "the strategies' settings differ",
    "spec.*.versionPolicy.all": "exactly one policy",
    "spec.*.versionPolicy.specific": "exactly one policy, and the pinned version is among them",
    "spec.*.warmup.mode": "Disabled takes no batch sizes",
    "spec.repeatedSteps[[]].name": "the references to it",
    "spec.repeatedSteps[[]].step": "the inputs of that step",
    "spec.repeatedSteps[[]].inputs[[]].name": "the inputs of the repeated step",
    "spec.ensemble.inputs[[]].*": "names and shapes of the steps that read them",
    "spec.tokenizer.outputs[[]].name": "names of the steps' inputs",
    "spec.tokenizer.outputs[[]].dataType": "types of the steps' inputs",
    "spec.tokenizer.outputs[[]].dims": "shapes of the steps' inputs",
    "spec.tokenizer.type": "Python needs code and outputs",
}
FIELDS = [fields_of(sample.document) for sample in SAMPLES]
WRITTEN = sorted(set().union(*FIELDS))
OWNERS = owners()
STEERING = [path for path in WRITTEN if any(fnmatchcase(path, pattern) for pattern in STEERS)]
EXCEPTED = [path for path in WRITTEN if any(fnmatchcase(path, pattern) for pattern in TOGETHER)]
PLACES: dict[str, list[str]] = {}
for _path in WRITTEN:
    if _path not in STEERING and _path not in EXCEPTED:
        PLACES.setdefault(f"{OWNERS[_path]} ({field_coverage.ladder(_path)[0]})", []).append(_path)


def _places(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """The containers that hold the field, with the key."""
    head, _, rest = path.partition(".")
    name = head.removesuffix("[]")
    if not isinstance(value, dict) or name not in value:
        return
    if not rest:
        yield value, name
        return
    for item in value[name] if head.endswith("[]") else [value[name]]:
        yield from _places(item, rest)


def _tensors(spec: Mapping[str, Any]) -> Iterator[str]:
    """Outputs of the steps, as ``from`` names them."""
    named = {"tokenizer": spec.get("tokenizer"), "model": spec.get("model")} | {
        step["name"]: step for step in spec.get("steps", [])
    }
    return (
        f"{name}.{output['name']}"
        for name, step in named.items()
        if step
        for output in step.get("outputs", [])
    )


def _others(value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Other values of a field, likely ones first."""
    if "enum" in schema:
        yield from (choice for choice in schema["enum"] if choice != value)
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value * 2)
    elif isinstance(value, str):
        yield from (
            f"{value}2",
            f"2{value}",
            value[:-1],
            value[::-1],
            f"1{value}",
            "nvidia.com/other",
            "2Gi",
            "24.08",
            "pipeline.other",
        )
    elif isinstance(value, list):
        yield from (
            value[:-1],
            value[1:],
            value[::-1],
            [*value, *value[:1]],
            [item + 1 for item in value if isinstance(item, int)],
        )
    elif isinstance(value, dict):
        yield from ({}, {**value, "other": "x"}, *({**value, key: "x"} for key in value))


def _changed(document: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield the resource without the field and with other values, at each of its places in turn."""
    for index, (holder, name) in enumerate(_places(document, path)):
        references = _tensors(document["spec"]) if name.lower().endswith("from") else ()
        for other in (None, *references, *_others(holder[name], SCHEMA[path])):
            changed = copy.deepcopy(document)
            target, _ = list(_places(changed, path))[index]
            if other is None:
                del target[name]
            else:
                target[name] = other
            yield changed


def _made(document: dict[str, Any]) -> tuple[str, str]:
    """Return the operator's output for a resource: Triton's configs, and everything else.

    Two results are equal if and only if nothing differs.
    """
    pipeline, _, revision = rendered(document)
    configs = {path: text for path, text in revision.files.items() if path.endswith(".pbtxt")}
    rest = {path: text for path, text in revision.files.items() if path not in configs}
    objects = [deployment_of(pipeline, revision), *objects_of(pipeline, revision, OPTIONS)[1:]]
    return json.dumps(configs), json.dumps(
        [rest, revision.data["plan.json"], objects], sort_keys=True
    ).replace(revision.name, "")


@functools.cache
def _made_of(number: int) -> tuple[str, str]:
    """What is made of one of the samples as it is."""
    return _made(SAMPLES[number].document)


def _has_effect(path: str) -> bool:
    part = 0 if field_coverage.ladder(path) == field_coverage.IN_TRITON else 1
    for number, sample in enumerate(SAMPLES):
        if path not in FIELDS[number]:
            continue
        before = _made_of(number)
        for changed in _changed(sample.document, path):
            try:
                after = _made(changed)
            except ValueError:
                continue  # refused: another value, then
            if after[part] != before[part]:
                return True
    return False


@pytest.mark.proves_files("tests/corpus/good", "parsed")
@pytest.mark.proves_files(
    "tests/corpus/good",
    "applied",
    "spec.health.*",
    "spec.suspend",
    "spec.slo.*",
    "spec.*.lengths.*",
    "spec.server.version",
    "spec.*.python.runner",
)
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_a_field_changes_what_is_made(places: list[str]) -> None:
    """At one of the places at least where fields of this type stand."""
    assert any(_has_effect(path) for path in places)


@pytest.mark.parametrize("path", STEERING)
def test_a_field_that_steers_the_operator_writes_nothing(path: str) -> None:
    """Else it is no exception."""
    assert not _has_effect(path)

"""Rules over one model that concern neither its tensors nor its scheduler.

Name, backend, versions, side files, metrics.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

from .backend_identity import ENSEMBLE, PYTHON_FILE, Identity, platforms
from .server_facts import Release, ServerFacts
from .violations import RuleId, ViolationCollector, keyed, listed

METRICS_SINCE: Final[Release] = (24, 11)
_FIELDS_SINCE: Final[dict[str, Release]] = {"model_metrics": METRICS_SINCE}
_IN_FLIGHT_SINCE: Final[Release] = (25, 11)
_METRIC_TAG: Final = re.compile(r"(?:[a-zA-Z0-9][a-zA-Z0-9_]*)?", re.ASCII)
_LIBRARY_BACKENDS: Final = frozenset({"python", "onnxruntime", "tensorrt", "tensorflow"})
"""Backends that are a library in every release, so that no ``model.py`` implements them."""
_STRATEGY: Final = "TRITON_BATCH_STRATEGY_PATH"


def check(
    name: str, config: Any, identity: Identity, facts: ServerFacts, findings: ViolationCollector
) -> None:
    """Check all rules of this module."""
    _name(name, config, findings)
    _backend(config, identity, facts, findings)
    if config.max_batch_size < 0:
        findings.add(
            "max_batch_size",
            RuleId.MAX_BATCH_SIZE,
            f"{config.max_batch_size} is negative; use 0 for a model that does not batch, or a"
            " size of at least 1",
        )
    _versions(name, config, facts, findings)
    _fields(config, facts, findings)
    _cache(config, findings)
    _metrics(config, findings)
    _metric_tags(config, findings)
    _labels(name, config, facts, findings)
    _enums(config, "", findings)
    if identity.platform != ENSEMBLE:
        _strategy(name, config, facts, findings)


def _name(name: str, config: Any, findings: ViolationCollector) -> None:
    if not name.strip() or name.strip() in (".", "..") or "/" in name:
        findings.add(
            "name",
            RuleId.MODEL_NAME,
            f"{name!r} is not a valid model name; it must not be empty, '.' or '..', and must not"
            " contain '/'",
        )
    if config.name and config.name != name:
        findings.add(
            "name",
            RuleId.DIRECTORY_NAME,
            f"the config has name {config.name!r}, but its directory is {name!r}; change "
            "the name, or rename the directory",
        )


def _backend(
    config: Any, identity: Identity, facts: ServerFacts, findings: ViolationCollector
) -> None:
    backend, platform = identity.backend, identity.platform
    if platform == ENSEMBLE:
        if backend:
            findings.add(
                "backend",
                RuleId.BACKEND,
                f"an ensemble cannot have a backend, but this one has {backend!r}; remove backend,"
                " or remove platform 'ensemble'",
            )
        return
    if not backend:
        given = f"platform {platform!r} does not imply one" if platform else "none is set"
        findings.add(
            "backend",
            RuleId.BACKEND,
            f"a model requires a backend, but {given}; set backend, for example to 'python' or"
            " 'onnxruntime'",
        )
        return
    allowed = platforms(backend, facts)
    if allowed and platform not in allowed:
        shown = f"not {platform!r}" if platform else "but none is set"
        findings.add(
            "platform",
            RuleId.BACKEND_PLATFORM,
            f"backend {backend!r} requires platform {' or '.join(map(repr, allowed))}, {shown}",
        )
    _library(config, backend, facts, findings)


def _library(config: Any, backend: str, facts: ServerFacts, findings: ViolationCollector) -> None:
    runtime = config.runtime
    if runtime and runtime != posixpath.basename(runtime):
        findings.add(
            "runtime",
            RuleId.RUNTIME,
            f"{runtime!r} is a path; use the name of a library in the directory of backend "
            f"{backend!r}, or omit runtime",
        )
        return
    if runtime == PYTHON_FILE and backend in _LIBRARY_BACKENDS:
        findings.add(
            "runtime",
            RuleId.RUNTIME,
            f"{runtime!r} is only for backends written in Python, but backend {backend!r} "
            "is a library; omit runtime",
        )
        return
    if facts.backends is None:
        return
    files = facts.backends.get(backend, frozenset())
    # The version's and the model's folder may hold the library as well.
    adjacent = {
        path.rsplit("/", 1)[-1]
        for path in facts.files.get(findings.model, {})
        if path.count("/") <= 1
    }
    expected = (runtime,) if runtime else (f"libtriton_{backend}.so", PYTHON_FILE)
    if not any(name in files for name in expected) and expected[0] not in adjacent:
        if runtime and files:
            findings.add(
                "runtime",
                RuleId.RUNTIME,
                f"backend {backend!r} of the server has no {runtime!r}; use one of its files: "
                f"{listed(sorted(files))}",
            )
        else:
            findings.add(
                "backend",
                RuleId.BACKEND_UNKNOWN,
                f"the server has no backend {backend!r}; use one of its backends: "
                f"{listed(sorted(facts.backends))}",
            )


def _versions(name: str, config: Any, facts: ServerFacts, findings: ViolationCollector) -> None:
    policy, present = config.version_policy, facts.versions(name)
    choice = policy.WhichOneof("policy_choice") or (
        "all" if config.HasField("version_policy") else ""
    )
    if choice == "latest" and policy.latest.num_versions == 0:
        findings.add(
            "version_policy.latest.num_versions",
            RuleId.VERSION_POLICY,
            "0 versions would be served; use at least 1",
        )
    elif choice == "specific" and not policy.specific.versions:
        findings.add(
            "version_policy.specific.versions",
            RuleId.VERSION_POLICY,
            "no version is listed; list at least one version directory",
        )
    elif present is not None and not present:
        findings.add(
            "version_policy",
            RuleId.VERSION_POLICY,
            "the model has no version directory; create a directory with a number as its "
            "name, for example '1'",
        )
    elif (
        choice == "specific" and present is not None and not present & set(policy.specific.versions)
    ):
        findings.add(
            "version_policy.specific.versions",
            RuleId.VERSION_POLICY,
            f"none of the versions {listed(policy.specific.versions)} exists; use one of the "
            f"model's version directories: {listed(sorted(present))}",
        )


def served(name: str, config: Any, facts: ServerFacts) -> frozenset[int] | None:
    """Return the versions that Triton would serve under the model's version policy.

    None when its folders are unknown.
    """
    present = facts.versions(name)
    if present is None:
        return None
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice") or (
        "all" if config.HasField("version_policy") else "latest"
    )
    if choice == "specific":
        return present & frozenset(policy.specific.versions)
    if choice == "latest":
        return frozenset(
            sorted(present, reverse=True)[
                : policy.latest.num_versions if policy.HasField("latest") else 1
            ]
        )
    return present


def _fields(config: Any, facts: ServerFacts, findings: ViolationCollector) -> None:
    for field, since in _FIELDS_SINCE.items():
        if config.HasField(field) and facts.release < since:
            findings.add(field, RuleId.FIELD_VERSION, _too_old(field, facts.release, since))
    if config.ensemble_scheduling.max_inflight_requests and facts.release < _IN_FLIGHT_SINCE:
        path = "ensemble_scheduling.max_inflight_requests"
        findings.add(
            path,
            RuleId.FIELD_VERSION,
            _too_old("max_inflight_requests", facts.release, _IN_FLIGHT_SINCE),
        )


def _too_old(field: str, release: Release, since: Release) -> str:
    return (
        f"Triton {_release(release)} does not support {field}; use Triton {_release(since)} "
        f"or later, or omit {field}"
    )


def _release(release: Release) -> str:
    return f"{release[0]}.{release[1]:02}"


def _cache(config: Any, findings: ViolationCollector) -> None:
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        findings.add(
            "response_cache.enable",
            RuleId.RESPONSE_CACHE,
            "the response cache and sequence_batching cannot be combined; remove "
            "response_cache or sequence_batching",
        )
    if config.model_transaction_policy.decoupled:
        findings.add(
            "response_cache.enable",
            RuleId.RESPONSE_CACHE,
            "the response cache cannot be combined with a decoupled model; remove "
            "response_cache or decoupled",
        )


def _metrics(config: Any, findings: ViolationCollector) -> None:
    for index, control in enumerate(config.model_metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        if not control.metric_identifier.family:
            findings.add(
                f"{path}.metric_identifier.family",
                RuleId.METRICS,
                "the metric has no family; set family, for example to "
                "'nv_inference_first_response_histogram_ms'",
            )
        if not control.histogram_options.buckets:
            findings.add(
                f"{path}.histogram_options.buckets",
                RuleId.METRICS,
                "no bucket is listed; list at least one upper bound",
            )


def _metric_tags(config: Any, findings: ViolationCollector) -> None:
    """Note keys that make no label of a metric.

    Triton puts ``_`` in front of a key, and its Prometheus library accepts
    ``[a-zA-Z_][a-zA-Z0-9_]*`` without ``__`` at the beginning; anything else ends the server
    (measured, 24.10: SIGABRT).
    """
    for key in sorted(config.metric_tags):
        if not _METRIC_TAG.fullmatch(key):
            findings.add(
                keyed("metric_tags", key),
                RuleId.METRIC_TAG,
                f"{key!r} is not a valid metric label and would crash the server; use letters,"
                " digits and _, and do not start with _",
            )


def _labels(name: str, config: Any, facts: ServerFacts, findings: ViolationCollector) -> None:
    files = facts.files.get(name)
    for index, output in enumerate(config.output):
        if not output.label_filename:
            continue
        path, target = (
            f"output[{index}].label_filename",
            posixpath.normpath(output.label_filename.lstrip("/")),
        )
        if target.startswith(".."):
            findings.add(
                path,
                RuleId.LABELS_FOLDER,
                f"{output.label_filename!r} is outside the model's directory; move the file "
                "into that directory",
            )
        elif files is not None and target not in files:
            findings.add(
                path,
                RuleId.LABELS,
                f"the model's directory has no file {output.label_filename!r}; add the "
                "file, or omit label_filename",
            )


def _strategy(name: str, config: Any, facts: ServerFacts, findings: ViolationCollector) -> None:
    if _STRATEGY not in config.parameters:
        return
    path, target = keyed("parameters", _STRATEGY), config.parameters[_STRATEGY].string_value
    if config.HasField("sequence_batching"):
        findings.add(
            path,
            RuleId.BATCH_STRATEGY,
            "a custom batching strategy cannot be combined with sequence_batching; remove "
            "the strategy or sequence_batching",
        )
        return
    if facts.root is None:
        return
    folder = posixpath.join(facts.root, name)
    within = (
        posixpath.relpath(posixpath.normpath(target), folder) if target.startswith("/") else ".."
    )
    if within == ".." or within.startswith("../"):
        findings.add(
            path,
            RuleId.BATCH_STRATEGY_FOLDER,
            f"{target!r} is outside the model's directory {folder!r}; move the library into "
            "that directory, and use its full path",
        )
    elif (files := facts.files.get(name)) is not None and within not in files:
        findings.add(
            path,
            RuleId.BATCH_STRATEGY,
            f"the model's directory has no file {within!r}; add the library, or correct the path",
        )


def _enums(message: Any, path: str, findings: ViolationCollector) -> None:
    """Report numbers of enum fields that have no name."""
    for field, value in message.ListFields():
        at = f"{path}.{field.name}" if path else field.name
        map_field = field.message_type is not None and field.message_type.GetOptions().map_entry
        repeated = field.is_repeated
        if field.enum_type is not None:
            for index, number in enumerate(value if repeated else [value]):
                if number not in field.enum_type.values_by_number:
                    spot = f"{at}[{index}]" if repeated else at
                    known = listed(entry.name for entry in field.enum_type.values)
                    findings.add(
                        spot,
                        RuleId.ENUM_VALUE,
                        f"{number} is not a valid {field.enum_type.name}; use one of: {known}",
                    )
        elif map_field:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in value:
                    _enums(value[key], keyed(at, key), findings)
        elif field.message_type is not None:
            for index, part in enumerate(value if repeated else [value]):
                _enums(part, f"{at}[{index}]" if repeated else at, findings)

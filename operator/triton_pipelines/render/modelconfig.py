"""``config.pbtxt`` of every model, from templates, re-read through Triton's own ModelConfig proto and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jinja2
from google.protobuf import text_format
from google.protobuf.text_encoding import CEscape
from tritonclient.grpc import model_config_pb2

from triton_pipelines.api.base import Switch
from triton_pipelines.pipeline.graph import PIPELINE, Graph, Reference, Step

from .errors import RenderError


def _pb_string(value: str) -> str:
    """A protobuf text-format string literal (UTF-8 kept readable)."""
    return f'"{CEscape(value.encode(), as_utf8=True)}"'


def _pb_word(value: str) -> str:
    """An identifier as it stands; anything else is a defect of ours."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", value):
        raise RenderError(f"{value!r} is no protobuf enum word")
    return value


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("triton_pipelines.render"),
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # noqa: S701 - protobuf text, not HTML; every scalar passes a filter of its own
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {"pb_string": _pb_string, "pb_word": _pb_word}


def parse(text: str) -> Any:
    """The ModelConfig message of a ``config.pbtxt``; unknown fields and wrong types raise :class:`RenderError`."""
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise RenderError(f"the rendered config is no ModelConfig: {error}") from error


def configs(graph: Graph) -> dict[str, str]:
    """Model name → text of its ``config.pbtxt``, the ensemble last."""
    result = {step.model_name: step_config(step) for step in graph.steps}
    result[graph.model_name] = ensemble_config(graph)
    parsed = {name: parse(text) for name, text in result.items()}
    verify(graph, parsed)
    return result


def step_config(step: Step) -> str:
    """The config of one composing model. Its ``instance_group`` says kind and count always: Triton's own choice differs by backend."""
    batching = None if step.batching.mode is Switch.DISABLED else step.batching
    return _ENVIRONMENT.get_template("step.pbtxt.j2").render(step=step, batching=batching).rstrip() + "\n"


def ensemble_config(graph: Graph) -> str:
    """The config of the ensemble: the maps of its steps, in the order of the data."""
    tensors = tensor_names(graph)
    read = {entry.source for step in graph.steps for entry in step.inputs} | {output.source for output in graph.outputs}
    steps = [
        {
            "model_name": step.model_name,
            "inputs": [(entry.tensor.name, tensors[entry.source]) for entry in step.inputs],
            # Outputs that nobody reads stay unmapped: Triton refuses a tensor that is written and unused.
            "outputs": [(tensor.name, tensors[ref]) for tensor in step.outputs if (ref := Reference(step.name, tensor.name)) in read],
        }
        for step in graph.steps
    ]
    return _ENVIRONMENT.get_template("ensemble.pbtxt.j2").render(graph=graph, steps=steps).rstrip() + "\n"


def tensor_names(graph: Graph) -> Mapping[Reference, str]:
    """The ensemble's own name of every tensor: public names as written, the rest ``STEP.TENSOR``, made distinct."""
    names = {Reference(PIPELINE, tensor.name): tensor.name for tensor in graph.inputs}
    names |= {output.source: output.tensor.name for output in graph.outputs}
    taken = set(names.values())
    for step in graph.steps:
        for tensor in step.outputs:
            reference = Reference(step.name, tensor.name)
            if reference in names:
                continue
            name = str(reference)
            while name in taken:
                name += "_"
            taken.add(name)
            names[reference] = name
    return names


def with_count(config: Any, count: int) -> Any:
    """A copy of a parsed config with another instance count and nothing else changed: what a live change sends, and all it sends."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    if len(changed.instance_group) != 1:
        raise RenderError(f"{config.name}: one instance_group is expected, {len(changed.instance_group)} found")
    changed.instance_group[0].count = count
    return changed


def verify(graph: Graph, parsed: Mapping[str, Any]) -> None:
    """Triton's own load rules over what was rendered (facts: core's model_config_utils.cc, ensemble_utils.cc).

    The resource was judged before; a violation here is a defect of this renderer and raises :class:`RenderError` instead of
    reaching a server, whose API would hide the reason.
    """
    problems: list[str] = []
    for name, config in parsed.items():
        if config.name != name:
            problems.append(f"{name}: directory name must equal model name, config says {config.name!r}")
        if config.max_batch_size < 0:
            problems.append(f"{name}: max_batch_size must be non-negative")
        for tensor in [*config.input, *config.output]:
            if not tensor.dims or any(dim == 0 or dim < -1 for dim in tensor.dims):
                problems.append(f"{name}: {tensor.name}: dimension must be integer >= 1, or -1")
        for side in (config.input, config.output):
            if len({tensor.name for tensor in side}) != len(side):
                problems.append(f"{name}: tensor names must be distinct")
        if any(size < 1 or size > config.max_batch_size for size in config.dynamic_batching.preferred_batch_size):
            problems.append(f"{name}: preferred batch sizes must be in [1, {config.max_batch_size}]")
        if config.platform == "ensemble":
            problems += _verify_ensemble(config, parsed)
        elif not config.backend:
            problems.append(f"{name}: backend must be set")
        elif len(config.instance_group) != 1 or config.instance_group[0].count < 1 or config.instance_group[0].kind == 0:
            problems.append(f"{name}: one instance_group with an explicit kind and a count of at least 1 is needed")
    tokenizer = parsed[graph.steps[0].model_name]
    if tokenizer.instance_group[0].kind != model_config_pb2.ModelInstanceGroup.KIND_CPU:
        problems.append(f"{tokenizer.name}: the tokenizer must be KIND_CPU, or one is started per GPU")
    if problems:
        raise RenderError("; ".join(problems))


def _verify_ensemble(config: Any, parsed: Mapping[str, Any]) -> list[str]:
    name, problems = config.name, []
    if config.instance_group or config.HasField("optimization") or config.model_warmup:
        problems.append(f"{name}: instance_group, optimization and warmup should not be specified for ensemble")
    if not config.ensemble_scheduling.step:
        problems.append(f"{name}: must specify 'step'")
    made = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in config.input}
    written = [tensor.name for tensor in config.input]
    used = [tensor.name for tensor in config.output]
    for step in config.ensemble_scheduling.step:
        model = parsed.get(step.model_name)
        if model is None:
            problems.append(f"{name}: step {step.model_name} is not in the repository")
            continue
        if config.max_batch_size > model.max_batch_size > 0:
            problems.append(f"{name}: allows maximum batch size {config.max_batch_size}, but it contains model {model.name}")
        if not step.input_map or not step.output_map:
            problems.append(f"{name}: step {model.name} must specify both maps")
        inputs, outputs = {tensor.name for tensor in model.input}, {tensor.name for tensor in model.output}
        problems += [f"{name}: {model.name} has non-existing input {key}" for key in step.input_map if key not in inputs]
        problems += [f"{name}: {model.name} has non-existing output {key}" for key in step.output_map if key not in outputs]
        problems += [f"{name}: input {key} of {model.name} is not mapped to any tensor" for key in inputs - set(step.input_map)]
        problems += [f"{name}: {tensor} is not written before it is read" for tensor in step.input_map.values() if tensor not in written]
        reads = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in model.input}
        problems += [
            f"{name}: inconsistent data type or shape: {key} of {model.name} is {reads[key]}, {tensor} is {made[tensor]}"
            for key, tensor in step.input_map.items()
            if key in reads and tensor in made and not _consistent(reads[key], made[tensor])
        ]
        makes = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in model.output}
        made |= {tensor: makes[key] for key, tensor in step.output_map.items() if key in makes}
        written += step.output_map.values()
        used += step.input_map.values()
    problems += [f"{name}: {tensor} is in an output map more than once" for tensor in sorted({t for t in written if written.count(t) > 1})]
    problems += [f"{name}: {tensor} is unused" for tensor in written if tensor not in used]
    problems += [f"{name}: {tensor.name} is not written" for tensor in config.output if tensor.name not in written]
    problems += [
        f"{name}: inconsistent data type or shape of output {tensor.name}"
        for tensor in config.output
        if tensor.name in made and not _consistent((tensor.data_type, tuple(tensor.dims)), made[tensor.name])
    ]
    return problems


def _consistent(one: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]) -> bool:
    """Equal element types, and dims that are equal or -1 on either side."""
    return one[0] == other[0] and len(one[1]) == len(other[1]) and all(a == b or -1 in (a, b) for a, b in zip(one[1], other[1], strict=True))

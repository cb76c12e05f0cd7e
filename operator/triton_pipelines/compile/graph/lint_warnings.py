"""Warn about settings that work but are probably unintended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from triton_pipelines.api.base import Finding, Switch
from triton_pipelines.api.batching import QueuePolicy, TimeoutAction
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.scaling import CpuResize, ScalingMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import listed

from .container_resources import cpu_range
from .drain import sequence_idle_seconds
from .example_request import lint_example
from .graph import PIPELINE, Graph, Implementation, Role
from .lint_findings import warning
from .padding_lint import lint_padding, lint_shapes
from .quantities import millis
from .scheduler_lint import lint_schedulers
from .source_checks import PLACEHOLDER
from .torchscript_lint import lint_torchscript

# A single instance on this many cores is probably unintended.
MANY_CORES = 4
# A client resolves the name of a headless Service again when its connection ends, which is after a
# third of the drain (drain.connection_age_milliseconds), and not before its own interval (5 s in
# the guide). Its answer may come from a cache: kubeadm configures CoreDNS with a TTL of 30 s.
# 60 / 3 + 5 + 30 = 55.
HEADLESS_DRAIN_SECONDS = 60
# Backends whose engine allocates GPUs itself, independent of the instance kind.
ENGINES = ("vllm", "tensorrtllm")


def lint(pipeline: InferencePipeline, graph: Graph) -> list[Finding]:
    """Return warnings about settings that are probably unintended; they never block a revision."""
    return [
        *_batching(pipeline, graph),
        *_sources(graph),
        *_names(graph),
        *_optional_inputs(graph),
        *_labels(pipeline.spec.postprocess.labels),
        *lint_padding(pipeline, graph),
        *lint_shapes(pipeline, graph),
        *lint_torchscript(graph),
        *_instances(pipeline, graph),
        *_plans(pipeline, graph),
        *_sequences(pipeline, graph),
        *_headless(pipeline),
        *_pods(pipeline, graph),
        *lint_schedulers(graph),
        *lint_example(pipeline, graph),
    ]


def _batching(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    slo = pipeline.spec.slo
    budget = slo.latency_budget_milliseconds()
    if budget is not None and budget <= 0:
        yield warning(
            "spec.slo.networkAndQueueBudgetMilliseconds",
            f"the SLO of {slo.p99_milliseconds} ms leaves {max(budget, 0)} ms for the "
            "server, which is too short for batching; lower the budget, or raise "
            "spec.slo.p99Milliseconds",
            code=FindingCode.LATENCY_BUDGET_EXHAUSTED,
        )
    for step in graph.models:
        if (
            step.batching is None
            and step.sequences is None
            and step.max_batch_size > 1
            and step.backend != "vllm"
        ):
            yield warning(
                f"{step.path}.dynamicBatching.mode",
                f"batching is disabled, so step '{step.name}' runs one request at a time; "
                "enable batching unless outputs depend on other rows of the batch",
                code=FindingCode.BATCHING_DISABLED,
            )
        delay = step.batching.max_queue_delay_microseconds if step.batching else None
        if delay and budget is not None and delay / 1000 >= max(budget, 0):
            yield warning(
                f"{step.path}.dynamicBatching.maxQueueDelayMicroseconds",
                f"{delay / 1000:g} ms is not less than the latency budget of the whole request "
                f"({max(budget, 0)} ms), and a single request waits for the full delay; lower "
                "the delay",
                code=FindingCode.DELAY_EXCEEDS_BUDGET,
            )
    first = next((step for step in graph.steps if step.repeats is None), None)
    if slo.p99_milliseconds is None or first is None or first.batching is None:
        return
    if not _is_bounded(first.batching.queue_policy):
        yield warning(
            f"{first.path}.dynamicBatching.queuePolicy",
            "the queue is unbounded, so under overload every request waits longer than"
            " spec.slo.p99Milliseconds; set defaultTimeoutMicroseconds, unless requests are rare:"
            " with a queue policy, Triton may delay such requests by 0.5 s",
            code=FindingCode.QUEUE_UNBOUNDED,
        )


def _is_bounded(policy: QueuePolicy | None) -> bool:
    if policy is None:
        return False
    rejects = policy.timeout_action is not TimeoutAction.DELAY
    return bool(policy.max_queue_size or (policy.default_timeout_microseconds and rejects))


def _optional_inputs(graph: Graph) -> Iterator[Finding]:
    """Warn about steps that may get no input at all.

    Measured (24.10): the ensemble still runs such a step, and its backend fails the request with
    "out of bounds index 0: request has 0 inputs".
    """
    for step in graph.steps if graph.entry is None else ():
        read = [entry.source for entry in step.inputs if entry.source is not None]
        if read and all(
            source.step == PIPELINE and source.tensor in graph.optional_inputs for source in read
        ):
            names = listed([source.tensor for source in read])
            yield warning(
                f"{step.path}.inputs",
                f"every input of step '{step.name}' is optional, so a request that omits "
                f"{names} fails; connect an input to a tensor that every request contains",
                code=FindingCode.ALL_INPUTS_OPTIONAL,
            )


def _sources(graph: Graph) -> Iterator[Finding]:
    for path, source in {item.path: item.source for item in graph.fetches}.items():
        if source.uri == PLACEHOLDER or source.uri.startswith(f"{PLACEHOLDER}/"):
            yield warning(
                f"{path}.uri",
                f"{PLACEHOLDER} is a placeholder; replace it with the location of the file, for"
                " example s3://bucket/key",
                code=FindingCode.SOURCE_PLACEHOLDER,
            )


def _names(graph: Graph) -> Iterator[Finding]:
    if (escaped := quote(graph.model_name)) != graph.model_name:
        # Measured, Triton 24.10: such a name is served, but its HTTP server decodes no path, and
        # tritonclient.http quotes names.
        yield warning(
            "spec.ensemble.modelName",
            f"HTTP clients that escape URLs, such as tritonclient, request {escaped!r}, which"
            " Triton cannot find; use only letters, digits and -_.~",
            code=FindingCode.NAME_NEEDS_ESCAPING,
        )


def _labels(labels: Sequence[str]) -> Iterator[Finding]:
    twice = sorted(label for label, count in Counter(labels).items() if count > 1)
    if twice:
        yield warning(
            "spec.postprocess.labels",
            f"{_repeated(twice)} more than once, so clients cannot tell these classes apart; "
            "use a different label for each class",
            code=FindingCode.DUPLICATE_LABEL,
        )


def _repeated(labels: Sequence[str]) -> str:
    names = listed([repr(label) for label in labels])
    return f"label {names} occurs" if len(labels) == 1 else f"labels {names} occur"


def _instances(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    server = pipeline.spec.server
    no_gpu = server.gpu.count == 0
    cores = server.resources.limits.cpu or server.resources.requests.cpu
    tokenizer = graph.tokenizer
    if (
        tokenizer is not None
        and cores is not None
        and tokenizer.instances.counts.max == 1
        and millis(cores) >= MANY_CORES * 1000
    ):
        yield warning(
            "spec.tokenizer.instances",
            f"one instance cannot use {cores} cores, so texts wait while cores are idle; set "
            "instances.max so that live scaling can add instances",
            code=FindingCode.IDLE_CORES,
        )
    for step in graph.models:
        if step.path == "spec.tokenizer":
            continue
        if not step.python or step.role not in (Role.STEP, Role.POSTPROCESS):
            continue
        for group in step.instances.groups:
            if group.kind != "KIND_GPU":
                continue
            yield warning(
                f"{step.path}.{group.field}.kind",
                "kind GPU starts one process per GPU for a python step; use CPU unless its code"
                " uses the GPU",
                code=FindingCode.GPU_INSTANCES_OF_PYTHON,
            )
    kinds = {kind for step in graph.models for kind in step.instances.kinds}
    uses = kinds & {"KIND_GPU", "KIND_MODEL", "KIND_AUTO"} or any(
        step.backend in ENGINES for step in graph.models
    )
    substituted = any(step.implementation is Implementation.ONNX_RUNNER for step in graph.models)
    if not no_gpu and not uses and not substituted:
        yield warning(
            "spec.server.gpu.count",
            "pods reserve a GPU that no step uses, because model.instances.kind is CPU; set "
            "spec.server.gpu.count to 0",
            code=FindingCode.UNUSED_GPU,
        )


def _plans(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    if not any(step.platform == "tensorrt_plan" for step in graph.models):
        return
    server = pipeline.spec.server
    if not server.gpu.products:
        yield warning(
            "spec.server.gpu.products",
            "a TensorRT plan runs only on the GPU product for which it was built; list that "
            "product, so that pods are scheduled only on nodes with such GPUs",
            code=FindingCode.PLAN_NEEDS_GPU_PRODUCT,
        )
    if server.image is None:
        yield warning(
            "spec.server.image",
            "a TensorRT plan runs only with the TensorRT version with which it was built; set "
            "this field to an image that contains that version",
            code=FindingCode.PLAN_NEEDS_IMAGE,
        )


def _keeping(steps: list[str]) -> str:
    return f"{listed(steps)} {'keeps' if len(steps) == 1 else 'keep'}"


def _sequences(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    stateful = [step.name for step in graph.models if step.sequences is not None]
    if stateful and pipeline.spec.replicas > 1:
        yield warning(
            "spec.replicas",
            f"{_keeping(stateful)} each sequence in one pod. Clients are assigned to "
            "pods by IP address, and a sequence is lost when its pod terminates",
            code=FindingCode.SEQUENCES_NEED_AFFINITY,
        )
    if stateful and pipeline.spec.server.service.headless is Switch.ENABLED:
        yield warning(
            "spec.server.service.headless",
            f"{_keeping(stateful)} each sequence in one pod. Clients that distribute "
            "requests over multiple pods lose their sequences; use the Service with a "
            "cluster IP",
            code=FindingCode.SEQUENCES_NEED_AFFINITY,
        )


def _headless(pipeline: InferencePipeline) -> Iterator[Finding]:
    seconds = pipeline.spec.rollout.drain_seconds
    if (
        pipeline.spec.server.service.headless is Switch.ENABLED
        and seconds < HEADLESS_DRAIN_SECONDS
        and sequence_idle_seconds(pipeline) is None
    ):
        yield warning(
            "spec.rollout.drainSeconds",
            f"{seconds} s is too short for clients of the headless Service, which might "
            f"send requests to a removed pod; use at least {HEADLESS_DRAIN_SECONDS}",
            code=FindingCode.DRAIN_TOO_SHORT,
        )


def _pods(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    scaling, replicas = pipeline.spec.scaling, pipeline.spec.replicas
    scaled = any(step.instances.scaled for step in graph.models) and not graph.auto_complete
    if (pods := scaling.pods) is not None:
        # 1 is the default of the API server.
        if replicas != 1 and not pods.low <= replicas <= pods.max:
            yield warning(
                "spec.replicas",
                f"{replicas} is ignored, because spec.scaling.pods sets the number of pods "
                f"({pods.low} to {pods.max}); remove spec.replicas or spec.scaling.pods",
                code=FindingCode.REPLICAS_IGNORED,
            )
        if not scaled:
            yield warning(
                "spec.scaling.pods",
                "no step is scaled live, so the operator cannot determine when more pods are "
                "needed; set instances.max of a CPU step above its min",
                code=FindingCode.POD_SCALING_WITHOUT_STEP,
            )
        elif scaling.mode is ScalingMode.DISABLED:
            yield warning(
                "spec.scaling.pods",
                "the number of pods does not change while spec.scaling.mode is Disabled; "
                "change the mode, or remove spec.scaling.pods",
                code=FindingCode.POD_SCALING_DISABLED,
            )
    if scaling.cpu_resize is CpuResize.IN_PLACE:
        if pipeline.spec.server.resources.limits.cpu:
            yield warning(
                "spec.scaling.cpuResize",
                f"server.resources.limits.cpu ({pipeline.spec.server.resources.limits.cpu}) "
                "is a fixed limit, so pods cannot be resized in place; remove the limit to "
                "start with the CPU that the initial instances need",
                code=FindingCode.CPU_RESIZE_BLOCKED,
            )
        elif cpu_range(pipeline, graph) is None:
            yield warning(
                "spec.scaling.cpuResize",
                "cpuResize has no effect, because no step on the CPU has "
                "resourcesPerInstance.cpu and instances.max above instances.initial; set "
                "both fields",
                code=FindingCode.CPU_RESIZE_BLOCKED,
            )

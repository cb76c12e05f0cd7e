"""A real model step for the serving benchmarks, in the place of the simulated GPU step.

``STEP=gpu`` runs the model on an NVIDIA GPU, ``STEP=cpu`` on the CPU, which only rehearses a run.
``PRECISION`` is ``tf32`` (FP32 weights, as the ONNX runner runs them on a GPU), ``fp32`` (without
TensorFloat-32) or ``fp16`` (weights and activations in half precision). The model is MiniLM with a
seeded linear head; without the package of its weights, all weights are seeded.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save

from bench.results import NATIVE
from e2e.local import native
from e2e.models import bytepairs, minilm, tree
from e2e.models.graph import serialize
from e2e.models.weights import EncoderConfig, load_weights, model_folder
from tests.gpu import encoder, nvml
from tests.support import tinymodel
from triton_pipelines.compile.graph.graph import Graph, Step

SIMULATED, GPU, CPU = "simulated", "gpu", "cpu"
STEP: Final = os.environ.get("STEP", SIMULATED)
TF32, FP32, FP16 = "tf32", "fp32", "fp16"
PRECISION: Final = os.environ.get("PRECISION", TF32)
MASKED_FP16: Final = -6e4
"""Added to the score of a masked position in half precision, whose least value is -65504."""
CLASSES: Final = 2
PROBE_SECONDS: Final = 120
WRITTEN: Final = {
    TF32: "FP32 weights, TensorFloat-32 products",
    FP32: "FP32, no TensorFloat-32",
    FP16: "FP16",
}


class StepError(RuntimeError):
    """The real step cannot run here; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """Weights and tokenizer of the model."""

    name: str
    """What it is, in words."""
    config: EncoderConfig
    """Architecture."""
    tensors: dict[str, np.ndarray[Any, Any]]
    """FP32 weights, named as in Hugging Face's BERT checkpoints."""
    head: minilm.LinearHead
    """The classifier."""
    tokenizer: bytes
    """Text of tokenizer.json."""


def is_real() -> bool:
    """Return whether the model step is a real one.

    Raises:
        StepError: STEP or PRECISION has an unknown value.
    """
    if STEP not in (SIMULATED, GPU, CPU):
        raise StepError(f"STEP={STEP}: use {SIMULATED}, {GPU} or {CPU}")
    if PRECISION not in WRITTEN:
        raise StepError(f"PRECISION={PRECISION}: use {', '.join(WRITTEN)}")
    return STEP != SIMULATED


def step_suffix() -> str:
    """Return what follows the id of a result: each real step has results of its own."""
    if not is_real():
        return ""
    name = "rehearsal" if STEP == CPU else STEP
    precision = "" if PRECISION == TF32 else f"-{PRECISION}"
    return f"-{name}{precision}"


def suffix() -> str:
    """Return the suffix of a result that depends on the tokenizer as well."""
    return f"{step_suffix()}{NATIVE}"


def kind() -> str:
    """Return the kind of the model's instances."""
    return "KIND_GPU" if STEP == GPU else "KIND_CPU"


@functools.cache
def device() -> str:
    """Return the product name of the GPU, or that this is the CPU.

    Raises:
        StepError: the driver does not answer.
    """
    if STEP != GPU:
        return "CPU (a rehearsal: says nothing about a GPU)"
    try:
        gpu = nvml.gpu(None)
    except ImportError as error:
        raise StepError("pynvml is missing: install the package nvidia-ml-py") from error
    return f"{gpu.name}, driver {gpu.driver}"


def described() -> str:
    """Return the step in words."""
    return f"{checkpoint().name}, {WRITTEN[PRECISION]}, on {device()}"


def record() -> dict[str, str]:
    """Return what the detail of a result says about the step; empty for the simulated one."""
    return {"step": described(), "gpu": device()} if is_real() else {}


def step_command(identity: str, rest: str | None = None) -> str | None:
    """Return the command that repeats a measurement; ``None`` if it needs no variables.

    Args:
        identity: ID of the measurement.
        rest: The command without the variables of the step; ``None`` if it needs no others.
    """
    if not is_real():
        return rest
    return f"STEP={STEP} PRECISION={PRECISION} {rest or f'make bench ID={identity}'}"


def command(identity: str) -> str | None:
    """Return the command of a measurement whose result has :func:`suffix`."""
    return step_command(identity, f"make bench ID={identity}")


def prepare() -> None:
    """Let the server's processes find the CUDA libraries, and check that they do.

    The library of the native tokenizer is built and put into the package.

    Raises:
        StepError: ONNX Runtime cannot run a model on the GPU.
    """
    native.install()
    if STEP != GPU:
        return
    folders = [str(folder) for folder in cuda_libraries()]
    known = os.environ.get("LD_LIBRARY_PATH", "")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, *filter(None, [known])])
    if PRECISION == FP32:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    # In a process of its own: the dynamic loader reads the path only at the start.
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_probe", "provider"],
        capture_output=True,
        text=True,
        timeout=PROBE_SECONDS,
        check=False,
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise StepError("ONNX Runtime does not run on the GPU:\n" + "\n".join(last))


def cuda_libraries() -> list[Path]:
    """Return the folders of NVIDIA's Python packages that hold libraries."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin:
        roots.append(str(Path(torch.origin).parents[1] / "nvidia"))
    found = [folder for root in roots for folder in sorted(Path(root).glob("*/lib"))]
    return list(dict.fromkeys(found))


@functools.cache
def checkpoint() -> Checkpoint:
    """Return MiniLM, or seeded weights of its shape; a small encoder for a rehearsal."""
    if STEP == CPU:
        return _seeded("small encoder with seeded weights", encoder.SMALL)
    try:
        folder = model_folder()
    except FileNotFoundError:
        return _seeded("encoder of MiniLM's shape with seeded weights", encoder.MINILM)
    config = EncoderConfig.read(folder / "config.json")
    return Checkpoint(
        "MiniLM with a seeded linear head",
        config,
        load_weights(folder),
        _head(config.hidden_size),
        (folder / "tokenizer.json").read_bytes(),
    )


def _seeded(name: str, shape: encoder.Shape) -> Checkpoint:
    config = EncoderConfig(vocab_size=len(encoder.VOCABULARY), **asdict(shape))
    words = tinymodel.tokenizer(baked_in=False).to_str().encode()
    return Checkpoint(name, config, encoder.weights(shape), _head(config.hidden_size), words)


def _head(width: int) -> minilm.LinearHead:
    """Return a linear head whose logits are of the order of 1."""
    random = np.random.RandomState(encoder.SEED)
    weight = random.standard_normal((width, CLASSES)) * width**-0.5
    return minilm.LinearHead(weight.astype(np.float32), np.zeros(CLASSES, np.float32))


def safetensors() -> bytes:
    """Return the weights as a checkpoint file, the classifier included."""
    source = checkpoint()
    own = {
        "classifier.weight": np.ascontiguousarray(source.head.weight.T),
        "classifier.bias": source.head.bias,
    }
    return bytes(save({**source.tensors, **own}))


def model() -> bytes:
    """Return the ONNX file in the precision of this run."""
    source = checkpoint()
    made = minilm.build_model(source.tensors, source.config, source.head)
    if PRECISION == FP16:
        _halve(made)
    return bytes(serialize(made))


def files(folder: Path) -> Path:
    """Write the model and the tokenizers where the samples' sources are mapped to.

    Returns ``folder``.
    """
    for name, content in (
        (tree.SENTIMENT_MODEL, model()),
        (f"{tree.TOKENIZER_FOLDER}/tokenizer.json", checkpoint().tokenizer),
        (tree.BYTE_PAIRS, bytepairs.train().to_str().encode()),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)
    return folder


def placed(graph: Graph, name: str) -> Graph:
    """Return the graph with the instances of one step where the real step runs (:func:`kind`).

    The ONNX runner stands in for Triton's backend there, and by default on the CPU only.
    """

    def moved(step: Step) -> Step:
        if step.name != name:
            return step
        groups = tuple(replace(group, kind=kind()) for group in step.instances.groups)
        return replace(step, instances=replace(step.instances, groups=groups))

    return replace(graph, steps=tuple(map(moved, graph.steps)))


def _halve(made: Any) -> None:
    """Compute in half precision; inputs stay INT64, the logits FP32."""
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = np.maximum(numpy_helper.to_array(tensor), MASKED_FP16).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for node in made.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
        if minilm.LOGITS in node.output:
            node.output[0] = "logits_in_half"
    made.graph.node.append(
        helper.make_node("Cast", ["logits_in_half"], [minilm.LOGITS], to=TensorProto.FLOAT)
    )

"""From the resource to the graph: every default decided, nothing judged (see checks)."""

from __future__ import annotations

import json
from dataclasses import replace

from triton_pipelines.api.base import Switch
from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.postprocess import CLASSIFIERS, Postprocess, PostprocessType
from triton_pipelines.api.steps import (
    DataType,
    InstanceKind,
    Model,
    ModelInput,
    Padding,
    Platform,
    Runner,
    Tokenizer,
    TokenizerOutput,
    TokenTensor,
)
from triton_pipelines.api.v1alpha1 import InferencePipeline, Spec

from .graph import (
    PIPELINE,
    Graph,
    Implementation,
    Input,
    Instances,
    Output,
    PaddingChoice,
    Reference,
    Role,
    Step,
    Tensor,
)
from .options import Options
from .sources import file_name_of

TOKENIZER, MODEL, POSTPROCESS = "tokenizer", "model", "postprocess"
DEFAULT_MAX_LENGTH = 512
DEFAULT_MAX_BATCH_SIZE = 64

# Usual names of token tensors, lower case, as exported Hugging Face models spell them.
USUAL_NAMES = {
    "input_ids": TokenTensor.INPUT_IDS,
    "attention_mask": TokenTensor.ATTENTION_MASK,
    "token_type_ids": TokenTensor.TOKEN_TYPE_IDS,
    "special_tokens_mask": TokenTensor.SPECIAL_TOKENS_MASK,
    "offset_mapping": TokenTensor.OFFSETS,
    "offsets": TokenTensor.OFFSETS,
    "lengths": TokenTensor.LENGTHS,
}
# Values with which the runner may fill a shorter request beside a longer one; the mask makes them invisible.
_PAD_VALUE = {TokenTensor.INPUT_IDS: 0, TokenTensor.ATTENTION_MASK: 0, TokenTensor.TOKEN_TYPE_IDS: 0}

# Triton's default file names per platform (core: model_config_utils.cc, SetDefaultModelFilename).
FILE_NAMES = {
    Platform.ONNX: "model.onnx",
    Platform.TENSORRT: "model.plan",
    Platform.PYTORCH: "model.pt",
    Platform.PYTHON: "model.py",
}
BACKENDS = {
    Platform.ONNX: "onnxruntime",
    Platform.TENSORRT: "tensorrt",
    Platform.PYTORCH: "pytorch",
    Platform.PYTHON: "python",
}


def build(pipeline: InferencePipeline, options: Options) -> Graph:
    """The graph of a resource that its schema and rules accept; wrong references stay in it for the checks to find."""
    spec = pipeline.spec
    model_batch = spec.model.max_batch_size or DEFAULT_MAX_BATCH_SIZE
    implementation, file_name = _implementation(spec.model, options)
    padding = _padding(spec.tokenizer, implementation)
    tokens = _token_outputs(spec.tokenizer, spec.model, spec.postprocess)
    text = Tensor(spec.tokenizer.inputs.text, DataType.STRING, (1,))
    tokenizer = _tokenizer(spec.tokenizer, model_batch, padding, tokens, spec)
    model = _model(spec, implementation, file_name, tokenizer, tokens, options)
    steps = [tokenizer, model]
    post = spec.postprocess
    if post.type not in (None, PostprocessType.NONE):
        steps.append(_postprocess(post, text, tokenizer, model, tokens))
    last = steps[-1]
    outputs = tuple(Output(tensor, Reference(last.name, tensor.name)) for tensor in last.outputs)
    smallest = min(step.max_batch_size for step in steps)
    return Graph(
        pipeline=pipeline.name,
        model_name=pipeline.ensemble_name,
        max_batch_size=spec.ensemble.max_batch_size or smallest,
        inputs=(text,),
        outputs=outputs,
        steps=tuple(steps),
        padding=padding,
    )


def _implementation(model: Model, options: Options) -> tuple[Implementation, str]:
    if model.python is not None and model.python.code is not None:
        return Implementation.CODE, FILE_NAMES[Platform.PYTHON]
    if model.python is not None and model.python.runner is Runner.ONNX_RUNTIME:
        return Implementation.ONNX_RUNNER, FILE_NAMES[Platform.ONNX]
    if model.platform is Platform.ONNX and Platform.ONNX.value in options.substitute_runner:
        return Implementation.ONNX_RUNNER, FILE_NAMES[Platform.ONNX]
    return Implementation.BACKEND, FILE_NAMES[model.platform]


def _padding(tokenizer: Tokenizer, implementation: Implementation) -> PaddingChoice:
    """api.md §6: until the ONNX adapter exists, Auto is Ragged for python steps and the runner, else Fixed."""
    wanted = tokenizer.padding or Padding.AUTO
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    if wanted is Padding.BUCKETED:
        buckets = tuple(sorted({*tokenizer.buckets, longest}))
        return PaddingChoice(Padding.BUCKETED, "asked for by tokenizer.padding", buckets)
    if wanted is not Padding.AUTO:
        return PaddingChoice(wanted, "asked for by tokenizer.padding")
    if implementation is Implementation.BACKEND:
        return PaddingChoice(Padding.FIXED, f"Auto: Triton batches only equal shapes for this platform, so every row has {longest} tokens")
    return PaddingChoice(Padding.RAGGED, "Auto: the model step takes requests of different lengths in one batch, so no token is computed for nothing")


def _kind(output: TokenizerOutput) -> TokenTensor | None:
    return output.tensor or USUAL_NAMES.get(output.name.lower())


def _read_by(wanted: ModelInput, tokenizer: Tokenizer) -> Reference:
    """What a model input reads. Without ``from``: the tokenizer's output of that name, else the only one that carries what the name says."""
    if wanted.from_:
        return Reference.parse(wanted.from_)
    declared = [output.name for output in tokenizer.outputs]
    usual = USUAL_NAMES.get(wanted.name.lower())
    same = [output.name for output in tokenizer.outputs if usual is not None and _kind(output) is usual]
    return Reference(TOKENIZER, same[0] if wanted.name not in declared and len(same) == 1 else wanted.name)


def _token_outputs(tokenizer: Tokenizer, model: Model, post: Postprocess) -> dict[str, tuple[TokenTensor | None, DataType]]:
    """Name → (what it carries, element type) of the tokenizer's outputs, in order."""
    wanted: dict[str, DataType] = {}
    for tensor in model.inputs:
        reference = _read_by(tensor, tokenizer)
        if reference.step == TOKENIZER:
            wanted.setdefault(reference.tensor, tensor.data_type)
    result: dict[str, tuple[TokenTensor | None, DataType]] = {}
    for output in tokenizer.outputs:
        result[output.name] = (_kind(output), output.data_type or wanted.get(output.name, DataType.INT64))
    if not tokenizer.outputs:
        if model.inputs:
            for name, data_type in wanted.items():
                result[name] = (USUAL_NAMES.get(name.lower()), data_type)
        else:
            result = {
                "input_ids": (TokenTensor.INPUT_IDS, DataType.INT64),
                "attention_mask": (TokenTensor.ATTENTION_MASK, DataType.INT64),
            }
        for name in (reference.tensor for text in (post.from_, post.mask_from) if text and (reference := Reference.parse(text)).step == TOKENIZER):
            result.setdefault(name, (USUAL_NAMES.get(name.lower()), DataType.INT64))
        needs_mask = post.type is PostprocessType.MEAN_POOLING and post.mask_from is None
        if needs_mask and all(kind is not TokenTensor.ATTENTION_MASK for kind, _ in result.values()):
            result["attention_mask"] = (TokenTensor.ATTENTION_MASK, DataType.INT64)
    return result


def _token_dims(kind: TokenTensor | None, padding: PaddingChoice, longest: int) -> tuple[int, ...]:
    if kind is TokenTensor.LENGTHS:
        return (1,)
    length = longest if padding.chosen is Padding.FIXED else -1
    return (length, 2) if kind is TokenTensor.OFFSETS else (length,)


def _tokenizer(
    tokenizer: Tokenizer,
    model_batch: int,
    padding: PaddingChoice,
    tokens: dict[str, tuple[TokenTensor | None, DataType]],
    spec: Spec,
) -> Step:
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    text = Tensor(tokenizer.inputs.text, DataType.STRING, (1,))
    outputs = tuple(Tensor(name, data_type, _token_dims(kind, padding, longest)) for name, (kind, data_type) in tokens.items())
    parameters = {
        "text": tokenizer.inputs.text,
        "max_length": str(longest),
        "truncation": tokenizer.truncation.value,
        "special_tokens": tokenizer.special_tokens.value,
        "padding": padding.chosen.value,
        "outputs": json.dumps({name: kind.value for name, (kind, _) in tokens.items() if kind}, ensure_ascii=False),
    }
    if padding.buckets:
        parameters["buckets"] = ",".join(map(str, padding.buckets))
    count = tokenizer.instances
    return Step(
        name=TOKENIZER,
        role=Role.TOKENIZER,
        model_name=tokenizer.model_name,
        implementation=Implementation.TOKENIZER,
        platform="",
        backend="python",
        max_batch_size=tokenizer.max_batch_size or model_batch,
        inputs=(Input(text, Reference(PIPELINE, text.name), "spec.tokenizer.inputs.text"),),
        outputs=outputs,
        instances=Instances("KIND_CPU", count.start, count.low, count.high),
        batching=tokenizer.dynamic_batching or DynamicBatching(),
        path="spec.tokenizer",
        parameters=_prefixed(parameters),
        source=tokenizer.source or spec.source,
        source_path="spec.tokenizer.source" if tokenizer.source else "spec.source",
        file_name="tokenizer.json",
    )


def _model(
    spec: Spec,
    implementation: Implementation,
    file_name: str,
    tokenizer: Step,
    tokens: dict[str, tuple[TokenTensor | None, DataType]],
    options: Options,
) -> Step:
    model = spec.model
    python = implementation is not Implementation.BACKEND
    inputs = []
    for index, wanted in enumerate(model.inputs):
        source = _read_by(wanted, spec.tokenizer)
        tensor = Tensor(wanted.name, wanted.data_type, wanted.dims)
        inputs.append(Input(tensor, source, f"spec.model.inputs[{index}]", ragged=python and tensor.variable))
    if not model.inputs:
        for tensor in tokenizer.outputs:
            # Declared as the file has it (any length), also where every row is padded to one length.
            shape = tuple(-1 if axis == 0 and tokens[tensor.name][0] is not TokenTensor.LENGTHS else size for axis, size in enumerate(tensor.dims))
            read = replace(tensor, dims=shape)
            inputs.append(Input(read, Reference(TOKENIZER, tensor.name), f"spec.tokenizer.outputs ({tensor.name})", ragged=python and read.variable))
    substituted = implementation is Implementation.ONNX_RUNNER and model.platform is not Platform.PYTHON
    kind = model.instances.kind or (InstanceKind.CPU if spec.server.gpu.count == 0 else InstanceKind.GPU)
    if substituted:
        kind = InstanceKind.CPU
    parameters = dict(model.parameters)
    if implementation is Implementation.ONNX_RUNNER:
        parameters |= _prefixed({"model_file": file_name, "pad_inputs": json.dumps(_pad_values(inputs, tokens))})
    return Step(
        name=MODEL,
        role=Role.MODEL,
        model_name=model.model_name,
        implementation=implementation,
        platform="" if python else model.platform.value,
        backend="python" if python else BACKENDS[model.platform],
        max_batch_size=model.max_batch_size or DEFAULT_MAX_BATCH_SIZE,
        inputs=tuple(inputs),
        outputs=tuple(Tensor(output.name, output.data_type, output.dims) for output in model.outputs),
        instances=Instances(f"KIND_{kind.value}", *(model.instances.count,) * 3),
        batching=model.dynamic_batching or DynamicBatching(),
        path="spec.model",
        parameters=parameters,
        # Own code brings what it needs; the pipeline's common folder is not forced on it.
        source=model.source if implementation is Implementation.CODE else model.source or spec.source,
        source_path="spec.model.source" if model.source else "spec.source",
        file_name=file_name if implementation is not Implementation.CODE else file_name_of(model.source) if model.source else None,
        code=model.python.code.inline if model.python and model.python.code else None,
    )


def _pad_values(inputs: list[Input], tokens: dict[str, tuple[TokenTensor | None, DataType]]) -> dict[str, int]:
    """Inputs that the runner may pad across requests: only those whose mask hides the padding."""
    kinds = {entry.tensor.name: tokens.get(entry.source.tensor, (None, None))[0] for entry in inputs if entry.source.step == TOKENIZER}
    if TokenTensor.ATTENTION_MASK not in kinds.values():
        return {}
    return {name: _PAD_VALUE[kind] for name, kind in kinds.items() if kind in _PAD_VALUE}


def _postprocess(post: Postprocess, text: Tensor, tokenizer: Step, model: Step, tokens: dict[str, tuple[TokenTensor | None, DataType]]) -> Step:
    assert post.type is not None
    known = {Reference(PIPELINE, text.name): text}
    known |= {Reference(step.name, tensor.name): tensor for step in (tokenizer, model) for tensor in step.outputs}
    source = Reference.parse(post.from_) if post.from_ else Reference(MODEL, model.outputs[0].name)
    read = known.get(source)
    tensor = Tensor(source.tensor, DataType.FP32, (-1,)) if read is None else read
    inputs = [Input(tensor, source, "spec.postprocess.from", ragged=tensor.variable)]
    parameters = {"type": post.type.value, "input": tensor.name}
    if post.type is PostprocessType.MEAN_POOLING:
        usual = next((name for name, (kind, _) in tokens.items() if kind is TokenTensor.ATTENTION_MASK), "attention_mask")
        mask_source = Reference.parse(post.mask_from) if post.mask_from else Reference(TOKENIZER, usual)
        mask = known.get(mask_source) or Tensor(mask_source.tensor, DataType.INT64, (-1,))
        if mask.name == tensor.name:  # of another step: inputs of one step need names of their own
            mask = replace(mask, name=f"{mask.name}_mask")
        # The mask is read as variable: the pooled tensor may come back as long as the longest row only.
        inputs.append(Input(replace(mask, dims=(-1,)), mask_source, "spec.postprocess.maskFrom", ragged=True))
        parameters["mask"] = mask.name
    outputs: list[Tensor] = []
    if post.type in CLASSIFIERS:
        classes = tensor.dims[-1]
        outputs.append(Tensor("PROBABILITIES", DataType.FP32, (classes,)))
        if post.labels:
            top = post.top_k or 1
            outputs += [Tensor("LABEL", DataType.STRING, (top,)), Tensor("SCORE", DataType.FP32, (top,))]
            parameters |= {"labels": json.dumps(list(post.labels), ensure_ascii=False), "top_k": str(top)}
    else:
        outputs.append(Tensor("EMBEDDING", DataType.FP32, (tensor.dims[-1],)))
        parameters["normalize"] = (post.normalize or Switch.ENABLED).value
    return Step(
        name=POSTPROCESS,
        role=Role.POSTPROCESS,
        model_name=post.model_name,
        implementation=Implementation.POSTPROCESS,
        platform="",
        backend="python",
        max_batch_size=model.max_batch_size,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        instances=Instances("KIND_CPU", *(post.instances.count,) * 3),
        batching=post.dynamic_batching or DynamicBatching(),
        path="spec.postprocess",
        parameters=_prefixed(parameters),
    )


def _prefixed(parameters: dict[str, str]) -> dict[str, str]:
    return {RUNTIME_PARAMETER_PREFIX + key: value for key, value in parameters.items()}

"""What follows from a platform.

Backends, file names, kinds, and the tensors that vLLM's own config declares.
"""

from __future__ import annotations

from triton_pipelines.api.steps import Platform
from triton_pipelines.api.tensors import DataType, TokenTensor

from .graph import Tensor

TOKENIZER, MODEL, POSTPROCESS = "tokenizer", "model", "postprocess"
DEFAULT_MAX_LENGTH = 512
DEFAULT_MAX_BATCH_SIZE = 64
VERSION_FOLDER = "1"

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

# Triton's default file names per platform (core: model_config_utils.cc, SetDefaultModelFilename).
# vLLM reads model.json.
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
    Platform.VLLM: "vllm",
}
ENGINE_FILE = "model.json"
# Name that an unnamed custom batching library needs (core: backend_model.cc).
STRATEGY_FILE = "batchstrategy.so"
STRATEGY_PARAMETER = "TRITON_BATCH_STRATEGY_PATH"
ENVIRONMENT_FILE = "environment.tar.gz"
ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"

# What the vLLM backend itself declares (vllm_backend: model.py, auto_complete_config), without what
# newer releases added.
VLLM_INPUTS = (
    Tensor("text_input", DataType.STRING, (1,)),
    Tensor("stream", DataType.BOOL, (1,)),
    Tensor("sampling_parameters", DataType.STRING, (1,)),
    Tensor("exclude_input_in_output", DataType.BOOL, (1,)),
)
VLLM_REQUIRED = "text_input"
VLLM_OUTPUTS = (Tensor("text_output", DataType.STRING, (-1,)),)

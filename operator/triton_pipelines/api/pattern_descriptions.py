"""Descriptions of the values that the patterns of the resource accept, with an example."""

from __future__ import annotations

from .base import (
    DATA_KEY_PATTERN,
    OBJECT_NAME_PATTERN,
    QUANTITY_PATTERN,
    TENSOR_NAME_PATTERN,
    TENSOR_REFERENCE_PATTERN,
    TRITON_NAME_PATTERN,
)
from .batch_strategy import LIBRARY_PATTERN
from .instances import HOST_POLICY_PATTERN, PROFILE_PATTERN
from .observability import OTLP_PATTERN
from .optimization import TABLE_PATTERN
from .python import SIDE_PATH_PATTERN
from .server import ENV_NAME_PATTERN, IMAGE_PATTERN, RELEASE_PATTERN, RESOURCE_PATTERN
from .source import (
    ENDPOINT_PATTERN,
    FILE_NAME_PATTERN,
    PATH_PATTERN,
    SCHEMES,
    SHA256_PATTERN,
    URI_PATTERN,
)
from .steps import BACKEND_PATTERN, STEP_NAME_PATTERN

# Description of a value that matches the pattern, with an example.
PATTERN_DESCRIPTIONS = {
    TRITON_NAME_PATTERN: (
        "a model name: letters, digits and _+=@~-, parts joined by single dots, such as bert-base"
        " or sst2.v3"
    ),
    TENSOR_NAME_PATTERN: "a tensor name: any characters but control characters, such as input_ids",
    TENSOR_REFERENCE_PATTERN: (
        "a tensor: write STEP.OUTPUT (such as model.logits) or pipeline.INPUT"
    ),
    QUANTITY_PATTERN: (
        "a quantity: a number with a unit of Kubernetes, such as 500m, 2, 400Mi or 1.5Gi"
    ),
    OBJECT_NAME_PATTERN: (
        "the name of a Kubernetes object: lower-case letters, digits, '-' and '.', such as"
        " models-reader"
    ),
    DATA_KEY_PATTERN: (
        "a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.', such as ca.crt"
    ),
    URI_PATTERN: (
        f"a source: it starts with {', '.join(f'{scheme}://' for scheme in SCHEMES[:-1])} or"
        f" {SCHEMES[-1]}://, without spaces"
    ),
    STEP_NAME_PATTERN: (
        "a step name: lower-case letters, digits and '-', starting with a letter, such as"
        " image-decoder"
    ),
    BACKEND_PATTERN: (
        "a backend name: the name of its folder in the server image, with lower-case letters,"
        " digits and '_', such as dali or fil"
    ),
    PATH_PATTERN: "a path inside the source: it does not start with '/', such as onnx/model.onnx",
    FILE_NAME_PATTERN: (
        "a file name without folders, such as model_fp16.onnx (path selects a folder or file inside"
        " the source)"
    ),
    SHA256_PATTERN: "a SHA-256: 64 hex digits in lower case, as sha256sum prints them",
    ENDPOINT_PATTERN: (
        "an address: it starts with https:// (or http://), such as https://minio.storage.svc:9000"
    ),
    OTLP_PATTERN: (
        "the address of a collector: it starts with http:// or https:// and has the path, such as"
        " http://collector:4318/v1/traces"
    ),
    ENV_NAME_PATTERN: (
        "the name of a variable: letters, digits, '_', '-' and '.', not starting with a digit,"
        " such as LOG_LEVEL"
    ),
    IMAGE_PATTERN: (
        "an image reference without spaces, such as nvcr.io/nvidia/tritonserver:24.10-py3"
    ),
    RELEASE_PATTERN: (
        "a Triton release: YY.MM as in the image's tag, such as 24.10 (not Triton's own version,"
        " such as 2.51.0)"
    ),
    RESOURCE_PATTERN: (
        "an extended resource: write it with its domain, such as nvidia.com/gpu or"
        " nvidia.com/mig-1g.10gb"
    ),
    SIDE_PATH_PATTERN: (
        "a path below the folder of model.py: letters, digits, '_', '-' and '.', parts joined by"
        " '/', such as data/labels.txt"
    ),
    LIBRARY_PATTERN: (
        "a path below the model's folder: letters, digits, '_', '-', '.' and '/', not starting with"
        " '/', such as 1/libvolume.so"
    ),
    TABLE_PATTERN: (
        "the name of a file next to the model's file: letters, digits, '_', '-' and '.', such as"
        " calibration.flatbuffers"
    ),
    PROFILE_PATTERN: "an optimization profile: its index as text, such as '0'",
    HOST_POLICY_PATTERN: (
        "a host policy: its name in server.args (--host-policy=NAME,…), such as numa0"
    ),
}

"""What is wrong with a value that a pattern of the resource rejects, and what to use instead."""

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
from .step_names import STEP_NAME_PATTERN
from .steps import BACKEND_PATTERN

# Message for a value that does not match the pattern, without the value itself.
PATTERN_DESCRIPTIONS = {
    TRITON_NAME_PATTERN: (
        "is not a valid model name; use letters, digits and _+=@~-, optionally separated by single"
        " dots, for example bert-base or sst2.v3"
    ),
    TENSOR_NAME_PATTERN: "is not a valid tensor name; remove the control characters",
    TENSOR_REFERENCE_PATTERN: (
        "is not a tensor reference; use STEP.OUTPUT (such as model.logits) or pipeline.INPUT"
    ),
    QUANTITY_PATTERN: (
        "is not a valid Kubernetes quantity; use a value such as 500m, 2, 400Mi or 1.5Gi"
    ),
    OBJECT_NAME_PATTERN: (
        "is not a valid Kubernetes object name; use lowercase letters, digits, '-' and '.', for"
        " example models-reader"
    ),
    DATA_KEY_PATTERN: (
        "is not a valid key of a Secret or ConfigMap; use letters, digits, '-', '_' and '.', for"
        " example ca.crt"
    ),
    URI_PATTERN: (
        "is not a valid source URI; it must start with"
        f" {', '.join(f'{scheme}://' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}:// and contain"
        " no spaces"
    ),
    STEP_NAME_PATTERN: (
        "is not a valid step name; use lowercase letters, digits and '-', starting with a letter,"
        " for example image-decoder"
    ),
    BACKEND_PATTERN: (
        "is not a valid backend name; use the name of the backend's directory in the server "
        "image (lowercase letters, digits and '_'), for example dali or fil"
    ),
    PATH_PATTERN: (
        "is not a path inside the source; it must not start with '/', for example onnx/model.onnx"
    ),
    FILE_NAME_PATTERN: (
        "must be a file name without a directory, for example model_fp16.onnx; use path to "
        "select a directory or file in the source"
    ),
    SHA256_PATTERN: "is not a SHA-256 digest; use 64 lowercase hex digits, as printed by sha256sum",
    ENDPOINT_PATTERN: (
        "is not a valid URL; it must start with https:// or http://, for example"
        " https://minio.storage.svc:9000"
    ),
    OTLP_PATTERN: (
        "is not a valid collector URL; it must start with http:// or https:// and include the path,"
        " for example http://collector:4318/v1/traces"
    ),
    ENV_NAME_PATTERN: (
        "is not a valid environment variable name; use letters, digits, '_', '-' and '.', and do"
        " not start with a digit, for example LOG_LEVEL"
    ),
    IMAGE_PATTERN: "is not a valid image reference; remove the spaces",
    RELEASE_PATTERN: (
        "is not a Triton release; use YY.MM as in the image tag, for example 24.10 (not the Triton"
        " server version, such as 2.51.0)"
    ),
    RESOURCE_PATTERN: (
        "is not an extended resource name; include the domain, for example nvidia.com/gpu or"
        " nvidia.com/mig-1g.10gb"
    ),
    SIDE_PATH_PATTERN: (
        "is not a relative path below the directory of model.py; use letters, digits, '_', "
        "'-' and '.' separated by '/', for example data/labels.txt"
    ),
    LIBRARY_PATTERN: (
        "is not a relative path below the model's directory; use letters, digits, '_', '-' "
        "and '.' separated by '/', for example 1/libvolume.so"
    ),
    TABLE_PATTERN: (
        "is not a valid name of a file next to the model file; use letters, digits, '_', '-' and"
        " '.', for example calibration.flatbuffers"
    ),
    PROFILE_PATTERN: "is not a profile index; write the index as a quoted string, for example '0'",
    HOST_POLICY_PATTERN: (
        "is not a host policy name; use the NAME from --host-policy=NAME,… in server.args, for"
        " example numa0"
    ),
}

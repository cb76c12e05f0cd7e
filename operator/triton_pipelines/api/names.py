"""All names of the product: objects, labels, annotations, paths, ports and environment variables.

Labels are those of ``app.kubernetes.io/*`` and of our own group. No other module spells out these
strings.
"""

from __future__ import annotations

import re
from typing import Final

GROUP: Final = "tritonpipelines.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferencePipeline"
PLURAL: Final = "inferencepipelines"
SINGULAR: Final = "inferencepipeline"
SHORT_NAME: Final = "ipl"
CATEGORY: Final = "inference"
APP: Final = "triton-pipelines"

# --- labels and annotations ---
LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PIPELINE: Final = f"{GROUP}/pipeline"
LABEL_REVISION: Final = f"{GROUP}/revision"
MANAGED_BY: Final = APP
LABEL_RUN: Final = f"{GROUP}/tuning-run"
COMPONENT_SERVER: Final = "server"
# Of a tuning run: a pod like the others but without client traffic, and the Job that measures it.
COMPONENT_CANARY: Final = "tuning-canary"
COMPONENT_TUNER: Final = "tuner"
# The Job that runs the loader's checks of a new revision, and its pod.
COMPONENT_PREFLIGHT: Final = "preflight"
# The DaemonSet that pulls a pipeline's images onto nodes before its pods start there.
COMPONENT_PRE_PULL: Final = "pre-pull"
MANAGED_SELECTOR: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
ANNOTATION_PAUSED: Final = f"{GROUP}/paused"
# On a Deployment: the revision that served before the rollout of the one in its template.
ANNOTATION_BEFORE: Final = f"{GROUP}/previous-revision"
# On pods: hash of the TLS certificate that they were created for. A change of it rolls them.
ANNOTATION_CERTIFICATE: Final = f"{GROUP}/certificate"

# --- field managers (one per concern) ---
MANAGER_CHILDREN: Final = "triton-pipelines"
MANAGER_STATUS: Final = "triton-pipelines-status"
MANAGER_LOOK: Final = "triton-pipelines-look"

# --- the tokenizer as a backend of Triton ---
NATIVE_TOKENIZER_BACKEND: Final = "tritonpipe_tokenizer"
# Triton looks for a library of this name, first in a model's version folder.
NATIVE_TOKENIZER_LIBRARY: Final = f"libtriton_{NATIVE_TOKENIZER_BACKEND}.so"

# --- ports of a Triton pod ---
PORT_HTTP: Final = 8000
PORT_GRPC: Final = 8001
PORT_METRICS: Final = 8002

# --- containers, volumes and paths of a Triton pod ---
CONTAINER_SERVER: Final = "triton"
CONTAINER_LOADER: Final = "load"
CONTAINER_TUNER: Final = "tune"
VOLUME_DATA: Final = "tritonpipe"
VOLUME_REVISION: Final = "revision"
VOLUME_LIVE: Final = "live"
VOLUME_SHM: Final = "dshm"
VOLUME_TMP: Final = "tmp"
VOLUME_CACHE: Final = "model-cache"
VOLUME_ENGINES: Final = "engines"
VOLUME_TLS: Final = "tritonpipe-tls"
# The operator's volumes on the node's disk; server.podTemplate may limit their size.
DISK_VOLUMES: Final = (VOLUME_DATA, VOLUME_TMP, VOLUME_ENGINES)
# Name under which a pod's container requests the GPUs of a ResourceClaimTemplate.
CLAIM_GPU: Final = "gpu"
PATH_ROOT: Final = "/tritonpipe"
PATH_MODELS: Final = f"{PATH_ROOT}/models"
PATH_ENGINES: Final = "/tritonpipe-engines"
PATH_CACHE: Final = "/tritonpipe-cache"
# Folder of a shared volume with the engines, one subfolder per pipeline. The loader's own files are
# stored next to it.
FOLDER_ENGINES: Final = "engines"
PATH_CONFIG: Final = "/etc/tritonpipe"
PATH_REVISION: Final = f"{PATH_CONFIG}/revision"
PATH_LIVE: Final = f"{PATH_CONFIG}/live"
PATH_CREDENTIALS: Final = f"{PATH_CONFIG}/credentials"
PATH_CA: Final = f"{PATH_CONFIG}/ca"
PATH_CONFIGMAPS: Final = f"{PATH_CONFIG}/configmaps"
PATH_CLAIMS: Final = f"{PATH_CONFIG}/claims"
PATH_IMAGES: Final = f"{PATH_CONFIG}/images"
PATH_TLS: Final = f"{PATH_CONFIG}/tls"
PATH_TUNING: Final = f"{PATH_CONFIG}/tuning"
PATH_CONTROL: Final = f"{PATH_CONFIG}/control"
PATH_TERMINATION: Final = "/dev/termination-log"

# --- environment ---
# Folders of Python packages for the steps of a local server, which has none of its own.
ENV_SITE: Final = "TRITONPIPE_SITE"
ENV_CONTROL_KEY: Final = "TRITONPIPE_CONTROL_KEY"
# With "1", ONNX Runtime (1.31 on Linux) sends no usage data to mobile.events.data.microsoft.com.
ENV_ORT_TELEMETRY: Final = "ORT_DISABLE_TELEMETRY"
# Threads of NumPy's OpenBLAS, which otherwise starts one per core of the node in every Python step;
# they use CPU time while they wait for work. ONNX Runtime has no OpenBLAS. OMP_NUM_THREADS is not
# set, because PyTorch models take their threads from it.
ENV_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"

# --- ConfigMap and Secret keys ---
KEY_PLAN: Final = "plan.json"
KEY_TEMPLATE: Final = "deployment.json"
KEY_COUNTS: Final = "counts.json"
KEY_RESOLVED: Final = "resolved.json"
KEY_STATE: Final = "state.json"
KEY_SCALING: Final = "scaling.json"
KEY_PODS: Final = "pods.json"
KEY_PADDING: Final = "padding.json"
KEY_ACCEPTED: Final = "accepted.json"
KEY_MEASURED_PADDING: Final = "measured-padding.json"
KEY_CONTROL: Final = "admin-key"
# Keys of a TLS Secret, as cert-manager and Secrets of type kubernetes.io/tls have them.
KEY_CERTIFICATE: Final = "tls.crt"
KEY_PRIVATE: Final = "tls.key"
KEY_AUTHORITIES: Final = "ca.crt"

# HTTP header with the control key; over gRPC, Triton expects it with the prefix below (measured,
# Triton 24.10).
CONTROL_HEADER: Final = "admin-key"
CONTROL_GRPC_METADATA: Final = f"triton-grpc-protocol-{CONTROL_HEADER}"
# Triton's API groups that require the key. model-config and statistics stay open, because clients
# and perf_analyzer read them first.
CONTROL_GROUPS: Final = "model-repository,shared-memory,trace,logging"
# The other groups but health, which plaintext HTTP rejects without the key if gRPC uses TLS.
CLIENT_GROUPS: Final = "metadata,inference,model-config,statistics"

RUNTIME_PARAMETER_PREFIX: Final = "tritonpipe."


REVISION_LENGTH: Final = 10
_REVISION: Final = re.compile(rf"[0-9a-f]{{{REVISION_LENGTH}}}")


def is_revision(text: str) -> bool:
    """Return whether a text has the form of a revision: the beginning of a hash.

    Anyone can write labels, so a value read from a label must be checked.
    """
    return _REVISION.fullmatch(text) is not None


def revision_name(pipeline: str, revision: str) -> str:
    """Return the name of a revision's ConfigMap and Secret (at most 40 + 1 + 10 characters)."""
    return f"{pipeline}-{revision}"


def live_name(pipeline: str) -> str:
    """Return the name of the ConfigMap that outlives pods and revisions.

    It contains desired counts, resolved sources and the controller's state.
    """
    return f"{pipeline}-live"


def headless_service_name(pipeline: str) -> str:
    """Return the name of the Service that resolves to the pods (at most 40 + 9 characters)."""
    return f"{pipeline}-headless"


def tuning_name(pipeline: str, run: str, component: str = COMPONENT_CANARY) -> str:
    """Return the name of a tuning run's objects (at most 40 + 1 + 8 + 6 + 7 characters).

    Args:
        pipeline: Name of the pipeline.
        run: Eight characters of a hash, so that the name differs from that of any pipeline and of
            the previous run's Job.
        component: Component of the tuning run.
    """
    return f"{pipeline}-{run}-tuning" + ("-tuner" if component == COMPONENT_TUNER else "")


def preflight_name(pipeline: str, revision: str) -> str:
    """Return the name of a revision's preflight objects (at most 40 + 1 + 10 + 10 characters)."""
    return f"{revision_name(pipeline, revision)}-{COMPONENT_PREFLIGHT}"


def pre_pull_name(pipeline: str) -> str:
    """Return the name of the DaemonSet that pulls images (at most 40 + 9 characters)."""
    return f"{pipeline}-{COMPONENT_PRE_PULL}"


def selector(pipeline: str) -> dict[str, str]:
    """Return the immutable label selector of a pipeline's pods."""
    return {LABEL_PIPELINE: pipeline, LABEL_COMPONENT: COMPONENT_SERVER}


def labels(pipeline: str) -> dict[str, str]:
    """Return the labels of every child object of a pipeline."""
    return {
        LABEL_NAME: APP,
        LABEL_INSTANCE: pipeline,
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_COMPONENT: COMPONENT_SERVER,
        LABEL_PIPELINE: pipeline,
    }

"""Container images without a registry.

They are built by buildah, kept as archives in the cache and loaded into the node's containerd.
"""

PAUSE_IMAGE = "registry.local/pause:3.10"
OPERATOR_IMAGE = "registry.local/triton-pipelines/operator:dev"
TRITON_IMAGE = "registry.local/triton-pipelines/tritonserver-cpu:24.10"
SAMPLES_IMAGE = "registry.local/triton-pipelines/samples:dev"

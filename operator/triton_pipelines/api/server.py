"""How and where Triton runs: image, GPUs, placement, resources, network."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, LabelKey, ObjectName, Passthrough, Quantity, Switch, Text
from .open_fields import FORM, ITEMS_FORM, OpenForm
from .tensors import AS_SET, ATOMIC, BY_NAME
from .tls import Tls

ENV_NAME_PATTERN = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
RESOURCE_PATTERN = r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$"
IMAGE_PATTERN = r"^[^\s]+$"
# A release of Triton as NVIDIA counts them: year and month.
RELEASE_PATTERN = r"^[0-9]{2}\.[0-9]{2}$"


class ImagePullPolicy(StrEnum):
    """Kubernetes' image pull policies."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class LocalReference(ApiModel):
    """An object in the pipeline's namespace, by name."""

    name: Annotated[ObjectName, Field(description="Name of an object in the pipeline's namespace.")]


class EnvVar(ApiModel):
    """An environment variable of the Triton container."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=ENV_NAME_PATTERN,
            description="Name of the variable.",
        ),
    ]
    value: Annotated[
        Text | None, Field(description="Value of the variable; use valueFrom for secrets.")
    ] = None
    value_from: Annotated[
        Passthrough | None,
        Field(
            description=(
                "A reference as in a Pod: secretKeyRef, configMapKeyRef, fieldRef or"
                " resourceFieldRef."
            ),
            json_schema_extra={FORM: OpenForm.REFERENCE},
        ),
    ] = None


class Gpu(ApiModel):
    """GPUs of one pod."""

    count: Annotated[
        int, Field(ge=0, le=64, description="Number of GPUs per pod. 0 means CPU only.")
    ] = 1
    resource_name: Annotated[
        str,
        Field(
            max_length=253,
            pattern=RESOURCE_PATTERN,
            description="Extended resource that the pods request, such as a MIG slice.",
        ),
    ] = "nvidia.com/gpu"
    products: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=63)], ...],
        Field(
            max_length=32,
            description=(
                "Allowed GPU products, as values of the node label nvidia.com/gpu.product."
            ),
            json_schema_extra=AS_SET,
        ),
    ] = ()
    claim_template: Annotated[
        ObjectName | None,
        Field(
            description=(
                "Name of a ResourceClaimTemplate in the pipeline's namespace that provides the "
                "GPUs through dynamic resource allocation. Replaces count."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel=(
                "!has(self.claimTemplate) || (!has(self.count) || self.count == 1) &&"
                " (!has(self.resourceName) || self.resourceName == 'nvidia.com/gpu')"
            ),
            message=(
                "must not be combined with count and resourceName, because the template defines "
                "both; remove both"
            ),
            holds=lambda g: (
                g.claim_template is None or (g.count == 1 and g.resource_name == "nvidia.com/gpu")
            ),
            field="claimTemplate",
        ),
    )


class ModelCache(ApiModel):
    """A volume that pods share for sources and TensorRT engines."""

    claim_name: Annotated[
        ObjectName,
        Field(
            description=(
                "Name of a PersistentVolumeClaim in the namespace. It must be ReadWriteMany if"
                " pods run on more than one node."
            )
        ),
    ]


class ResourceList(ApiModel):
    """Compute resources of the Triton container; GPUs come from server.gpu."""

    cpu: Annotated[Quantity | None, Field(description="CPU cores, such as 2 or 500m.")] = None
    memory: Annotated[
        Quantity | None, Field(description="Memory. Shared memory counts toward the limit.")
    ] = None


class Resources(ApiModel):
    """Requests and limits; omitted values are computed from instances."""

    requests: Annotated[ResourceList, Field(description="Amount that the scheduler reserves.")] = (
        ResourceList()
    )
    limits: Annotated[
        ResourceList, Field(description="Maximum amount that the container can use.")
    ] = ResourceList()


class ServiceType(StrEnum):
    """Kinds of Service that make sense in front of Triton."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Service(ApiModel):
    """The Service in front of the pods."""

    type: Annotated[ServiceType, Field(description="Kind of Service.")] = ServiceType.CLUSTER_IP
    headless: Annotated[
        Switch,
        Field(
            description=(
                "If Enabled, a second Service, NAME-headless, resolves to the addresses of the "
                "pods, so that clients can balance requests themselves."
            )
        ),
    ] = Switch.DISABLED
    annotations: Annotated[
        dict[LabelKey, Text],
        Field(
            max_length=64,
            description="Annotations of the Service, for example for load balancers.",
        ),
    ] = {}


class NetworkPolicy(ApiModel):
    """Peers that can reach the ports. The control key restricts what they can do."""

    mode: Annotated[Switch, Field(description="If Disabled, no NetworkPolicy is created.")] = (
        Switch.ENABLED
    )
    inference_from: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description=(
                "NetworkPolicy peers that can send inference requests. If empty, only pods in "
                "the namespace can."
            ),
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.SELECTING},
        ),
    ] = ()
    metrics_from: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description=(
                "NetworkPolicy peers that can read metrics. If empty, only pods in the "
                "namespace can."
            ),
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.SELECTING},
        ),
    ] = ()
    egress: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description="NetworkPolicy egress rules of the pods, in addition to DNS. If empty, "
            "egress is not restricted.",
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.EGRESS_RULE},
        ),
    ] = ()


class DisruptionBudget(StrEnum):
    """Whether a PodDisruptionBudget is created."""

    AUTO = "Auto"
    DISABLED = "Disabled"


class ServerSpec(ApiModel):
    """The Triton pods."""

    image: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=512,
            pattern=IMAGE_PATTERN,
            description="Triton image. Default: as configured on the operator.",
        ),
    ] = None
    version: Annotated[
        str | None,
        Field(
            max_length=16,
            pattern=RELEASE_PATTERN,
            description=(
                "Triton release, such as 24.10. It determines which flags and features are "
                "available. Required if the tag of the image does not contain the release. "
                "Default: the release in the tag."
            ),
        ),
    ] = None
    auto_complete: Annotated[
        Switch,
        Field(
            description=(
                "If Enabled, Triton completes model configurations from the model files, which "
                "some backends require. Steps are then not scaled live."
            )
        ),
    ] = Switch.DISABLED
    image_pull_policy: Annotated[ImagePullPolicy | None, Field(description="As in a Pod spec.")] = (
        None
    )
    image_pull_secrets: Annotated[
        tuple[LocalReference, ...],
        Field(
            max_length=16,
            description="As in a Pod spec.",
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    service_account_name: Annotated[
        ObjectName | None,
        Field(
            description=(
                "Service account of the pods, for workload identity. It must be default or an "
                "account that the operator allows. Triton does not get its token."
            )
        ),
    ] = None
    env: Annotated[
        tuple[EnvVar, ...],
        Field(
            max_length=64,
            description="Additional environment variables for Triton.",
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    args: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...],
        Field(
            max_length=64,
            description=(
                "Additional arguments for tritonserver. Arguments that the operator sets "
                "itself are rejected."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()
    gpu: Annotated[Gpu, Field(description="GPUs of each pod.")] = Gpu()
    gpu_memory: Annotated[
        Quantity | None,
        Field(
            description=(
                "Memory that ONNX Runtime can use on each GPU of a pod, such as 8Gi. Each "
                "instance receives an equal share. Default: unlimited."
            )
        ),
    ] = None
    node_selector: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=63)]],
        Field(max_length=32, description="As in a Pod spec."),
    ] = {}
    tolerations: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description=(
                "As in a Pod spec. Tolerations for nvidia.com/gpu and for the GPU "
                "resource name are always added."
            ),
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.TOLERATION},
        ),
    ] = ()
    affinity: Annotated[
        Passthrough | None,
        Field(description="As in a Pod spec.", json_schema_extra={FORM: OpenForm.AFFINITY}),
    ] = None
    topology_spread_constraints: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=16,
            description=(
                "As in a Pod spec. By default, pods are spread over nodes where possible."
            ),
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.SELECTING},
        ),
    ] = ()
    runtime_class_name: Annotated[ObjectName | None, Field(description="As in a Pod spec.")] = None
    priority_class_name: Annotated[ObjectName | None, Field(description="As in a Pod spec.")] = None
    resources: Annotated[
        Resources,
        Field(
            description=(
                "CPU and memory of the Triton container. Default: a base amount plus"
                " resourcesPerInstance times initial (requests) or max (limits)."
            )
        ),
    ] = Resources()
    shared_memory: Annotated[
        Quantity | None,
        Field(
            description="Size of /dev/shm. Default: computed from the number of Python instances."
        ),
    ] = None
    model_cache: Annotated[
        ModelCache | None,
        Field(
            description=(
                "Volume that the pods share for sources and TensorRT engines. By default, each "
                "pod fetches its own copy."
            )
        ),
    ] = None
    pod_template: Annotated[
        Passthrough | None,
        Field(
            description=(
                "A partial PodTemplateSpec that is merged last: containers, "
                "initContainers, volumes and env by name, volumeMounts by mountPath; "
                "tolerations are appended, other lists replaced. Fields that the operator "
                "sets are rejected. By default, fields that give access beyond the pod are "
                "also rejected."
            ),
            json_schema_extra={FORM: OpenForm.POD_TEMPLATE},
        ),
    ] = None
    service: Annotated[Service, Field(description="The Service in front of the pods.")] = Service()
    network_policy: Annotated[
        NetworkPolicy, Field(description="Clients that can reach the ports.")
    ] = NetworkPolicy()
    tls: Annotated[Tls | None, Field(description="TLS for gRPC. Default: no TLS.")] = None
    disruption_budget: Annotated[
        DisruptionBudget,
        Field(
            description=(
                "Whether to create a PodDisruptionBudget. Auto creates none for one replica, "
                "because it would block drains; otherwise, at most one pod can be unavailable."
            )
        ),
    ] = DisruptionBudget.AUTO

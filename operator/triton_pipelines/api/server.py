"""How and where Triton runs: image, GPUs, placement, resources, network."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, LabelKey, ObjectName, Passthrough, Quantity, Switch, Text
from .open_fields import FORM, ITEMS_FORM, OpenForm
from .tensors import ATOMIC
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

    name: Annotated[ObjectName, Field(description="An object in the pipeline's namespace.")]


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

    count: Annotated[int, Field(ge=0, le=64, description="GPUs per pod; 0: CPU only.")] = 1
    resource_name: Annotated[
        str,
        Field(
            max_length=253,
            pattern=RESOURCE_PATTERN,
            description="Extended resource to request, such as a MIG slice.",
        ),
    ] = "nvidia.com/gpu"
    products: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=63)], ...],
        Field(
            max_length=32,
            description="Allowed GPU models: values of the node label nvidia.com/gpu.product.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    claim_template: Annotated[
        ObjectName | None,
        Field(
            description=(
                "Dynamic resource allocation: a ResourceClaimTemplate in the namespace that"
                " provides the GPUs, instead of count."
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
                "replaces count and resourceName, because the template defines both; remove them"
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
                "A PersistentVolumeClaim in the namespace; ReadWriteMany if pods run on more than"
                " one node."
            )
        ),
    ]


class ResourceList(ApiModel):
    """Compute resources of the Triton container; GPUs come from server.gpu."""

    cpu: Annotated[Quantity | None, Field(description="CPU cores, such as 2 or 500m.")] = None
    memory: Annotated[
        Quantity | None, Field(description="Memory; shared memory counts toward the limit.")
    ] = None


class Resources(ApiModel):
    """Requests and limits; omitted values are computed from instances."""

    requests: Annotated[ResourceList, Field(description="What the scheduler reserves.")] = (
        ResourceList()
    )
    limits: Annotated[
        ResourceList, Field(description=("Maximum amount that the container can use."))
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
                "Enabled: a second Service, NAME-headless, resolves to the pods' addresses, so "
                "that clients can balance requests themselves."
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

    mode: Annotated[Switch, Field(description="Disabled: no NetworkPolicy is created.")] = (
        Switch.ENABLED
    )
    inference_from: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description=(
                "NetworkPolicy peers that can send inference requests; empty: pods in the "
                "namespace."
            ),
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.SELECTING},
        ),
    ] = ()
    metrics_from: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description="NetworkPolicy peers that can read metrics; empty: pods in the namespace.",
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.SELECTING},
        ),
    ] = ()
    egress: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description="NetworkPolicy egress rules of the pods, in addition to DNS; empty: "
            "unrestricted.",
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
            description="Triton image. Default: the operator's.",
        ),
    ] = None
    version: Annotated[
        str | None,
        Field(
            max_length=16,
            pattern=RELEASE_PATTERN,
            description=(
                "Triton release such as 24.10. Default: read from the image's tag; "
                "required if the tag does not contain it. It determines which flags and "
                "features are available."
            ),
        ),
    ] = None
    auto_complete: Annotated[
        Switch,
        Field(
            description=(
                "Enabled: Triton completes configs from the model files, which some backends "
                "require. Steps are then not scaled live, because every change would reload the "
                "model."
            )
        ),
    ] = Switch.DISABLED
    image_pull_policy: Annotated[ImagePullPolicy | None, Field(description="As in a Pod.")] = None
    image_pull_secrets: Annotated[
        tuple[LocalReference, ...],
        Field(
            max_length=16,
            description="As in a Pod.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = ()
    service_account_name: Annotated[
        ObjectName | None,
        Field(
            description=(
                "Service account of the pods (for workload identity): default, or one that the"
                " operator allows. Its token is not mounted into Triton."
            )
        ),
    ] = None
    env: Annotated[
        tuple[EnvVar, ...],
        Field(
            max_length=64,
            description="Additional environment variables for Triton.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = ()
    args: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...],
        Field(
            max_length=64,
            description=(
                "Additional arguments for tritonserver. Arguments that the operator sets "
                "are rejected."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()
    gpu: Annotated[Gpu, Field(description="GPUs of one pod.")] = Gpu()
    gpu_memory: Annotated[
        Quantity | None,
        Field(
            description=(
                "Memory that ONNX Runtime can take on each GPU of a pod, such as 8Gi; each instance"
                " gets an equal share. Default: unlimited."
            )
        ),
    ] = None
    node_selector: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=63)]],
        Field(max_length=32, description="As in a Pod."),
    ] = {}
    tolerations: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=32,
            description=(
                "As in a Pod; tolerations for nvidia.com/gpu and the GPU resource name are "
                "always added."
            ),
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.TOLERATION},
        ),
    ] = ()
    affinity: Annotated[
        Passthrough | None,
        Field(description="As in a Pod.", json_schema_extra={FORM: OpenForm.AFFINITY}),
    ] = None
    topology_spread_constraints: Annotated[
        tuple[Passthrough, ...],
        Field(
            max_length=16,
            description="As in a Pod. Default: spread over nodes where possible.",
            json_schema_extra={**ATOMIC, ITEMS_FORM: OpenForm.SELECTING},
        ),
    ] = ()
    runtime_class_name: Annotated[ObjectName | None, Field(description="As in a Pod.")] = None
    priority_class_name: Annotated[ObjectName | None, Field(description="As in a Pod.")] = None
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
                "A volume shared by pods for sources and engines. Default: each pod fetches its"
                " own."
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
        NetworkPolicy, Field(description=("Clients that can reach the ports."))
    ] = NetworkPolicy()
    tls: Annotated[Tls | None, Field(description="TLS for gRPC. Default: none.")] = None
    disruption_budget: Annotated[
        DisruptionBudget,
        Field(
            description=(
                "Auto: none with one replica, because it would block drains; otherwise at most one"
                " pod is unavailable. Unhealthy pods can always be evicted."
            )
        ),
    ] = DisruptionBudget.AUTO

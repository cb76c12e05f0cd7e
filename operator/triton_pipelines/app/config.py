"""Options of the operator, validated once at start-up."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from triton_pipelines.api.wording import validation_message
from triton_pipelines.app.option_values import Names, Pairs, split
from triton_pipelines.autoscaling.metrics.connection import Connection
from triton_pipelines.autoscaling.metrics.connections_file import (
    load_connections,
    single_connection,
)
from triton_pipelines.cluster.lease_timing import LeaseTiming
from triton_pipelines.compile.graph.options import (
    DEFAULT_FAMILY_IMAGES,
    DEFAULT_KEY_SECRET,
    DEFAULT_LOADER_IMAGE,
    DEFAULT_SERVER_IMAGE,
    EVERYONE,
    SUBSTITUTABLE,
    Options,
    PodTemplateMode,
)
from triton_pipelines.compile.render.prometheus_rules import DOCS_URL
from triton_pipelines.loader.uris import SourceMap

ENV_PREFIX: Final = "TRITONPIPE_"
DEFAULT_IMAGE: Final = "default"
# Objects that a pipeline's spec.observability can ask for.
MONITORING: Final = ("podMonitor", "prometheusRule")
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


class OperatorConfigError(ValueError):
    """An option of the operator is invalid; the message names each option and what it accepts."""


class OperatorConfig(BaseModel):
    """Options of ``tritonpipe operator``. Durations are seconds.

    Attributes:
        namespaces: namespaces to reconcile in; none means the whole cluster (needs cluster roles).
        workers: pipelines reconciled at a time.
        resync_seconds: every pipeline is reconciled after about this time (± 10 %), event or not.
        relist_seconds: every watched kind is listed and compared with the caches after about this
            time.
        kubeconfig: kubeconfig outside a cluster; KUBECONFIG by default.
        context: context of the kubeconfig; its current context by default.
        metrics_host: address where Prometheus scrapes ``/metrics``.
        metrics_port: its port; 0 takes a free one.
        metrics_authentication: ``token``: users who may get ``/metrics`` read it with their token.
        metrics_tls_folder: ``tls.crt`` and ``tls.key`` for ``/metrics``; unencrypted without it.
        liveness_host: address where the kubelet queries ``/healthz``; liveness_port: its port.
        operator_namespace: namespace of the operator itself, with its key's Secret.
        operator_key_file: the operator key as mounted (optional Secret volume). Its file name is
            the Secret's data key.
        operator_key_secret: name of that Secret.
        operator_key_wait_seconds: how long to wait for the kubelet to mount an existing Secret.
        images: Triton image per platform family (vllm, tensorrtllm); ``default`` is for all others.
            An omitted family has its default.
        loader_image: image of the init container: the operator's own.
        image_pull_policy: of the images above.
        source_map: rules ``PREFIX=TARGET`` for air-gapped mirrors, as the loader accepts them.
        substitute_runner: platforms that run on the CPU fallback backend instead of Triton's
            backend, for servers without it.
        custom_code: whether pipelines may use custom Python, and custom containers through
            podTemplate.
        pod_template: what pipelines may set in their pods: everything, nothing that reaches beyond
            the pod, or no podTemplate at all.
        service_accounts: service accounts that pipelines may use besides ``default``, unless
            podTemplate is allowed without restriction.
        inference_namespaces: namespaces whose pods may send requests to pipelines without
            ``inferenceFrom``, besides their own; ``*`` for every client.
        metrics_namespaces: the same for reading metrics.
        default_service_account: service account of its namespace in whose name the objects of a
            pipeline are written, unless its spec names one; none means the operator's own account.
        impersonated_service_accounts: further accounts that spec.serviceAccountName may name.
        pod_metadata: keys of labels and annotations that a restricted podTemplate may set besides
            those that are known to be safe; ``*`` stands for any text.
        max_concurrent_rollouts: concurrent rollouts without a spec change (new operator release).
        api_timeout_seconds: time-out of one request to the API server.
        api_max_in_flight: concurrent requests to the API server.
        shutdown_seconds: time for running reconciles at the end; keep it below
            terminationGracePeriodSeconds.
        metrics_connections: a YAML file with named Prometheus connections; without it and
            ``prometheus_url`` pods are read directly.
        prometheus_url: the only connection, ``default``, if it needs nothing but a URL.
        monitoring_labels: labels of the pipelines' PodMonitors and PrometheusRules, for the
            selectors of the Prometheus that is to find them.
        monitoring_auto: for which of podMonitor and prometheusRule Auto creates an object; none if
            something else covers all pipelines.
        docs_url: address of this project's docs folder; links of the alerts in PrometheusRules to
            the runbooks start with it.
        leader_elect: whether to reconcile only while holding the Lease; needed for more than one
            replica.
        leader_elect_lease: name of the Lease, in the operator's namespace.
        leader_elect_lease_duration_seconds: how long the other replicas wait after the leader's
            last renewal.
        leader_elect_renew_deadline_seconds: after this time without a renewal the leader stops.
        leader_elect_retry_seconds: interval of renewals and of attempts to take over.
        log_level: debug, info, warning or error.
        instance: name of the reporter in events: the pod's name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespaces: Names = ()
    workers: int = Field(default=8, ge=1, le=256)
    resync_seconds: float = Field(default=600.0, ge=1)
    relist_seconds: float = Field(default=300.0, ge=1)
    kubeconfig: str | None = None
    context: str | None = None
    metrics_host: str = "0.0.0.0"
    metrics_port: int = Field(default=8080, ge=0, le=65535)
    metrics_authentication: Literal["none", "token"] = "none"
    metrics_tls_folder: Path | None = None
    liveness_host: str = "0.0.0.0"
    liveness_port: int = Field(default=8081, ge=1, le=65535)
    operator_namespace: str = "triton-pipelines"
    operator_key_file: Path = Path("/etc/tritonpipe/operator/key")
    operator_key_secret: str = DEFAULT_KEY_SECRET
    operator_key_wait_seconds: float = Field(default=180.0, ge=0)
    images: Pairs = Field(default_factory=dict, validate_default=True)
    loader_image: str = DEFAULT_LOADER_IMAGE
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    source_map: Names = ()
    substitute_runner: Annotated[frozenset[str], BeforeValidator(split)] = frozenset()
    custom_code: Literal["allow", "forbid"] = "allow"
    pod_template: PodTemplateMode = PodTemplateMode.RESTRICTED
    service_accounts: Names = ()
    inference_namespaces: Names = ()
    metrics_namespaces: Names = ()
    default_service_account: str = ""
    impersonated_service_accounts: Names = ()
    pod_metadata: Names = ()
    max_concurrent_rollouts: int = Field(default=5, ge=1)
    api_timeout_seconds: float = Field(default=30.0, gt=0)
    api_max_in_flight: int = Field(default=32, ge=1)
    shutdown_seconds: float = Field(default=20.0, ge=0)
    metrics_connections: Path | None = None
    prometheus_url: str | None = None
    monitoring_labels: Pairs = Field(default_factory=dict, validate_default=True)
    monitoring_auto: Names = MONITORING
    docs_url: Annotated[str, Field(pattern=r"^https?://[^\s\"\\]+$")] = DOCS_URL
    leader_elect: bool = False
    leader_elect_lease: str = "triton-pipelines-operator"
    leader_elect_lease_duration_seconds: int = Field(default=15, ge=1, le=3600)
    leader_elect_renew_deadline_seconds: float = Field(default=10.0, gt=0)
    leader_elect_retry_seconds: float = Field(default=2.0, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    instance: str = Field(default_factory=socket.gethostname)

    @field_validator("namespaces")
    @classmethod
    def _namespaces_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _DNS_LABEL.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a valid namespace name; list each namespace, because "
                    "wildcards are not supported"
                )
        return tuple(dict.fromkeys(value))

    @field_validator("inference_namespaces", "metrics_namespaces")
    @classmethod
    def _peers_are_namespaces(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name != EVERYONE and not _DNS_LABEL.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a valid namespace name; use a namespace name, or {EVERYONE} "
                    "for all namespaces"
                )
        return tuple(dict.fromkeys(value))

    @field_validator("default_service_account", "impersonated_service_accounts")
    @classmethod
    def _accounts_are_names(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for name in (value,) if isinstance(value, str) else value:
            if name and not _DNS_SUBDOMAIN.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not the name of a service account; list each name, "
                    "because wildcards are not supported"
                )
        return value

    @field_validator("images")
    @classmethod
    def _images_are_of_known_families(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        known = {DEFAULT_IMAGE: DEFAULT_SERVER_IMAGE, **DEFAULT_FAMILY_IMAGES}
        if unknown := sorted(value.keys() - known.keys()):
            raise ValueError(
                f"{', '.join(unknown)}: unknown image family; use one of: {', '.join(known)}"
            )
        return MappingProxyType({**known, **value})

    @field_validator("substitute_runner")
    @classmethod
    def _platforms_can_be_substituted(cls, value: frozenset[str]) -> frozenset[str]:
        if unknown := sorted(value - SUBSTITUTABLE):
            raise ValueError(
                f"the CPU fallback backend does not support {', '.join(unknown)}; use one "
                f"of: {', '.join(sorted(SUBSTITUTABLE))}"
            )
        return value

    @field_validator("source_map")
    @classmethod
    def _source_map_is_valid(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        SourceMap.parse(value)
        return value

    @field_validator("monitoring_auto")
    @classmethod
    def _objects_are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(value) - {*MONITORING, "none"}):
            raise ValueError(
                f"{', '.join(unknown)}: unknown object; use {', '.join(MONITORING)} or none"
            )
        return tuple(one for one in value if one != "none")

    @field_validator("prometheus_url")
    @classmethod
    def _url_is_a_connection(cls, value: str | None) -> str | None:
        if value is not None:
            single_connection(value)
        return value

    @model_validator(mode="after")
    def _one_way_to_metrics(self) -> OperatorConfig:
        if self.metrics_connections is not None and self.prometheus_url is not None:
            raise ValueError(
                "metrics_connections and prometheus_url cannot be combined; set only one of "
                "these options"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_encrypted(self) -> OperatorConfig:
        if self.metrics_authentication == "token" and self.metrics_tls_folder is None:
            raise ValueError("metrics_authentication token requires TLS; set metrics_tls_folder")
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> OperatorConfig:
        if self.metrics_port == self.liveness_port:
            raise ValueError(
                f"metrics_port and liveness_port are both {self.metrics_port}; choose different "
                "ports"
            )
        return self

    @model_validator(mode="after")
    def _lease_outlasts_the_leader(self) -> OperatorConfig:
        _ = self.lease_timing
        return self

    @property
    def lease_timing(self) -> LeaseTiming:
        """Return the durations of the leader election.

        Raises:
            ValueError: they do not fit together.
        """
        return LeaseTiming(
            self.leader_elect_lease_duration_seconds,
            self.leader_elect_renew_deadline_seconds,
            self.leader_elect_retry_seconds,
        )

    @property
    def _impersonated_accounts(self) -> tuple[str, ...]:
        default = (self.default_service_account,) if self.default_service_account else ()
        return tuple(dict.fromkeys((*default, *self.impersonated_service_accounts)))

    @property
    def cluster_wide(self) -> bool:
        """Return whether the operator reconciles in all namespaces."""
        return not self.namespaces

    @property
    def render_options(self) -> Options:
        """Return the options that affect what is rendered."""
        return Options(
            server_image=self.images[DEFAULT_IMAGE],
            loader_image=self.loader_image,
            image_pull_policy=self.image_pull_policy,
            source_map=self.source_map,
            substitute_runner=self.substitute_runner,
            custom_code_allowed=self.custom_code == "allow",
            pod_template=self.pod_template,
            service_accounts=self.service_accounts,
            inference_namespaces=self.inference_namespaces,
            metrics_namespaces=self.metrics_namespaces,
            default_account=self.default_service_account,
            impersonated_accounts=self._impersonated_accounts,
            pod_metadata=self.pod_metadata,
            family_images={
                family: image for family, image in self.images.items() if family != DEFAULT_IMAGE
            },
            operator_namespace=self.operator_namespace,
            operator_key_secret=self.operator_key_secret,
        )

    @property
    def connections(self) -> Mapping[str, Connection]:
        """Return Prometheus connections by name, read from their file; if none, pods are read.

        Raises:
            ConnectionsError: they are invalid; each line names file and field.
        """
        if self.metrics_connections is not None:
            return load_connections(self.metrics_connections)
        return single_connection(self.prometheus_url) if self.prometheus_url is not None else {}

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """Return the namespaces to list one by one; ``(None,)`` for all at once."""
        return self.namespaces or (None,)


def load_config(
    options: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> OperatorConfig:
    """Return the options from the command line and ``TRITONPIPE_<OPTION>`` variables.

    A variable is used if its option is absent (None).

    Lists are comma-separated in variables, mappings are lists of ``NAME=VALUE``.

    Raises:
        OperatorConfigError: names each invalid option with its variable, its value and what it
            accepts.
    """
    given: dict[str, Any] = {}
    for name in OperatorConfig.model_fields:
        variable = environ.get(variable_of(name))
        if variable:
            given[name] = variable
    given.update({name: value for name, value in (options or {}).items() if value is not None})
    try:
        return OperatorConfig.model_validate(given)
    except ValidationError as error:
        raise OperatorConfigError(
            "\n".join(_describe(finding) for finding in error.errors())
        ) from None


def variable_of(option: str) -> str:
    """Return the environment variable of an option (``source_map`` → ``TRITONPIPE_SOURCE_MAP``)."""
    return ENV_PREFIX + option.upper()


def _describe(finding: Any) -> str:
    where = [str(part) for part in finding["loc"]]
    message = validation_message(str(finding["msg"]))
    if not where:
        return message
    option = where[0]
    return f"--{option.replace('_', '-')} ({variable_of(option)}): {message}"

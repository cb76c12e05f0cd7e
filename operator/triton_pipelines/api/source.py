"""Where files come from: one source type for tokenizers, models and folders that hold both."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from .base import ApiModel, DataKey, ObjectName, Rule

SCHEMES = ("hf", "s3", "gs", "az", "https", "oci", "pvc", "configmap")
# Where more than one file lies, so that a folder can be named.
FOLDER_SCHEMES = ("hf", "s3", "gs", "az", "oci", "pvc")
URI_PATTERN = rf"^({'|'.join(SCHEMES)})://[^\s\x00-\x1f\x7f]+$"


class SecretReference(ApiModel):
    """A Secret of the pipeline's namespace; it is mounted into the init container alone, never into Triton."""

    name: Annotated[
        ObjectName,
        Field(
            description="Name of the Secret. Keys: hf `token`; s3 `accessKeyId`, `secretAccessKey`, `sessionToken`; gs `serviceAccountKey`; az `accountName` with `accountKey` or `sasToken`; oci `.dockerconfigjson`, or `username` and `password`; https `token`, or `username` and `password`."
        ),
    ]


class CertificateReference(ApiModel):
    """A ConfigMap of the pipeline's namespace with a CA bundle."""

    name: Annotated[ObjectName, Field(description="Name of the ConfigMap that holds the CA bundle.")]
    key: Annotated[DataKey, Field(description="Key of the PEM bundle in the ConfigMap.")] = "ca.crt"


def _scheme(source: Source) -> str:
    return source.uri.split("://", 1)[0]


class Source(ApiModel):
    """A file or folder, fetched by the init container, checked, and laid out read-only."""

    uri: Annotated[
        str,
        Field(
            min_length=6,
            max_length=1024,
            pattern=URI_PATTERN,
            description="hf://org/name, s3://bucket/key, gs://bucket/key, az://account/container/key, https://host/file, oci://registry/repository, pvc://claim/path or configmap://name/key.",
        ),
    ]
    revision: Annotated[
        str | None,
        Field(
            max_length=128,
            description="Commit, tag or branch (hf), object version (s3, gs, az), tag or digest (oci). Left out: the newest, recorded at the first load and kept for the pipeline's revision.",
        ),
    ] = None
    path: Annotated[
        str | None,
        Field(
            max_length=512,
            pattern=r"^[^/\x00-\x1f][^\x00-\x1f]*$",
            description="File inside the folder or repository that the URI names. Left out: the file's usual name.",
        ),
    ] = None
    file_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=128,
            pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_.+]*$",
            description="Name of the model's file in a folder, where it is not Triton's default for the platform.",
        ),
    ] = None
    sha256: Annotated[
        str | None, Field(pattern=r"^[0-9a-f]{64}$", max_length=64, description="SHA-256 that the file must have, in lower-case hex.")
    ] = None
    endpoint: Annotated[
        str | None,
        Field(max_length=512, pattern=r"^https?://[^\s]+$", description="Address of an S3, GCS or Azure compatible store, or of a model hub mirror."),
    ] = None
    region: Annotated[str | None, Field(max_length=64, description="Region of the bucket.")] = None
    secret_ref: Annotated[SecretReference | None, Field(description="Credentials. Left out: none, or the pod's workload identity.")] = None
    ca_ref: Annotated[CertificateReference | None, Field(description="CA bundle for the source's server, beside the system's.")] = None

    rules = (
        Rule(
            cel="!has(self.region) || self.uri.startsWith('s3://')",
            message="region is only for s3:// sources; remove it",
            holds=lambda s: s.region is None or _scheme(s) == "s3",
            field="region",
        ),
        Rule(
            cel="!has(self.endpoint) || self.uri.matches('^(s3|hf|gs|az)://')",
            message="endpoint is only for s3://, gs://, az:// and hf:// sources; put the host into the uri",
            holds=lambda s: s.endpoint is None or _scheme(s) in ("s3", "hf", "gs", "az"),
            field="endpoint",
        ),
        Rule(
            cel="!self.uri.matches('^(configmap|pvc)://') || !(has(self.secretRef) || has(self.revision) || has(self.caRef))",
            message="configmap:// and pvc:// sources are mounted and take no secretRef, caRef or revision; remove them",
            holds=lambda s: _scheme(s) not in ("configmap", "pvc") or not (s.secret_ref or s.revision or s.ca_ref),
        ),
        Rule(
            cel="!has(self.fileName) || !self.uri.matches('^(configmap|https)://')",
            message="fileName names a file in a folder, and configmap:// and https:// sources are single files; remove it",
            holds=lambda s: s.file_name is None or _scheme(s) in FOLDER_SCHEMES,
            field="fileName",
        ),
        Rule(
            cel="!self.uri.startsWith('configmap://') || self.uri.matches('^configmap://[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[-._a-zA-Z0-9]+$')",
            message="a ConfigMap source is written configmap://NAME/KEY",
            holds=lambda s: _scheme(s) != "configmap" or _matches(r"^configmap://[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[-._a-zA-Z0-9]+$", s.uri),
            field="uri",
        ),
        Rule(
            cel="!self.uri.startsWith('pvc://') || self.uri.matches('^pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/.*)?$') && !self.uri.contains('..')",
            message="a claim source is written pvc://CLAIM/PATH, without '..'",
            holds=lambda s: _scheme(s) != "pvc" or (_matches(r"^pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/.*)?$", s.uri) and ".." not in s.uri),
            field="uri",
        ),
    )


def _matches(pattern: str, value: str) -> bool:
    return re.match(pattern, value) is not None

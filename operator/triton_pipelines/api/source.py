"""Where files come from: one source type for tokenizers, models and folders that hold both."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import Field

from .base import ApiModel, DataKey, FieldRule, ObjectName

# Schemes of a source's URI. The order is part of URI_PATTERN, and thus of the CRD.
SCHEMES = ("hf", "s3", "gs", "az", "https", "oci", "image", "pvc", "configmap")
# Schemes of sources that the pod mounts. The loader fetches the others.
IMAGE_SCHEME = "image"
MOUNTED_SCHEMES = (IMAGE_SCHEME, "pvc", "configmap")
PATH_PATTERN = r"^[^/\x00-\x1f][^\x00-\x1f]*$"
FILE_NAME_PATTERN = r"^[A-Za-z0-9_][-A-Za-z0-9_.+]*$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
ENDPOINT_PATTERN = r"^https?://[^\s]+$"
# Forms of single schemes. Names of repositories, tags and digests follow the OCI distribution
# specification (1.1).
_CONFIGMAP = "^configmap://[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[-._a-zA-Z0-9]+$"
_CLAIM = "^pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/.*)?$"
_AZURE = "^az://[^/]+/[^/]+(/.*)?$"
_TAG = "[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_DIGEST = "sha256:[0-9a-f]{64}"
_REPOSITORY = f"[^/@]+(/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)+(:{_TAG})?"
_OCI = f"^oci://{_REPOSITORY}(@{_DIGEST})?$"
# Location of an image source. The CRD has no rule for it: each rule is repeated for every source.
IMAGE_PATTERN = f"^{_REPOSITORY}@{_DIGEST}$"
# Digits of an image's digest in the names of its volume and mount.
_FOLDER_DIGITS = 16
# Allowed values of `revision` for a registry's source.
OCI_REFERENCE_PATTERN = f"^({_TAG}|{_DIGEST})$"
URI_PATTERN = rf"^({'|'.join(SCHEMES)})://[^\s\x00-\x1f\x7f]+$"


class SecretReference(ApiModel):
    """A Secret in the pipeline's namespace.

    It is mounted only into the init container, never into Triton.
    """

    name: Annotated[
        ObjectName,
        Field(
            description=(
                "Name of the Secret. Keys: hf `token`; s3 `accessKeyId`, `secretAccessKey`,"
                " `sessionToken`; gs `serviceAccountKey`; az `accountName` with `accountKey` or"
                " `sasToken`; oci `.dockerconfigjson`, or `username` and `password`; https"
                " `token`, or `username` and `password`."
            )
        ),
    ]


class CertificateReference(ApiModel):
    """A ConfigMap in the pipeline's namespace with a CA bundle."""

    name: Annotated[ObjectName, Field(description="Name of the ConfigMap with the CA bundle.")]
    key: Annotated[DataKey, Field(description="Key of the PEM bundle in the ConfigMap.")] = "ca.crt"


def image_folder(address: str) -> str | None:
    """Return the name of the folder at which an image is mounted; ``None`` without a digest."""
    digest = address.partition("@sha256:")[2]
    return digest[:_FOLDER_DIGITS] or None


def _scheme(source: SourceSpec) -> str:
    return source.uri.split("://", 1)[0]


class SourceSpec(ApiModel):
    """A file or directory that the init container fetches, checks and stores read-only."""

    uri: Annotated[
        str,
        Field(
            max_length=1024,
            pattern=URI_PATTERN,
            description=(
                "hf://org/name, s3://bucket/key, gs://bucket/key, az://account/container/key,"
                " https://host/file, oci://registry/repository,"
                " image://registry/repository@digest, pvc://claim/path or configmap://name/key."
            ),
        ),
    ]
    revision: Annotated[
        str | None,
        Field(
            max_length=128,
            description=(
                "Commit, tag or branch (hf), object version (s3, gs, az), tag or digest (oci). "
                "Default: the newest version, recorded at the first load and kept for the "
                "pipeline's revision."
            ),
        ),
    ] = None
    path: Annotated[
        str | None,
        Field(
            max_length=512,
            pattern=PATH_PATTERN,
            description=(
                "Path of a file inside the directory or repository that the URI points to. "
                "Default: the standard file name."
            ),
        ),
    ] = None
    sha256: Annotated[
        str | None,
        Field(
            pattern=SHA256_PATTERN,
            max_length=64,
            description="Expected SHA-256 checksum of the file, in lowercase hex.",
        ),
    ] = None
    endpoint: Annotated[
        str | None,
        Field(
            max_length=512,
            pattern=ENDPOINT_PATTERN,
            description=(
                "URL of a store that is compatible with S3, GCS or Azure, of a model hub "
                "mirror, or of a registry that replaces the one in the URI."
            ),
        ),
    ] = None
    region: Annotated[str | None, Field(max_length=64, description="Region of the bucket.")] = None
    secret_ref: Annotated[
        SecretReference | None,
        Field(
            description=(
                "Secret with credentials. By default, the loader uses the pod's workload identity, "
                "if any."
            )
        ),
    ] = None
    ca_ref: Annotated[
        CertificateReference | None,
        Field(description="CA bundle for the source's server, in addition to the system's."),
    ] = None

    rules: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            cel="!has(self.region) || self.uri.startsWith('s3://')",
            message="allowed only with an s3:// source; remove region",
            holds=lambda s: s.region is None or _scheme(s) == "s3",
            field="region",
        ),
        FieldRule(
            cel="!has(self.endpoint) || self.uri.matches('^(s3|hf|gs|az|oci)://')",
            message=(
                "allowed only with s3://, gs://, az://, oci:// and hf://; put the host"
                " into the URI, or remove endpoint"
            ),
            holds=lambda s: s.endpoint is None or _scheme(s) in ("s3", "hf", "gs", "az", "oci"),
            field="endpoint",
        ),
        FieldRule(
            cel=(
                "!self.uri.matches('^(configmap|pvc)://') || !(has(self.secretRef) ||"
                " has(self.revision) || has(self.caRef))"
            ),
            message=(
                "secretRef, caRef and revision are not allowed for a mounted source "
                "(configmap://, pvc://); remove these fields"
            ),
            holds=lambda s: (
                _scheme(s) not in ("configmap", "pvc")
                or not (s.secret_ref or s.revision or s.ca_ref)
            ),
        ),
        FieldRule(
            cel=f"!self.uri.startsWith('configmap:') || self.uri.matches('{_CONFIGMAP}')",
            message="must have the form configmap://NAME/KEY, with a lowercase name",
            holds=lambda s: _scheme(s) != "configmap" or _matches(_CONFIGMAP, s.uri),
            field="uri",
        ),
        FieldRule(
            cel=(
                f"!self.uri.startsWith('pvc:') || self.uri.matches('{_CLAIM}') &&"
                " !self.uri.contains('..')"
            ),
            message="must have the form pvc://CLAIM/PATH, with a lowercase claim name and no '..'",
            holds=lambda s: _scheme(s) != "pvc" or (_matches(_CLAIM, s.uri) and ".." not in s.uri),
            field="uri",
        ),
        FieldRule(
            cel=f"!self.uri.startsWith('az:') || self.uri.matches('{_AZURE}')",
            message="must have the form az://ACCOUNT/CONTAINER/KEY",
            holds=lambda s: _scheme(s) != "az" or _matches(_AZURE, s.uri),
            field="uri",
        ),
        FieldRule(
            cel=f"!self.uri.startsWith('oci:') || self.uri.matches('{_OCI}')",
            message=(
                "must have the form oci://REGISTRY/REPOSITORY:TAG or …@sha256:DIGEST (64 hex"
                " digits), with a lowercase repository"
            ),
            holds=lambda s: _scheme(s) != "oci" or _matches(_OCI, s.uri),
            field="uri",
        ),
    )


class ModelSource(SourceSpec):
    """A source whose main file can have any name: a model, or code with its modules."""

    file_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=128,
            pattern=FILE_NAME_PATTERN,
            description=(
                "Name of the model's file in a directory, if it is not Triton's default for the"
                " platform."
            ),
        ),
    ] = None

    rules: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            cel="!has(self.fileName) || !self.uri.startsWith('configmap://')",
            message=(
                "fileName requires a directory, but configmap:// is a single file; remove fileName"
            ),
            holds=lambda s: s.file_name is None or _scheme(s) != "configmap",
            field="fileName",
        ),
        *SourceSpec.rules,
    )


def _matches(pattern: str, value: str) -> bool:
    return re.match(pattern, value) is not None

"""The schema's rules about addresses and the loader that reads them judge alike."""

import re

import pytest

from triton_pipelines.api.source import OCI_REFERENCE_PATTERN, SourceSpec
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.uris import is_reference, parse_azure, parse_registry

DIGEST = "sha256:" + "0a" * 32
REGISTRY = [
    "oci://ghcr.io/acme/sst2",
    "oci://ghcr.io/acme/sst2:v1.2_rc",
    f"oci://registry:5000/sst2@{DIGEST}",
    f"oci://registry:5000/a/b-c/d__e.f:latest@{DIGEST}",
    f"oci://r/{'a' * 200}:{'t' * 128}",
    "oci://ghcr.io",
    "oci://ghcr.io/",
    "oci:///sst2",
    "oci://ghcr.io/Acme/sst2",
    "oci://ghcr.io/acme//sst2",
    "oci://ghcr.io/acme/sst2:",
    "oci://ghcr.io/acme/sst2:-v1",
    f"oci://ghcr.io/acme/sst2:{'t' * 129}",
    "oci://ghcr.io/acme/sst2@sha256:0a",
    "oci://ghcr.io/acme/sst2@",
    "oci://ghcr.io/acme/_sst2",
]
AZURE = [
    "az://acc/cont",
    "az://acc/cont/",
    "az://acc/cont/a/b.onnx",
    "az://acc",
    "az://acc/",
    "az:///cont/key",
    "az://acc//key",
]


def _kept(uri: str) -> bool:
    return not list(SourceSpec(uri=uri).broken_rules("source"))


def _registry(uri: str) -> bool:
    try:
        parse_registry(uri)
    except SourceError:
        return False
    return True


def _azure(uri: str) -> bool:
    try:
        parse_azure(uri)
    except SourceError:
        return False
    return True


@pytest.mark.parametrize("uri", REGISTRY)
def test_addresses_of_registries(uri: str) -> None:
    assert _kept(uri) is _registry(uri)


@pytest.mark.parametrize("uri", AZURE)
def test_addresses_of_azure(uri: str) -> None:
    assert _kept(uri) is _azure(uri)


def test_the_lists_hold_both_kinds() -> None:
    assert {_kept(uri) for uri in REGISTRY} == {_kept(uri) for uri in AZURE} == {True, False}


@pytest.mark.parametrize(
    "text",
    [
        "v1",
        "latest",
        "1.0",
        DIGEST,
        "a" * 128,
        "a" * 129,
        "-a",
        ".a",
        "sha256:ff",
        "a/b",
        "a:b",
        "",
    ],
)
def test_tags_and_digests(text: str) -> None:
    assert (re.match(OCI_REFERENCE_PATTERN, text) is not None) is is_reference(text)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "hf", "oci"])
def test_an_endpoint_is_for_every_scheme_whose_server_the_loader_can_be_told(scheme: str) -> None:
    assert _kept_with_endpoint(f"{scheme}://one/two")


@pytest.mark.parametrize("uri", ["https://host/a", "pvc://claim/a", "configmap://name/key"])
def test_an_endpoint_is_for_no_other(uri: str) -> None:
    assert not _kept_with_endpoint(uri)


def _kept_with_endpoint(uri: str) -> bool:
    return not list(SourceSpec(uri=uri, endpoint="http://mirror:5000").broken_rules("source"))

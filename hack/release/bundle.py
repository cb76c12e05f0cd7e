"""Write the bundle for the Operator Lifecycle Manager (OLM) from the rendered chart.

OLM creates only some kinds of objects. The others go to ``additional-objects.yaml``, which an
administrator applies.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hack.release import chart, files
from hack.release.errors import ReleaseError
from hack.release.model import NAME, Release
from hack.release.source import CHART

Objects = Sequence[Mapping[str, Any]]

SAMPLE: Final = "manifests/samples/sentiment.yaml"
ICON: Final = "docs/icon.svg"
CHANNEL: Final = "alpha"
ADDITIONAL: Final = "additional-objects.yaml"
OLM_KINDS: Final = frozenset({"ClusterRole", "CustomResourceDefinition", "Service"})
"""Kinds of the chart that OLM creates from files of the bundle."""
IN_CSV: Final = frozenset(
    {"Deployment", "ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding"}
)
"""Kinds of the chart that the ClusterServiceVersion describes."""
_ANNOTATIONS: Final = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": NAME,
    "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
    "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
}
_DESCRIPTION: Final = """\
One `InferencePipeline` becomes a served NVIDIA Triton ensemble of tokenizer, model, postprocess and
further steps. The operator renders the model repository, rolls out changes without losing requests,
and adjusts the number of tokenizer processes to the load.

OLM does not create the admission policies that limit the operator's account, nor the network policy
of the operator. Apply `additional-objects.yaml` of the bundle's archive to get them.
"""


def write(release: Release, package: Path, image_digest: str) -> Path:
    """Return the archive with ``manifests/``, ``metadata/`` and ``bundle.Dockerfile``.

    Args:
        release: the release.
        package: its packaged chart.
        image_digest: digest of its image.

    Raises:
        ReleaseError: the chart does not render to what the bundle needs.
    """
    objects = chart.render(package, [f"image.digest={image_digest}"])
    target = release.folder / f"{NAME}-olm-bundle-{release.version}.tar.gz"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, text in _texts(release, objects, f"{release.image}@{image_digest}").items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        files.write_tar(folder, target, release.epoch)
    return target


def _texts(release: Release, objects: Objects, image: str) -> dict[str, str]:
    labels = "".join(f"LABEL {key}={value}\n" for key, value in _ANNOTATIONS.items())
    csv = cluster_service_version(release, objects, image)
    created = [
        item for item in objects if item["kind"] in OLM_KINDS and not _is_bound(item, objects)
    ]
    others = [item for item in objects if item["kind"] not in OLM_KINDS | IN_CSV]
    return {
        "bundle.Dockerfile": f"FROM scratch\n{labels}COPY manifests /manifests/\n"
        "COPY metadata /metadata/\n",
        "metadata/annotations.yaml": yaml.safe_dump({"annotations": _ANNOTATIONS}, sort_keys=False),
        f"manifests/{NAME}.clusterserviceversion.yaml": yaml.safe_dump(csv, sort_keys=False),
        **{
            f"manifests/{item['metadata']['name']}.{item['kind'].lower()}.yaml": yaml.safe_dump(
                _without_namespace(item), sort_keys=False
            )
            for item in created
        },
        ADDITIONAL: yaml.safe_dump_all(others, sort_keys=False),
    }


def cluster_service_version(release: Release, objects: Objects, image: str) -> dict[str, Any]:
    """Return the ClusterServiceVersion: description, permissions and Deployment of the operator."""
    metadata = yaml.safe_load((release.source / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    sample = yaml.safe_load((release.source / SAMPLE).read_text(encoding="utf-8"))
    deployment = _only(objects, "Deployment")
    crd = _only(objects, "CustomResourceDefinition")
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{NAME}.v{release.version}",
            "namespace": "placeholder",
            "annotations": {
                "alm-examples": json.dumps([sample]),
                "capabilities": metadata["annotations"]["artifacthub.io/operatorCapabilities"],
                "categories": "AI/Machine Learning",
                "containerImage": image,
                "createdAt": release.created,
                "description": metadata["description"],
                "repository": release.home,
                "support": metadata["maintainers"][0]["name"],
            },
        },
        "spec": {
            "displayName": "Triton Pipelines",
            "description": _DESCRIPTION,
            "version": release.version,
            "minKubeVersion": "1.30.0",
            "maturity": CHANNEL,
            "provider": {"name": metadata["maintainers"][0]["name"]},
            "maintainers": [
                {key: item[key] for key in ("name", "email") if key in item}
                for item in metadata["maintainers"]
            ],
            "keywords": metadata["keywords"],
            "links": [{"name": "Documentation", "url": f"{release.home}/docs/index.md"}],
            "icon": [
                {
                    "base64data": base64.b64encode((release.source / ICON).read_bytes()).decode(),
                    "mediatype": "image/svg+xml",
                }
            ],
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {"owned": list(_owned(crd))},
            "relatedImages": [{"name": "operator", "image": image}],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": _permissions(objects, "ClusterRole"),
                    "permissions": _permissions(objects, "Role"),
                    "deployments": [
                        {
                            "name": deployment["metadata"]["name"],
                            "label": deployment["metadata"]["labels"],
                            "spec": deployment["spec"],
                        }
                    ],
                },
            },
        },
    }


def _owned(crd: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for version in crd["spec"]["versions"]:
        yield {
            "name": crd["metadata"]["name"],
            "version": version["name"],
            "kind": crd["spec"]["names"]["kind"],
            "displayName": "Inference pipeline",
            "description": "One Triton ensemble with its Deployment, Service and model repository",
        }


def _permissions(objects: Objects, kind: str) -> list[dict[str, Any]]:
    """Return the rules of the roles that are bound to the operator's account."""
    account = _only(objects, "ServiceAccount")["metadata"]["name"]
    rules = [
        rule
        for item in objects
        if item["kind"] == kind and _is_bound(item, objects)
        for rule in item["rules"]
    ]
    return [{"serviceAccountName": account, "rules": rules}] if rules else []


def _is_bound(role: Mapping[str, Any], objects: Objects) -> bool:
    wanted = (role["kind"], role["metadata"]["name"])
    references = [item["roleRef"] for item in objects if item["kind"].endswith("RoleBinding")]
    return any((reference["kind"], reference["name"]) == wanted for reference in references)


def _only(objects: Objects, kind: str) -> Mapping[str, Any]:
    found = [item for item in objects if item["kind"] == kind]
    if len(found) != 1:
        raise ReleaseError(f"the chart renders {len(found)} objects of kind {kind}, expected 1")
    return found[0]


def _without_namespace(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object for OLM, which chooses the namespace itself."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "namespace"}
    return {**item, "metadata": metadata}

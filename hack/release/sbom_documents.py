"""Write SBOMs from a description on standard input; see ``sbom.py``.

This file runs in the environment of ``requirements/release.txt``, without the rest of the project.
"""

from __future__ import annotations

import json
import sys
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.writer.write_anything import write_file


def cyclonedx(description: dict[str, Any]) -> str:
    """Return the CycloneDX document, validated against its schema."""
    image = Component(
        type=ComponentType.CONTAINER,
        name=description["name"],
        version=description["version"],
        bom_ref=description["image"],
        properties=[Property(name="git:commit", value=description["commit"])],
    )
    libraries = [
        Component(
            type=ComponentType.LIBRARY,
            name=item["name"],
            version=item["version"],
            bom_ref=item["purl"],
            purl=PackageURL.from_string(item["purl"]),
        )
        for item in description["components"]
    ]
    bom = Bom(serial_number=_identity(description), components=libraries)
    bom.metadata.component = image
    bom.metadata.timestamp = _created(description)
    bom.register_dependency(image, libraries)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    if errors := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the CycloneDX document is not valid: {errors}")
    return text + "\n"


def spdx(description: dict[str, Any]) -> Document:
    """Return the SPDX document."""
    image = Package(
        spdx_id="SPDXRef-image",
        name=description["name"],
        version=description["version"],
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        primary_package_purpose=PackagePurpose.CONTAINER,
        comment=f"{description['image']}, Git commit {description['commit']}",
    )
    libraries = [
        Package(
            spdx_id=f"SPDXRef-package-{number}",
            name=item["name"],
            version=item["version"],
            download_location=SpdxNoAssertion(),
            files_analyzed=False,
            external_references=[
                ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", item["purl"])
            ],
        )
        for number, item in enumerate(description["components"])
    ]
    info = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=f"{description['name']}-{description['version']}",
        document_namespace=f"{description['home']}/spdx/{_identity(description)}",
        creators=[Actor(ActorType.TOOL, "triton-pipelines-release")],
        created=_created(description).replace(tzinfo=None),
    )
    relationships = [
        Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, image.spdx_id),
        *(
            Relationship(image.spdx_id, RelationshipType.CONTAINS, library.spdx_id)
            for library in libraries
        ),
    ]
    return Document(info, packages=[image, *libraries], relationships=relationships)


def _identity(description: dict[str, Any]) -> uuid.UUID:
    """Return an identifier that depends only on what is described."""
    return uuid.uuid5(
        uuid.NAMESPACE_URL, json.dumps(description["components"]) + description["image"]
    )


def _created(description: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(description["created"])


def main() -> None:
    """Write both documents."""
    description = json.load(sys.stdin)
    Path(description["cyclonedx"]).write_text(cyclonedx(description), encoding="utf-8")
    write_file(spdx(description), description["spdx"], validate=True)


if __name__ == "__main__":
    main()

"""Parts of a release that need no build."""

from __future__ import annotations

import base64
import json
import os
import tarfile
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

import triton_pipelines
from hack.release import __main__ as command
from hack.release import files, notes, sbom, signing, source
from hack.release.errors import ReleaseError
from hack.release.model import Release

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("0.1.0", "0.1.0"),
        ("1.12.3", "1.12.3"),
        ("0.2.0-rc.1", "0.2.0rc1"),
        ("1.0.0-beta.0", "1.0.0b0"),
    ],
)
def test_versions_have_a_form_for_python_and_one_for_charts(text: str, python: str) -> None:
    assert str(source.parse_version(text)) == python


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3rc1", "1.2.3-rc1", "1.2.3+x", "1.2.3.dev1"]
)
def test_other_versions_are_rejected(text: str) -> None:
    with pytest.raises(ReleaseError, match=r"VERSION=.*: must be MAJOR\.MINOR\.PATCH"):
        source.parse_version(text)


def test_all_files_state_the_same_version() -> None:
    stated = source.stated_versions(ROOT)
    assert set(stated.values()) == {triton_pipelines.__version__}


def test_files_with_another_version_are_named() -> None:
    version = source.parse_version("0.2.0-rc.1")
    source.require_version({"pyproject.toml": "0.2.0rc1", "Chart.yaml": "0.2.0-rc.1"}, version)
    with pytest.raises(ReleaseError, match=r"but Chart\.yaml is 0\.1\.0; set all"):
        source.require_version({"pyproject.toml": "0.2.0rc1", "Chart.yaml": "0.1.0"}, version)


CHANGELOG = (
    "# Changelog\n\n## 0.2.0 (2027-01-01)\n\n### Features\n\n- B\n\n## 0.1.0 (2026-01-01)\n\n- A\n"
)


@pytest.mark.parametrize(
    ("version", "text"),
    [("0.2.0", "### Features\n\n- B"), ("0.1.0", "- A"), ("0.1", ""), ("0.3.0", "")],
)
def test_the_section_of_a_version(version: str, text: str) -> None:
    assert notes.section(CHANGELOG, version) == text


@pytest.fixture
def changelog(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    (tmp_path / "changelog.d").mkdir()
    for name in ("pyproject.toml", "operator"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_notes_contain_fragments_that_the_changelog_lacks(changelog: Path) -> None:
    assert notes.release_notes(changelog, "0.1.0") == "- A"
    (changelog / "changelog.d/+c.feature.md").write_text("C works.\n", encoding="utf-8")
    assert notes.release_notes(changelog, "0.1.0") == "- A\n\n### Features\n\n- C works."


def test_a_version_without_notes_is_rejected(changelog: Path) -> None:
    with pytest.raises(ReleaseError, match=r"CHANGELOG\.md has no section for 0\.3\.0"):
        notes.release_notes(changelog, "0.3.0")


def _key(path: Path, password: bytes | None = None) -> Path:
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    return path


def test_an_envelope_signs_the_type_and_the_payload(tmp_path: Path) -> None:
    key = signing.load_key(_key(tmp_path / "key"), None)
    envelope = signing.envelope(b"payload", key)
    (signature,) = (base64.b64decode(item["sig"]) for item in envelope["signatures"])
    signed = b"DSSEv1 28 application/vnd.in-toto+json 7 payload"
    algorithm = ec.ECDSA(hashes.SHA256())
    key.public_key().verify(signature, signed, algorithm)
    with pytest.raises(InvalidSignature):
        key.public_key().verify(signature, signed + b".", algorithm)
    assert signing.envelope(b"payload", None)["signatures"] == []


def test_keys_that_cannot_sign_are_rejected(tmp_path: Path) -> None:
    encrypted = _key(tmp_path / "encrypted", b"secret")
    assert signing.load_key(encrypted, "secret")
    with pytest.raises(ReleaseError, match="set SIGN_PASSWORD"):
        signing.load_key(encrypted, None)
    with pytest.raises(ReleaseError, match="SIGN_PASSWORD is wrong"):
        signing.load_key(encrypted, "other")
    with pytest.raises(ReleaseError, match="cannot read the key: No such file"):
        signing.load_key(tmp_path / "none", None)
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "other").write_bytes(other.private_bytes(serialization.Encoding.PEM, *form))
    with pytest.raises(ReleaseError, match=r"must be of the curve P-256"):
        signing.load_key(tmp_path / "other", None)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_equal_files_make_equal_archives(tmp_path: Path, name: str) -> None:
    made = []
    for number, mode in enumerate((0o600, 0o644)):
        folder = tmp_path / f"{number}"
        (folder / "sub").mkdir(parents=True)
        for file in ("sub/b", "a") if number else ("a", "sub/b"):
            (folder / file).write_text(file, encoding="utf-8")
            (folder / file).chmod(mode)
            os.utime(folder / file, (number, number))
        files.write_tar(folder, tmp_path / name, 1700000000)
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / name) as archive:
        assert archive.getnames() == ["a", "sub", "sub/b"]
        assert {(entry.mtime, entry.uid) for entry in archive} == {(1700000000, 0)}


def test_components_of_both_lock_files() -> None:
    found = {item["purl"].partition("@")[0] for item in sbom.components(ROOT)}
    assert {"pkg:pypi/kopf", "pkg:pypi/kubernetes", "pkg:cargo/tokenizers"} <= found
    assert not any("triton" in purl and "cargo" in purl for purl in found)


def test_without_a_key_a_release_says_so(tmp_path: Path) -> None:
    release = Release(
        "0.2.0-rc.1", "c" * 40, 1700000000, ROOT, tmp_path, "r.example.com/a/operator", "h", "base"
    )
    (tmp_path / "file").write_text("x", encoding="utf-8")
    command.seal(release, None)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"file", "provenance.intoto.json", "SHA256SUMS", "UNSIGNED"}
    envelope = json.loads((tmp_path / "provenance.intoto.json").read_text(encoding="utf-8"))
    assert envelope["signatures"] == []
    commands = command.push_commands(release)
    assert any("triton_pipelines-0.2.0rc1-py3-none-any.whl" in line for line in commands)
    assert any(line.startswith("helm push") and line.endswith("/a/charts") for line in commands)


def test_the_base_image_is_that_of_the_dockerfile() -> None:
    name = command.BASE_IMAGE.rpartition("/")[2]
    assert f"ARG BASE_IMAGE={name}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")

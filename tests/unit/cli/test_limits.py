"""Files that are too deep or too large get a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.messages import Messages
from tests.unit.cli.conftest import Run
from triton_pipelines.cli import documents

HEAD = """\
apiVersion: tritonpipelines.io/v1alpha1
kind: InferencePipeline
metadata: {name: deep}
spec:
  server:
    podTemplate: """


@pytest.mark.parametrize("command", ["validate", "render"])
@pytest.mark.parametrize("depth", [100, 500, 1_000, 5_000, 9_990])
def test_a_deep_file_gets_a_message(
    tritonpipe: Run, tmp_path: Path, command: str, depth: int, messages: Messages
) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(HEAD + "{a: " * depth + "1" + "}" * depth + "\n", encoding="utf-8")
    ended = tritonpipe(command, str(file))
    assert ended.code == 2
    assert "deep.yaml:6:" in ended.out + ended.err
    messages.check(ended.out + ended.err)


@pytest.mark.parametrize("command", ["validate", "render"])
def test_a_deep_field_names_it(tritonpipe: Run, tmp_path: Path, command: str) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(HEAD + "{a: " * 30 + "1" + "}" * 30 + "\n", encoding="utf-8")
    ended = tritonpipe(command, str(file))
    assert ended.code == 1
    assert "spec.server.podTemplate.a.a" in ended.out + ended.err


def test_aliases_that_multiply_get_a_message(
    tritonpipe: Run, tmp_path: Path, messages: Messages
) -> None:
    lines = ["a0: &a0 [1, 2]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    file = tmp_path / "aliases.yaml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ended = tritonpipe("validate", str(file))
    assert ended.code == 2
    messages.check(ended.out + ended.err)


def test_a_large_file_gets_a_message(
    tritonpipe: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 2**20)
    file = tmp_path / "large.yaml"
    file.write_text("# " + "x" * 2**20, encoding="utf-8")
    ended = tritonpipe("validate", str(file))
    assert ended.code == 2
    messages.check(ended.out + ended.err)

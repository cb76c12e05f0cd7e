"""Test `validate` and `render` with good files and every kind of invalid file or option."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import builders, libyaml
from tests.support.messages import Messages
from tests.unit.cli.conftest import Run
from triton_pipelines.api.crd import stored
from triton_pipelines.cli.render import KEY_PLACEHOLDER
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.render.objects import PLACEHOLDER_UID
from triton_pipelines.controllers.pipeline.planner import Context, plan
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

SAMPLES = sorted((Path(__file__).parents[3] / "manifests" / "samples").glob("*.yaml"))
SENTIMENT = next(path for path in SAMPLES if path.stem == "sentiment")
OWN_CODE = next(path for path in SAMPLES if path.stem == "custom-python")
QUEUE = {"dynamicBatching": {"queuePolicy": {"maxQueueSize": 9}}}
UID = "6f1e8b4c-0000-4000-8000-123456789abc"


def written(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_valid(tritonpipe: Run, path: Path) -> None:
    ended = tritonpipe("validate", str(path))
    assert ended.code == 0
    assert f"({path.stem}): valid" in ended.out
    assert ": error:" not in ended.out


ADAPTED = (
    "the ONNX file is adapted when it is loaded, so that requests of different lengths"
    " share batches without padding"
)


def test_validate_says_which_padding_was_chosen_and_why(tritonpipe: Run, tmp_path: Path) -> None:
    document = builders.document(
        tokenizer={"source": {"revision": "1"}}, model={"source": {"revision": "1"}}
    )
    label, file = f"{tmp_path / 'file.yaml'} (sentiment)", tmp_path / "file.yaml"
    ended = tritonpipe(
        "validate",
        "--strict",
        written(file, json.dumps(builders.merge(document, {"spec": {"tokenizer": QUEUE}}))),
    )
    assert ended.code == 0
    assert ended.out == f"{label}: padding Ragged (Auto: {ADAPTED})\n{label}: valid\n"
    substituted = written(tmp_path / "operator.yaml", "substitute_runner: [onnxruntime_onnx]")
    assert (
        ": padding Ragged (Auto: requests of different lengths can"
        in tritonpipe("validate", str(file), "--operator-config", substituted).out
    )


@pytest.mark.parametrize(
    "changes",
    [{"tokenizer": {"padding": "Fixed"}}, {"model": {"outputs": None}}],
    ids=["named by the resource", "not valid"],
)
def test_padding_is_not_told_where_nothing_was_chosen(
    tritonpipe: Run, changes: dict[str, Any]
) -> None:
    ended = tritonpipe("validate", "-", text=yaml.safe_dump(builders.document(**changes)).encode())
    assert "padding" not in ended.out


def test_warnings_count_when_strict(tritonpipe: Run) -> None:
    text = yaml.safe_dump(builders.document(slo={"p99Milliseconds": 5})).encode()
    ended = tritonpipe("validate", "-", text=text)
    assert ": warning: spec.slo.networkAndQueueBudgetMilliseconds: " in ended.out
    assert ended.code == 0
    assert tritonpipe("validate", "--strict", "-", text=text).code == 1


def test_sources_that_are_not_pinned_are_named_without_a_warning(tritonpipe: Run) -> None:
    ended = tritonpipe("validate", "--strict", str(SENTIMENT))
    assert "not pinned: spec.tokenizer.source and spec.model.source (each" in ended.out
    assert ended.code == 0


@pytest.mark.parametrize("bare", ["Y", "n"])
def test_a_bare_letter_is_what_kubectl_takes_it_for(tritonpipe: Run, bare: str) -> None:
    """Reject a bare letter that kubectl reads as a Boolean: a tensor named Y needs quotes.

    The API server would reject the resource.
    """
    text = yaml.safe_dump(builders.document()).replace("name: logits", f"name: {bare}")
    assert f"name: {bare}\n" in text
    ended = tritonpipe("validate", "-", text=text.encode())
    assert ended.code == 1
    assert "error: spec.model.outputs[0].name: " in ended.out
    assert (
        tritonpipe(
            "validate", "-", text=text.replace(f"name: {bare}\n", f"name: '{bare}'\n").encode()
        ).code
        == 0
    )


def test_manifests_quote_what_kubectl_would_not_take_for_text(
    tritonpipe: Run, tmp_path: Path
) -> None:
    document = builders.document(
        server={"env": [{"name": "FLAG", "value": "y"}, {"name": "CODE", "value": "1e3"}]}
    )
    ended = tritonpipe(
        "render", written(tmp_path / "file.yaml", json.dumps(document)), "--manifests"
    )
    assert ended.code == 0
    assert 'value: "y"\n' in ended.out
    assert 'value: "1e3"\n' in ended.out


def test_all_findings_at_once_from_standard_input(tritonpipe: Run) -> None:
    document = builders.document(
        model={"platfrom": "x", "maxBatchSize": -1}, postprocess={"topK": 3}
    )
    ended = tritonpipe("validate", "-", text=yaml.safe_dump(document).encode())
    assert ended.code == 1
    assert "standard input (sentiment): error: spec.model.platfrom: unknown field" in ended.out
    assert "spec.model.maxBatchSize: must be at least 0" in ended.out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [1", "YAML"),
        (
            "a: {b: 1\nc: 2\n",
            "YAML",
        ),
        (
            "a:\n\tb: 1\n",
            "YAML",
        ),
        (
            "a:\n    b: 1\n   c: 2\n",
            "indentation",
        ),
        ("a: *x", "YAML"),
        ("kind: A\nkind: B", "'kind'"),
        (b"\xff\xfe", "UTF-8"),
        ("a: \x00", "YAML"),
        (
            "",
            "tritonpipelines.io/v1alpha1",
        ),
        (
            "- a\n- b",
            "tritonpipelines.io/v1alpha1",
        ),
        ("just text", "mapping"),
        (
            "kind: Deployment\n---\nkind: Service\n---\nkind: Service",
            "Deployment and Service",
        ),
        (
            "kind: InferencePipelines",
            "InferencePipelines",
        ),
        ("metadata: {name: a}", "InferencePipeline"),
        ("a: &x [*x]", "alias"),
        ("2020-01-01: x", "put the key in quotes"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "render", "serve", "infer"])
def test_files_that_are_no_resource(
    tritonpipe: Run,
    tmp_path: Path,
    command: str,
    content: str | bytes,
    said: str,
    messages: Messages,
) -> None:
    file = written(tmp_path / "file.yaml", content)
    ended = tritonpipe(command, file, *(["text"] if command == "infer" else []))
    assert ended.code == 2
    assert file in ended.err
    assert said in ended.err
    messages.check(ended.err)


@pytest.mark.parametrize(
    ("namespaces", "code"), [((None, None), 1), (("a", "a"), 1), (("a", "b"), 0), (("a", None), 0)]
)
def test_a_name_stands_once_in_a_file(
    tritonpipe: Run, namespaces: tuple[str | None, ...], code: int
) -> None:
    """Reject a second resource of the same name: kubectl would apply one over the other."""
    documents = [builders.document() for _ in namespaces]
    for document, namespace in zip(documents, namespaces, strict=True):
        document["metadata"] = {"name": "sentiment"} | (
            {} if namespace is None else {"namespace": namespace}
        )
    ended = tritonpipe("validate", "-", text=yaml.safe_dump_all(documents).encode())
    reported = "standard input (sentiment): error: metadata.name: an earlier document"
    assert (ended.code, ended.out.count(reported)) == (code, code)
    assert ended.out.count("valid") == 2 - code, "who is told to rename one has no valid file"


def test_documents_without_a_name_have_no_name_twice(tritonpipe: Run) -> None:
    documents = [builders.document() for _ in range(2)]
    for document in documents:
        document["metadata"] = {}
    ended = tritonpipe("validate", "-", text=yaml.safe_dump_all(documents).encode())
    assert ended.code == 1
    assert "earlier document" not in ended.out
    assert ended.out.count("error: metadata.name") == 2


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b""])
def test_files_of_other_editors(tritonpipe: Run, start: bytes) -> None:
    """A byte order mark, and lines that end as on Windows."""
    text = yaml.safe_dump(builders.document()).replace("\n", "\r\n").encode()
    assert tritonpipe("validate", "-", text=start + text).code == 0


def test_every_file_is_validated_even_if_one_cannot_be_read(
    tritonpipe: Run, tmp_path: Path, messages: Messages
) -> None:
    ended = tritonpipe("validate", str(tmp_path / "none.yaml"), str(tmp_path), str(SENTIMENT))
    assert ended.code == 2
    assert "none.yaml" in ended.err
    messages.check(ended.err)
    assert "(sentiment): valid" in ended.out


def test_lists_as_kubectl_prints_them(tritonpipe: Run, tmp_path: Path, messages: Messages) -> None:
    items = [libyaml.load(path.read_text()) for path in SAMPLES]
    file = written(
        tmp_path / "list.yaml", yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    )
    ended = tritonpipe("validate", file)
    assert ended.code == 0
    assert ended.out.count(": valid") == len(SAMPLES)
    ended = tritonpipe("render", file)
    assert ended.code == 2
    assert str(len(SAMPLES)) in ended.err
    messages.check(ended.err)


def rendered(tritonpipe: Run, *arguments: str) -> list[dict[str, Any]]:
    ended = tritonpipe("render", "--manifests", *arguments)
    assert ended.code == 0, ended.err
    return list(libyaml.load_all(ended.out))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_manifests_are_what_the_operator_applies(tritonpipe: Run, path: Path) -> None:
    """But for the owner's UID and the control key, byte for byte and in the same order."""
    document = libyaml.load(path.read_text())
    document["metadata"] |= {"namespace": "default", "uid": UID, "generation": 1}
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    # As an API server stores it. The placeholder as key, because a hash of the key stands in the
    # live ConfigMap.
    applied = plan(
        Snapshot(stored(document)), Context(Options(), lambda _uid, _revision: KEY_PLACEHOLDER), now
    ).apply
    text = json.dumps(rendered(tritonpipe, str(path)), indent=1)
    assert text.replace(PLACEHOLDER_UID, UID) == json.dumps(applied, indent=1)


def test_operator_config_is_the_operators_options(tritonpipe: Run, tmp_path: Path) -> None:
    options = {
        "images": {"default": "registry.example/triton:24.10-py3"},
        "loader_image": "registry.example/operator:1",
        "source_map": ["hf://=https://mirror.example/"],
        "substitute_runner": ["onnxruntime_onnx"],
        "operator_namespace": "platform",
        "workers": 3,
    }
    config = written(tmp_path / "operator.yaml", yaml.safe_dump(options))
    document = libyaml.load(SENTIMENT.read_text())
    document["spec"]["server"] = {
        "networkPolicy": {"inferenceFrom": [{"podSelector": {}}]}
    }  # where the operator's namespace shows
    file = written(tmp_path / "file.yaml", yaml.safe_dump(document))
    by_file = rendered(tritonpipe, file, "--operator-config", config)
    flags = [
        *(
            "--server-image",
            "registry.example/triton:24.10-py3",
            "--loader-image",
            "registry.example/operator:1",
        ),
        *(
            "--source-map",
            "hf://=https://mirror.example/",
            "--substitute-runner",
            "onnxruntime_onnx",
            "--operator-namespace",
            "platform",
        ),
    ]
    assert by_file == rendered(tritonpipe, file, *flags)
    text = json.dumps(by_file)
    for value in (
        "registry.example/triton:24.10-py3",
        "registry.example/operator:1",
        "https://mirror.example/",
        '"platform"',
        "KIND_CPU",
    ):
        assert value in text
    over = next(
        item
        for item in rendered(
            tritonpipe, file, "--operator-config", config, "--loader-image", "mine:2"
        )
        if item["kind"] == "Deployment"
    )
    assert over["spec"]["template"]["spec"]["initContainers"][0]["image"] == "mine:2"


def test_the_environment_changes_nothing(tritonpipe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tritonpipe("render", "--manifests", str(SENTIMENT)).out
    monkeypatch.setenv("TRITONPIPE_SUBSTITUTE_RUNNER", "onnxruntime_onnx")
    assert tritonpipe("render", "--manifests", str(SENTIMENT)).out == before


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("nonsense: 1", "nonsense"),
        ("source_map: [x]", "PREFIX"),
        ("custom_code: perhaps", "custom"),
        ("[1, 2]", "mapping"),
        ("a: [", "YAML"),
    ],
)
def test_wrong_operator_config(
    tritonpipe: Run, tmp_path: Path, config: str, said: str, messages: Messages
) -> None:
    file = written(tmp_path / "operator.yaml", config)
    for command in ("render", "validate"):
        ended = tritonpipe(command, str(SENTIMENT), "--operator-config", file)
        assert ended.code == 2
        assert file in ended.err
        assert said in ended.err
        messages.check(ended.err)


def test_own_code_is_an_error_where_the_operator_forbids_it(
    tritonpipe: Run, tmp_path: Path
) -> None:
    config = written(tmp_path / "operator.yaml", "custom_code: forbid")
    ended = tritonpipe("validate", str(OWN_CODE), "--operator-config", config)
    assert ended.code == 1
    assert "spec.model.python.code: this operator forbids custom code" in ended.out


def test_repository_holds_what_is_printed(tritonpipe: Run, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    ended = tritonpipe("render", str(SENTIMENT), "--repository", str(folder))
    assert ended.code == 0
    assert ended.out == ""
    assert (folder / "sentiment" / "1").is_dir()
    printed = tritonpipe("render", str(SENTIMENT)).out
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            assert f"# {path.relative_to(folder)}\n{path.read_text()}" in printed


def test_what_sources_bring_is_told(tritonpipe: Run, tmp_path: Path, messages: Messages) -> None:
    post = {
        "type": "Python",
        "labels": None,
        "inputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}],
        "outputs": [{"name": "O", "dataType": "FP32", "dims": [2]}],
        "python": {
            "code": {"configMapKeyRef": {"name": "answers", "key": "code.py"}},
            "files": [{"source": {"uri": "s3://b/words/"}}],
        },
    }
    changes: dict[str, Any] = {
        "model": {"source": {"uri": "https://host/a/model.onnx?signature=abc"}},
        "postprocess": post,
    }
    file = written(tmp_path / "file.yaml", json.dumps(builders.document(**changes)))
    said = (
        "not rendered, because these files come from sources:\n"
        "  tokenizer/1/tokenizer.json from hf://org/sentiment\n"
        "  model/1/model.onnx from https://host/a/model.onnx\n"
        "  postprocess/1/model.py from configmap://answers/code.py\n"
        "  postprocess/1/ from s3://b/words/\n"
    )
    printed = tritonpipe("render", file)
    assert str(ADAPTED) in printed.err
    messages.check(printed.err)
    folder = tmp_path / "models"
    assert tritonpipe("render", file, "--repository", str(folder)).err.endswith(
        f"into {folder}\n{said}"
    )
    assert "not rendered" not in tritonpipe("render", file, "--manifests").err


def test_repository_that_cannot_be_written(tritonpipe: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    ended = tritonpipe("render", str(SENTIMENT), "--repository", str(file / "below"))
    assert ended.code == 2
    assert "--repository" in ended.err


def test_render_of_what_is_not_valid(tritonpipe: Run, tmp_path: Path, messages: Messages) -> None:
    file = written(
        tmp_path / "file.yaml", yaml.safe_dump(builders.document(model={"outputs": None}))
    )
    ended = tritonpipe("render", file)
    assert ended.code == 1
    assert "spec.model.outputs" in ended.err
    messages.check(ended.err)
    assert ended.out == ""

"""Load models as version folders, whole folders and side files.

They come from claims and a hub, and the tests follow them to the repository that Triton reads.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.integration.loader.conftest import Pod
from tests.integration.loader.test_folders import check, graph
from tests.support import builders
from tests.support.hub import HubServer
from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadReason,
    PlanCheck,
    PlanFetch,
    PlanFile,
    PlanVersions,
)
from triton_pipelines.compile.render.model_config import parse

pytestmark = pytest.mark.integration


def model(uri: str = "pvc://models/bert", **rest: object) -> PlanFetch:
    defaults: dict[str, object] = {
        "step": "model",
        "uri": uri,
        "target": "bert",
        "kind": FetchKind.MODEL,
        "file": "model.onnx",
    }
    return PlanFetch(**{**defaults, **rest})  # type: ignore[arg-type]


def checked(**rest: object) -> PlanCheck:
    return check().model_copy(update={"path": None, "model": "bert", "file": "model.onnx", **rest})


@pytest.fixture
def claim(pod: Pod) -> Path:
    """The folder bert of a mounted claim."""
    made = pod.options.claims / "models" / "bert"
    made.mkdir(parents=True)
    return made


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}")


def test_the_newest_version_is_served_and_each_that_exists_is_checked(
    pod: Pod, claim: Path
) -> None:
    for version in (1, 2, 10):
        (claim / str(version)).mkdir()
        graph(claim / str(version) / "net.onnx", external=True)
    write(claim, "config.pbtxt", "10/config.pbtxt")
    pod.plan(model(source_file="net.onnx"), checks=[checked()])
    code, report = pod.load()
    assert code == 0, pod.output
    assert pod.tree() == ["bert/10/model.onnx", "bert/10/weights.bin"]
    assert report.sources[0].resolved_revision == "versions=10"
    lines = "".join(
        f"{hashlib.sha256((claim / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("10/net.onnx", "10/weights.bin")
    )
    assert report.sources[0].sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert [item.reason for item in report.findings] == [LoadReason.FILES_IGNORED]
    assert "pvc://models/bert (version 10) match" in pod.output


def test_a_pod_that_comes_later_takes_the_versions_of_the_first(pod: Pod, claim: Path) -> None:
    write(claim, "1/model.onnx", "2/model.onnx")
    pod.plan(model(versions=PlanVersions(latest=2)))
    assert pod.load()[0] == 0, pod.output
    pod.recorded()
    write(claim, "3/model.onnx", "4/model.onnx")
    pod.another()
    code, report = pod.load()
    assert code == 0, pod.output
    assert pod.tree() == ["bert/1/model.onnx", "bert/2/model.onnx"]
    assert report.sources[0].resolved_revision == "versions=1,2"
    shutil.rmtree(claim / "1")
    pod.another()
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED)
    assert (
        "version 1, which this pipeline revision was first loaded with, no longer exists"
        in report.findings[0].message
    )
    write(claim, "1/model.onnx")
    (claim / "2/model.onnx").write_text("overwritten")
    pod.another()
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED)


def test_one_version_that_does_not_fit_is_named(pod: Pod, claim: Path) -> None:
    for version, classes in ((1, 2), (2, 3)):
        (claim / str(version)).mkdir()
        graph(claim / str(version) / "model.onnx", classes=classes)
    pod.plan(model(versions=PlanVersions(all=True)), checks=[checked()])
    code, report = pod.load()
    assert (code, [item.reason for item in report.findings]) == (2, [LoadReason.MODEL_MISMATCH])
    assert report.findings[0].message.startswith(
        "pvc://models/bert (version 2) does not match spec.model"
    )


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (
            model(pinned=3),
            "the resource requests version 3, but the source has only versions 1 and 2; publish",
        ),
        (
            model("pvc://models/bert/1", versions=PlanVersions(all=True)),
            "requests multiple versions, but the source has only version 1, because it is a "
            "directory without",
        ),
        (
            model("pvc://models/bert/1/model.onnx", pinned=2),
            "the source has only version 1, because it is the single file model.onnx",
        ),
        (model(file="model.plan"), "has no file 2/model.plan; 2/ contains model.onnx"),
    ],
)
def test_versions_that_the_source_does_not_have(
    pod: Pod, claim: Path, item: PlanFetch, says: str
) -> None:
    write(claim, "1/model.onnx", "2/model.onnx")
    pod.plan(item.model_copy(update={"field": "spec.model.source"}))
    code, report = pod.load()
    assert (code, report.findings[0].field) == (2, "spec.model.source")
    assert says in report.findings[0].message
    assert report.findings[0].message.startswith("spec.model.source pvc://models/bert")
    assert pod.tree() == []


def test_a_runner_is_laid_beside_every_version_and_side_files_too(pod: Pod, claim: Path) -> None:
    (pod.options.revision / "m").write_text("# runner")
    write(claim, "3/model.onnx", "5/model.onnx")
    write(pod.options.claims / "models", "extra/labels.txt", "extra/more/words.txt")
    extra = PlanFetch(
        step="model", slot="extra", uri="pvc://models/extra", kind=FetchKind.FOLDER, target="bert/1"
    )
    one = PlanFetch(
        step="model",
        slot="one",
        uri="pvc://models/extra/labels.txt",
        kind=FetchKind.FOLDER,
        target="bert",
    )
    pod.plan(
        extra,
        one,
        model(versions=PlanVersions(all=True)),
        files=[PlanFile(key="m", path="bert/1/model.py")],
    )
    code, report = pod.load()
    assert code == 0, pod.output
    files = ("labels.txt", "model.onnx", "model.py", "more/words.txt")
    expected = [
        "bert/labels.txt",
        *(f"bert/{version}/{name}" for version in (3, 5) for name in files),
    ]
    assert pod.tree() == sorted(expected)
    assert [(item.step, item.slot) for item in report.sources] == [
        ("model", "extra"),
        ("model", "one"),
        ("model", ""),
    ]
    before = {
        path: path.stat().st_ino
        for path in pod.models.rglob("*/*/*")
        if path.is_file() and path.name != "model.py"
    }
    assert pod.load()[0] == 0, pod.output
    assert pod.tree() == sorted(expected)
    assert {path: path.stat().st_ino for path in before} == before


def test_what_the_operator_writes_is_never_overwritten(pod: Pod, claim: Path) -> None:
    (pod.options.revision / "m").write_text("# ours")
    write(claim, "2/model.onnx", "2/model.py")
    pod.plan(model(), files=[PlanFile(key="m", path="bert/1/model.py")])
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.MODEL_MISMATCH)
    assert (
        "contains model.py, but the operator writes bert/1/model.py itself"
        in report.findings[0].message
    )


@pytest.mark.proves("spec.model.source.fileName", "behaviour")
def test_a_folder_as_a_whole_and_its_main_file_alone(pod: Pod, claim: Path) -> None:
    graph(claim / "net.onnx", external=True)
    write(claim, "vocab.txt", "assets/a/b.json", "config.pbtxt")
    pod.plan(model(source_file="net.onnx", whole=True), revision="a")
    assert pod.load()[0] == 0, pod.output
    assert pod.tree() == [
        "bert/1/assets/a/b.json",
        "bert/1/model.onnx",
        "bert/1/vocab.txt",
        "bert/1/weights.bin",
    ]
    pod.another()
    pod.plan(model(source_file="net.onnx"), checks=[checked()])
    assert pod.load()[0] == 0, pod.output
    assert pod.tree() == ["bert/1/model.onnx", "bert/1/weights.bin"]


def test_links_in_a_folder_may_not_point_outside(pod: Pod, claim: Path, tmp_path: Path) -> None:
    write(claim, "model.onnx", "blobs/1")
    (claim / "inside.bin").symlink_to("blobs/1")
    pod.plan(model(whole=True))
    assert pod.load()[0] == 0, pod.output
    assert (pod.models / "bert/1/inside.bin").read_text() == "content of blobs/1"
    assert not (pod.models / "bert/1/inside.bin").is_symlink()
    for link, target, says in (
        ("out.bin", "/etc/passwd", "points outside its volume"),
        ("sub", "blobs", "is a link to a directory"),
        ("gone", "nowhere", "a broken link"),
    ):
        (claim / link).symlink_to(target)
        pod.another()
        code, report = pod.load()
        assert code == 2
        assert says in report.findings[0].message, report.findings
        (claim / link).unlink()


def test_a_folder_of_a_source_map_may_not_lead_out(pod: Pod, tmp_path: Path) -> None:
    write(tmp_path, "samples/a/model.onnx", "secret/model.onnx")
    pod.map(f"hf://=file://{tmp_path}/samples/")
    for uri in ("hf://../secret", "hf://a/%2e%2e/%2E%2E/secret", "hf://a/..\\..\\secret"):
        pod.plan(model(uri))
        code, report = pod.load()
        assert code == 2
        assert "must not contain '..'" in report.findings[0].message
    pod.plan(model("hf://a", file="model.bin", source_file="model.onnx"))
    assert pod.load()[0] == 0, pod.output


def test_a_repository_of_a_hub_as_versions_and_as_a_whole(pod: Pod) -> None:
    files = {
        "README.md": b"text",
        "a/1/model.onnx": b"one",
        "a/2/model.onnx": b"two",
        "a/2/x.bin": b"x" * 2_000_000,
        "b/weights.bin": b"w",
    }
    with HubServer() as hub:
        commit = hub.publish("org/name", files)
        pod.map(f"hf://={hub.url}")
        whole = model("hf://org/name/b", target="whole", slot="whole", file=None, whole=True)
        pod.plan(model("hf://org/name", path="a/"), whole)
        code, report = pod.load()
        assert code == 0, pod.output
        assert pod.tree() == ["bert/2/model.onnx", "bert/2/x.bin", "whole/1/weights.bin"]
        assert [item.resolved_revision for item in report.sources] == [commit, commit]
        assert "fetched 2 of 2 files, 1.9 MiB of 1.9 MiB (100 %)" in pod.output
        pod.recorded()
        hub.publish("org/name", {**files, "a/3/model.onnx": b"three"})
        pod.another()
        code, report = pod.load()
        assert code == 0, pod.output
        assert pod.tree() == ["bert/2/model.onnx", "bert/2/x.bin", "whole/1/weights.bin"]


def test_controls_and_states_of_a_sequence_model_are_not_declared_as_inputs(
    pod: Pod, tmp_path: Path
) -> None:
    """The file, the rendered config and the loader agree on which inputs the batcher fills."""
    claim = pod.options.claims / "models"
    claim.mkdir()
    kinds = {"x": TensorProto.FLOAT, "START": TensorProto.INT32, "state": TensorProto.FLOAT}
    nodes = [
        helper.make_node("Cast", ["START"], ["first"], to=TensorProto.BOOL),
        helper.make_node("Add", ["x", "state"], ["sum"]),
        helper.make_node("Where", ["first", "x", "sum"], ["next"]),
        helper.make_node("Identity", ["next"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "running_sum",
        [helper.make_tensor_value_info(name, kind, ["batch", 1]) for name, kind in kinds.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1])
            for name in ("y", "next")
        ],
    )
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]),
        str(claim / "sum.onnx"),
    )
    state = {"inputName": "state", "outputName": "next", "dataType": "FP32", "dims": [1]}
    built = builders.built(
        tokenizer=None,
        postprocess=None,
        model={
            "source": {"uri": "pvc://models/sum.onnx"},
            "inputs": [{"name": "x", "dataType": "FP32", "dims": [1]}],
            "outputs": [{"name": "y", "dataType": "FP32", "dims": [1]}],
            "maxBatchSize": 8,
            "sequenceBatching": {
                "strategy": "Direct",
                "controls": [{"name": "START", "kind": "START"}],
                "states": [state],
            },
        },
        health={"inputs": [{"name": "x", "shape": [1, 1], "data": ["1"]}]},
    )
    for key, content in built.render().data.items():
        (pod.options.revision / key).write_text(content)
    code, report = pod.load()
    assert (code, report.findings) == (0, ()), pod.output
    config = parse((pod.models / "model/config.pbtxt").read_text())
    sequences = config.sequence_batching
    # The backend expects as many inputs as these are (its sources, r24.08 to r25.12).
    assert sorted(
        [
            *(tensor.name for tensor in config.input),
            *(tensor.name for tensor in sequences.control_input),
            *(tensor.input_name for tensor in sequences.state),
        ]
    ) == sorted(kinds)

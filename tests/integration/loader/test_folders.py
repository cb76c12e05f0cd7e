"""The whole loader on mounted folders: ConfigMaps, claims, tokenizers, side files and checks."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.integration.loader.conftest import Pod
from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadReason,
    PlanCheck,
    PlanCount,
    PlanFetch,
    PlanFile,
    PlanTensor,
)
from triton_pipelines.loader.options import parse_options

CONFIG = (
    'name: "tokenizer"\nmax_batch_size: 64\n'
    "instance_group [ { kind: KIND_CPU  count: 1 } ]  # kept\n"
)
SENTENCES = [
    "Ça va, naïve café?",
    "A plain sentence.",
    "日本語 mixed WITH Capitals",
    "unaffable\t tab",
    "",
    "x" * 300,
]


def tokenizer(uri: str, **rest: object) -> PlanFetch:
    return PlanFetch(
        step="tokenizer",
        uri=uri,
        kind=FetchKind.TOKENIZER,
        target="tokenizer/1/tokenizer.json",
        **rest,
    )


def model(uri: str, **rest: object) -> PlanFetch:
    return PlanFetch(step="model", uri=uri, target="model/1/model.onnx", **rest)


def graph(
    path: Path, *, external: bool = False, batch: int | str = "batch", classes: int = 2
) -> None:
    """The model maps ids [batch, sequence] to logits [batch, classes]."""
    weight = numpy_helper.from_array(
        np.arange(classes * 256, dtype=np.float32).reshape(256, classes), "weight"
    )
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["cast"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Expand", ["mean", "shape"], ["wide"]),
        helper.make_node("MatMul", ["wide", "weight"], ["logits"]),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [batch, "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, classes])],
        [weight, numpy_helper.from_array(np.array([1, 256], dtype=np.int64), "shape")],
    )
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)]),
        str(path),
        save_as_external_data=external,
        location="weights.bin" if external else None,
        size_threshold=1024,
    )


def check(
    *, max_batch_size: int = 64, dims: list[int] | None = None, data_type: str = "INT64"
) -> PlanCheck:
    return PlanCheck(
        step="model",
        path="model/1/model.onnx",
        field="spec.model",
        max_batch_size=max_batch_size,
        inputs=[PlanTensor(name="input_ids", data_type=data_type, dims=[-1])],
        outputs=[PlanTensor(name="logits", data_type="FP32", dims=dims or [2])],
    )


@pytest.mark.integration
def test_a_whole_pipeline_from_mounted_folders(pod: Pod, minilm: Path) -> None:
    (pod.options.revision / "tokenizer.config.pbtxt").write_text(CONFIG)
    (pod.options.revision / "ensemble.config.pbtxt").write_text(
        'name: "sentiment"\nplatform: "ensemble"\n'
    )
    claim = pod.options.claims / "models" / "sst2"
    claim.mkdir(parents=True)
    graph(claim / "model.onnx")
    mounted = pod.options.configmaps / "tokenizer"
    mounted.mkdir()
    # As the kubelet lays a ConfigMap out: keys are links into a dated folder.
    (mounted / "..2026").mkdir()
    shutil.copy(minilm / "tokenizer.json", mounted / "..2026" / "tokenizer.json")
    (mounted / "..data").symlink_to("..2026")
    (mounted / "tokenizer.json").symlink_to("..data/tokenizer.json")
    (pod.options.live / "counts.json").write_text('{"tokenizer": 9, "other": 1}')
    pod.plan(
        tokenizer("configmap://texts/tokenizer.json"),
        model("pvc://models/sst2"),
        files=[
            PlanFile(key="tokenizer.config.pbtxt", path="tokenizer/config.pbtxt"),
            PlanFile(key="ensemble.config.pbtxt", path="sentiment/config.pbtxt"),
        ],
        empty_dirs=["sentiment/1"],
        counts=[
            PlanCount(step="tokenizer", path="tokenizer/config.pbtxt", initial=1, min=1, max=4)
        ],
        checks=[check()],
    )
    code, report = pod.load()
    assert (code, report.ok) == (0, True), pod.output
    assert (pod.models / "tokenizer/config.pbtxt").read_text() == CONFIG.replace(
        "count: 1", "count: 4"
    )
    assert (
        pod.models / "sentiment/config.pbtxt"
    ).read_text() == 'name: "sentiment"\nplatform: "ensemble"\n'
    assert (pod.models / "sentiment/1").is_dir()
    assert (pod.models / "tokenizer/1/tokenizer.json").read_bytes() == (
        minilm / "tokenizer.json"
    ).read_bytes()
    assert (pod.models / "model/1/model.onnx").read_bytes() == (claim / "model.onnx").read_bytes()
    assert [(item.step, item.uri, item.resolved_revision) for item in report.sources] == [
        ("tokenizer", "configmap://texts/tokenizer.json", None),
        ("model", "pvc://models/sst2", None),
    ]
    assert (
        report.sources[1].sha256 == hashlib.sha256((claim / "model.onnx").read_bytes()).hexdigest()
    )
    # The shipped file pads and cuts to 128, which the step's own settings override.
    assert [(item.reason, item.field) for item in report.findings] == [
        (LoadReason.TOKENIZER_SETTINGS_IGNORED, "spec.tokenizer.source")
    ]
    assert "128" in report.findings[0].message
    assert (
        sorted(
            path.name
            for path in pod.models.rglob("*")
            if path.name.startswith(".") or path.suffix in (".part", ".tmp")
        )
        == []
    )


@pytest.mark.integration
def test_a_vocabulary_is_built_into_the_tokenizer_its_publisher_ships(
    pod: Pod, minilm: Path
) -> None:
    claim = pod.options.claims / "models"
    claim.mkdir()
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(minilm / name, claim / name)
    pod.plan(tokenizer("pvc://models"))
    code, report = pod.load()
    assert code == 0, pod.output
    built = Tokenizer.from_file(str(pod.models / "tokenizer/1/tokenizer.json"))
    shipped = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    shipped.no_padding()
    shipped.no_truncation()
    for text in SENTENCES:
        assert built.encode(text).ids == shipped.encode(text).ids, text
        assert built.encode(text, "pair").type_ids == shipped.encode(text, "pair").type_ids
    lines = "".join(
        f"{hashlib.sha256((claim / name).read_bytes()).hexdigest()}  {name}\n"
        for name in sorted(path.name for path in claim.iterdir())
    )
    assert report.sources[0].sha256 == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("files", "reason", "says"),
    [
        (
            {"tokenizer.json": b'{"version": "1.0", "model": {"type": "Nope"}}'},
            LoadReason.INVALID_TOKENIZER,
            "tokenizer.json is not a valid tokenizer",
        ),
        (
            {"tokenizer.json": b"version https://git-lfs.github.com/spec/v1\n"},
            LoadReason.INVALID_TOKENIZER,
            "Git LFS pointer",
        ),
        ({"tokenizer.json": b"<html>please log in</html>"}, LoadReason.INVALID_TOKENIZER, "HTML"),
        (
            {"vocab.txt": b"[UNK]\n[SEP]\n[CLS]\na\n"},
            LoadReason.SOURCE_UNAVAILABLE,
            "neither tokenizer.json nor vocab.txt with its tokenizer_config.json",
        ),
        (
            {"vocab.txt": b"[UNK]\na\n", "tokenizer_config.json": b"{}"},
            LoadReason.INVALID_TOKENIZER,
            "vocab.txt does not contain [SEP], [CLS]",
        ),
        (
            {"vocab.txt": b"a\n", "tokenizer_config.json": b'{"tokenizer_class": "T5Tokenizer"}'},
            LoadReason.INVALID_TOKENIZER,
            "T5Tokenizer",
        ),
        ({"spiece.model": b"x"}, LoadReason.SOURCE_UNAVAILABLE, "neither tokenizer.json"),
    ],
)
def test_a_folder_that_makes_no_tokenizer_is_refused(
    pod: Pod, files: dict[str, bytes], reason: LoadReason, says: str
) -> None:
    (pod.options.claims / "models").mkdir()
    for name, data in files.items():
        (pod.options.claims / "models" / name).write_bytes(data)
    pod.plan(tokenizer("pvc://models"))
    code, report = pod.load()
    assert (code, report.ok, [item.reason for item in report.findings]) == (2, False, [reason])
    assert says in report.findings[0].message
    assert report.findings[0].message.startswith("spec.tokenizer.source pvc://models")
    assert not (pod.models / "tokenizer/1/tokenizer.json").exists()


@pytest.mark.integration
def test_a_template_with_a_text_twice_is_refused_for_pairs_alone(pod: Pod, minilm: Path) -> None:
    twice = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    twice.post_processor = TemplateProcessing(
        single="$A", pair="$A [SEP] $B $A", special_tokens=[("[SEP]", twice.token_to_id("[SEP]"))]
    )
    (pod.options.claims / "models").mkdir()
    twice.save(str(pod.options.claims / "models" / "tokenizer.json"))
    pod.plan(tokenizer("pvc://models", cuts_pairs=True))
    code, report = pod.load()
    assert (code, [(item.reason, item.field) for item in report.findings]) == (
        2,
        [(LoadReason.INVALID_TOKENIZER, "spec.tokenizer.source")],
    )
    assert report.findings[0].message == (
        "spec.tokenizer.source pvc://models: tokenizer.json is not a valid tokenizer: its "
        "post_processor inserts the first text 2 times, but pairs can be truncated only if "
        "each text occurs once; save it with a template such as [CLS] $A [SEP] $B:1 "
        "[SEP]:1, or set truncation to Refuse"
    )
    assert not (pod.models / "tokenizer/1/tokenizer.json").exists()
    pod.plan(tokenizer("pvc://models"))
    code, report = pod.load()
    assert code == 0, pod.output


@pytest.mark.integration
def test_external_data_comes_along_and_loads(pod: Pod) -> None:
    claim = pod.options.claims / "models"
    claim.mkdir()
    graph(claim / "net.onnx", external=True)
    assert (claim / "weights.bin").stat().st_size > 1024
    pod.plan(model("pvc://models/net.onnx"), checks=[check()])
    code, report = pod.load()
    assert code == 0, pod.output
    assert (pod.models / "model/1/weights.bin").read_bytes() == (claim / "weights.bin").read_bytes()
    onnx.checker.check_model(onnx.load(str(pod.models / "model/1/model.onnx")))
    lines = "".join(
        f"{hashlib.sha256((claim / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("net.onnx", "weights.bin")
    )
    assert report.sources[0].sha256 == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.integration
def test_external_data_outside_the_folder_is_refused(pod: Pod) -> None:
    claim = pod.options.claims / "models"
    claim.mkdir()
    graph(claim / "net.onnx", external=True)
    stolen = onnx.load(str(claim / "net.onnx"), load_external_data=False)
    for tensor in stolen.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../../credentials/model/token"
    (claim / "net.onnx").write_bytes(stolen.SerializeToString())
    pod.plan(model("pvc://models/net.onnx"))
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.MODEL_MISMATCH)
    assert "outside the model's directory" in report.findings[0].message


@pytest.mark.integration
def test_a_model_that_does_not_fit_shows_both_sides(pod: Pod) -> None:
    claim = pod.options.claims / "models"
    claim.mkdir()
    graph(claim / "model.onnx", classes=3)
    pod.plan(model("pvc://models/model.onnx"), checks=[check(data_type="INT32")])
    code, report = pod.load()
    assert code == 2
    finding = report.findings[0]
    assert (finding.reason, finding.step, finding.field) == (
        LoadReason.MODEL_MISMATCH,
        "model",
        "spec.model",
    )
    assert finding.message.splitlines() == [
        "pvc://models/model.onnx does not match spec.model (maxBatchSize 64, so shapes include"
        " the batch axis): the type of input 'input_ids' is INT64 in the file; the fixed"
        " dimensions of output 'logits' differ.",
        "       | tensor    | declared       | in file",
        "input  | input_ids | INT32 [-1, -1] | INT64 [batch, sequence]",
        "output | logits    | FP32 [-1, 2]   | FP32 [batch, 3]",
        "To match the file, use:",
        "spec.model.inputs: [{name: input_ids, dataType: INT64, dims: [-1]}]",
        "spec.model.outputs: [{name: logits, dataType: FP32, dims: [3]}]",
    ]


@pytest.mark.integration
def test_all_findings_come_at_once(pod: Pod) -> None:
    (pod.options.claims / "models").mkdir()
    pod.plan(tokenizer("pvc://models/nope"), model("pvc://models/model.onnx"), checks=[check()])
    code, report = pod.load()
    assert (code, [(item.step, item.reason) for item in report.findings]) == (
        2,
        [("tokenizer", LoadReason.SOURCE_UNAVAILABLE), ("model", LoadReason.SOURCE_UNAVAILABLE)],
    )


@pytest.mark.integration
def test_links_out_of_a_claim_are_refused(pod: Pod) -> None:
    claim = pod.options.claims / "models"
    claim.mkdir()
    pod.secret("model", token="s3cret-token-41d8")
    (claim / "model.onnx").symlink_to(pod.options.credentials / "model" / "token")
    pod.plan(model("pvc://models/model.onnx"))
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_UNAVAILABLE)
    assert "points outside its volume" in report.findings[0].message


@pytest.mark.integration
def test_a_restart_keeps_what_is_whole_and_mends_the_rest(pod: Pod, minilm: Path) -> None:
    (pod.options.revision / "c").write_text("a")
    claim = pod.options.claims / "models"
    claim.mkdir()
    graph(claim / "model.onnx")
    shutil.copy(minilm / "tokenizer.json", claim)
    pod.plan(
        tokenizer("pvc://models"),
        model("pvc://models/model.onnx"),
        files=[PlanFile(key="c", path="model/config.pbtxt")],
    )
    assert pod.load()[0] == 0
    first = (pod.models / "tokenizer/1/tokenizer.json").stat()
    (pod.models / "model/1/model.onnx").write_bytes(b"half")
    (pod.models / "model/config.pbtxt").write_text("half")
    (pod.models / "left/1").mkdir(parents=True)
    (pod.models / "left/1/over.part").write_text("x")
    code, report = pod.load()
    assert (code, len(report.sources), len(report.findings)) == (0, 2, 1)
    again = (pod.models / "tokenizer/1/tokenizer.json").stat()
    assert (again.st_ino, again.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert (pod.models / "model/1/model.onnx").read_bytes() == (claim / "model.onnx").read_bytes()
    assert (pod.models / "model/config.pbtxt").read_text() == "a"
    assert not (pod.models / "left").exists()


@pytest.mark.integration
def test_a_folder_that_the_loader_did_not_write_is_left_alone(pod: Pod) -> None:
    pod.models.mkdir(parents=True)
    (pod.models / "mine.txt").write_text("precious")
    pod.plan()
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (3, LoadReason.INTERNAL_ERROR)
    assert (pod.models / "mine.txt").read_text() == "precious"


@pytest.mark.integration
def test_changed_folder_content_is_a_changed_source(pod: Pod) -> None:
    (pod.options.claims / "models").mkdir()
    graph(pod.options.claims / "models" / "model.onnx")
    pod.plan(model("pvc://models/model.onnx"))
    pod.resolved("model", None, "0" * 64)
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED)
    now = hashlib.sha256((pod.options.claims / "models" / "model.onnx").read_bytes()).hexdigest()
    assert "0" * 64 in report.findings[0].message
    assert now in report.findings[0].message
    assert not (pod.models / "model/1/model.onnx").exists()


@pytest.mark.integration
@pytest.mark.parametrize("content", ["{", '{"version": 2}', '{"version": 1, "novel": true}'])
def test_a_plan_that_cannot_be_read_is_reported(pod: Pod, content: str) -> None:
    (pod.options.revision / "plan.json").write_text(content)
    code, report = pod.load()
    assert (code, report.ok, report.findings[0].reason) == (3, False, LoadReason.INTERNAL_ERROR)
    assert "plan.json" in report.findings[0].message


@pytest.mark.integration
def test_broken_counts_do_not_hold_a_pod(pod: Pod) -> None:
    (pod.options.revision / "t").write_text(CONFIG)
    (pod.options.live / "counts.json").write_text('{"tokenizer": "many"}')
    pod.plan(
        files=[PlanFile(key="t", path="tokenizer/config.pbtxt")],
        counts=[
            PlanCount(step="tokenizer", path="tokenizer/config.pbtxt", initial=1, min=1, max=4)
        ],
    )
    code, _ = pod.load()
    assert code == 0
    assert (pod.models / "tokenizer/config.pbtxt").read_text() == CONFIG
    assert "counts.json is not usable" in pod.output


@pytest.mark.integration
def test_broken_records_of_the_first_load_are_an_error(pod: Pod) -> None:
    (pod.options.live / "resolved.json").write_text('{"4f1d00": {"model": {"revision": 7}}}')
    pod.plan()
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (3, LoadReason.INTERNAL_ERROR)
    assert "resolved.json is not valid" in report.findings[0].message


@pytest.mark.integration
def test_rules_of_the_command_line_alone_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITONPIPE_SOURCE_MAP", "hf://=http://environment,s3://=http://environment")
    options = parse_options(
        [
            "--source-map=hf://=http://line",
            f"--root={tmp_path}",
            "--source-map",
            "https://a/=file:///b/",
        ]
    )
    assert dict(options.source_map.rules) == {
        "hf://": "http://line",
        "https://a/": "file:///b/",
    }
    assert (options.models, options.state) == (tmp_path / "models", tmp_path / ".load")
    with pytest.raises(SystemExit):
        parse_options(["--source-map=nonsense"])


@pytest.mark.integration
def test_the_report_is_valid_json_for_the_operator(pod: Pod) -> None:
    pod.plan(
        *[
            PlanFetch(
                step=f"s{n}", uri=f"pvc://claim/{'long' * 90}{n}", target=f"m{n}/1/model.onnx"
            )
            for n in range(12)
        ]
    )
    code, report = pod.load()
    assert code == 3
    assert not report.ok
    assert json.loads(pod.options.termination.read_text())["revision"] == "4f1d00"  # type: ignore[union-attr]

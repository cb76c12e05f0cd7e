"""Test `tritonpipe init`.

It writes what the files say, asks for the rest or leaves a comment, and the result is valid.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from tests.support import tinymodel
from tests.support.hub import HubServer
from tests.support.messages import Messages
from tests.unit.cli.conftest import Ended, Run

INT64, INT32, FLOAT = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT
Axes = Sequence[int | str | None] | None
IDS = {
    "input_ids": (INT64, ["batch", "sequence"]),
    "attention_mask": (INT64, ["batch", "sequence"]),
}


def graph(
    inputs: dict[str, tuple[int, Axes]], outputs: dict[str, tuple[int, Axes]], opset: int = 17
) -> bytes:
    """An ONNX file that says nothing but its tensors."""
    made = helper.make_graph(
        [],
        "declared",
        [helper.make_tensor_value_info(name, kind, axes) for name, (kind, axes) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, axes) for name, (kind, axes) in outputs.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return bytes(helper.make_model(made, opset_imports=opsets).SerializeToString())


@dataclass
class Model:
    """A folder with a graph, a tokenizer and small files, and `init` on it."""

    folder: Path
    tritonpipe: Run

    def write(
        self,
        outputs: dict[str, tuple[int, Axes]],
        inputs: dict[str, tuple[int, Axes]] | None = None,
        **files: Any,
    ) -> Model:
        """Files by name, with dots and slashes as `_` and `__`."""
        (self.folder / "model.onnx").write_bytes(graph(IDS if inputs is None else inputs, outputs))
        tinymodel.tokenizer(baked_in=False).save(str(self.folder / "tokenizer.json"))
        for name, content in files.items():
            path = self.folder / f"{name.replace('__', '/')}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        return self

    def init(self, *options: str) -> Ended:
        return self.tritonpipe(
            "init",
            "--onnx",
            str(self.folder / "model.onnx"),
            "--tokenizer",
            str(self.folder),
            *options,
        )

    def spec(self, *options: str) -> dict[str, Any]:
        """The spec of a run that ends well; `validate --strict` has to say so as well."""
        ended = self.init(*options)
        assert ended.code == 0, ended.err
        addressed = ended.out.replace("pvc://replace-me/", "s3://models/")
        judged = self.tritonpipe("validate", "--strict", "-", text=addressed.encode())
        assert judged.code == 0, judged.out
        spec: dict[str, Any] = yaml.safe_load(ended.out)["spec"]
        return spec


@pytest.fixture
def model(tmp_path: Path, tritonpipe: Run) -> Model:
    folder = tmp_path / "topics"
    folder.mkdir()
    return Model(folder, tritonpipe)


LOGITS: dict[str, tuple[int, Axes]] = {"logits": (FLOAT, ["batch", 2])}
HIDDEN: dict[str, tuple[int, Axes]] = {"last_hidden_state": (FLOAT, ["batch", "sequence", 8])}


def test_a_classifier_is_written_whole(model: Model, messages: Messages) -> None:
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"1": "praise", "0": "complaint"},
        "max_position_embeddings": 512,
        "problem_type": "single_label_classification",
    }
    ended = model.write(LOGITS, config=config, tokenizer_config={"model_max_length": 256}).init()
    assert ended.code == 0
    digests = {
        name: hashlib.sha256((model.folder / name).read_bytes()).hexdigest()
        for name in ("model.onnx", "tokenizer.json")
    }
    assert yaml.safe_load(ended.out) == {
        "apiVersion": "tritonpipelines.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": "topics"},
        "spec": {
            "tokenizer": {
                "source": {
                    "uri": "pvc://replace-me/tokenizer.json",
                    "sha256": digests["tokenizer.json"],
                },
                "maxLength": 256,
            },
            "model": {
                "platform": "onnxruntime_onnx",
                "source": {"uri": "pvc://replace-me/model.onnx", "sha256": digests["model.onnx"]},
                "inputs": [{"name": name, "dataType": "INT64", "dims": [-1]} for name in IDS],
                "outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}],
                "maxBatchSize": 64,
            },
            "postprocess": {"type": "Softmax", "labels": ["complaint", "praise"]},
        },
    }
    comments = [line.strip() for line in ended.out.splitlines() if line.strip().startswith("#")]
    assert (
        "# From model_max_length of tokenizer_config.json; 512 is max_position_embeddings of"
        " config.json." in comments
    )
    assert "# From id2label of config.json, in the model's order." in comments
    assert "placeholder" in ended.err
    assert str(model.folder) in ended.err
    messages.check(ended.err)


POOLED = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
MODULES = [
    {"type": f"sentence_transformers.models.{name}"}
    for name in ("Transformer", "Pooling", "Normalize")
]


@pytest.mark.parametrize(
    ("outputs", "files", "postprocess"),
    [
        (
            LOGITS,
            {
                "config": {
                    "problem_type": "multi_label_classification",
                    "id2label": {"0": "a", "1": "b"},
                }
            },
            {"type": "Sigmoid", "labels": ["a", "b"]},
        ),
        (LOGITS, {"config": {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}}, {"type": "Softmax"}),
        (LOGITS, {"config": {"id2label": {"0": "a", "1": "b", "2": "c"}}}, {"type": "Softmax"}),
        (LOGITS, {"config": {"problem_type": "regression"}}, None),
        ({"logits": (FLOAT, ["batch", 1])}, {}, {"type": "Sigmoid"}),
        (
            {"logits": (FLOAT, ["batch", 1])},
            {
                "config": {
                    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}
                }
            },
            None,
        ),
        (
            {"logits": (FLOAT, ["batch", "sequence", 3])},
            {
                "config": {
                    "architectures": ["BertForTokenClassification"],
                    "id2label": {"0": "O", "1": "B", "2": "I"},
                }
            },
            {"type": "Softmax", "labels": ["O", "B", "I"]},
        ),
        (
            {"logits": (FLOAT, ["batch", "sequence", 30522])},
            {"config": {"architectures": ["BertForMaskedLM"], "vocab_size": 30522}},
            None,
        ),
        (
            HIDDEN,
            {"1_Pooling__config": POOLED, "modules": MODULES},
            {"type": "MeanPooling", "normalize": "Enabled", "placement": "Model"},
        ),
        (
            HIDDEN,
            {"1_Pooling__config": POOLED, "modules": MODULES[:2]},
            {"type": "MeanPooling", "normalize": "Disabled", "placement": "Model"},
        ),
        (
            HIDDEN,
            {"1_Pooling__config": {"pooling_mode_cls_token": True}},
            {"type": "FirstToken", "placement": "Model"},
        ),
        (HIDDEN, {"1_Pooling__config": {"pooling_mode_max_tokens": True}}, None),
        (HIDDEN, {}, None),
        (
            {**HIDDEN, "sentence_embedding": (FLOAT, ["batch", 8])},
            {"1_Pooling__config": POOLED},
            None,
        ),
        (
            {"start_logits": (FLOAT, ["b", "s"]), "end_logits": (FLOAT, ["b", "s"])},
            {"config": {"architectures": ["BertForQuestionAnswering"]}},
            None,
        ),
    ],
    ids=[
        "several labels",
        "generic labels",
        "other number of labels",
        "regression",
        "one score",
        "cross-encoder",
        "tokens",
        "masked",
        "mean",
        "not normalized",
        "first token",
        "max pooling",
        "unknown pooling",
        "pooled in the graph",
        "question answering",
    ],
)
def test_the_postprocess_follows_from_the_files(
    model: Model, outputs: dict[str, tuple[int, Axes]], files: dict[str, Any], postprocess: Any
) -> None:
    assert model.write(outputs, **files).spec().get("postprocess") == postprocess


IDS_ALONE = {"input_ids": IDS["input_ids"]}
HALF: dict[str, tuple[int, Axes]] = {
    "last_hidden_state": (TensorProto.BFLOAT16, ["batch", "sequence", 8])
}


@pytest.mark.parametrize(
    ("outputs", "inputs", "opset", "kind"),
    [
        (HIDDEN, IDS, 8, "FirstToken"),
        (HIDDEN | {"EMBEDDING": (FLOAT, ["batch", 8])}, IDS, 17, "FirstToken"),
        (HALF, IDS, 17, "FirstToken"),
        ({"hidden": (FLOAT, ["batch", "sequence", "width"])}, IDS, 17, "FirstToken"),
        (HIDDEN, IDS_ALONE, 17, "MeanPooling"),
    ],
    ids=["old operators", "name is taken", "type", "width", "no mask"],
)
def test_pooling_stays_in_a_step_if_the_file_cannot_compute_it(
    model: Model,
    outputs: dict[str, tuple[int, Axes]],
    inputs: dict[str, tuple[int, Axes]],
    opset: int,
    kind: str,
) -> None:
    model.write(outputs, inputs)
    (model.folder / "model.onnx").write_bytes(graph(inputs, outputs, opset))
    written = yaml.safe_load(model.init("--postprocess", kind).out)
    assert written["spec"]["postprocess"] == {"type": kind}
    if opset > 8:
        return
    (model.folder / "model.onnx").write_bytes(graph(inputs, outputs, opset + 1))
    assert model.spec("--postprocess", kind)["postprocess"]["placement"] == "Model"


@pytest.mark.parametrize(
    ("files", "length"),
    [
        (
            {
                "config": {
                    "max_position_embeddings": 514,
                    "model_type": "roberta",
                    "pad_token_id": 1,
                }
            },
            512,
        ),
        (
            {
                "config": {"max_position_embeddings": 512},
                "tokenizer_config": {"model_max_length": 1e30},
            },
            512,
        ),
        (
            {
                "config": {"max_position_embeddings": 512},
                "sentence_bert_config": {"max_seq_length": 128},
            },
            128,
        ),
        ({}, None),
    ],
    ids=["roberta", "no limit", "sentence transformers", "nothing"],
)
def test_the_length_is_the_one_that_counts(
    model: Model, files: dict[str, Any], length: int | None
) -> None:
    assert model.write(LOGITS, **files).spec()["tokenizer"].get("maxLength") == length


def test_a_length_that_nothing_says_is_a_comment(model: Model) -> None:
    assert (
        "# LOOK: no file states how many tokens the model accepts; the default is 512."
        in model.write(LOGITS).init().out
    )


def test_a_fixed_length_pads_to_it(model: Model) -> None:
    spec = model.write(
        LOGITS,
        {name: (INT32, ["batch", 128]) for name in IDS},
        config={"max_position_embeddings": 512},
    ).spec()
    assert (spec["tokenizer"]["maxLength"], spec["tokenizer"]["padding"]) == (128, "Fixed")
    assert spec["model"]["inputs"][0] == {"name": "input_ids", "dataType": "INT32", "dims": [128]}


def test_a_fixed_batch_stands_in_dims(model: Model) -> None:
    spec = model.write({"logits": (FLOAT, [1, 2])}, {name: (INT64, [1, 32]) for name in IDS}).spec()
    assert spec["model"]["maxBatchSize"] == 0
    assert spec["model"]["inputs"][0]["dims"] == [1, 32]


def test_open_last_axes_come_from_the_configuration(model: Model) -> None:
    outputs: dict[str, tuple[int, Axes]] = {
        "last_hidden_state": (FLOAT, ["batch", "sequence", "width"])
    }
    assert model.write(outputs, config={"hidden_size": 384}).spec()["model"]["outputs"][0][
        "dims"
    ] == [-1, 384]


def test_inputs_that_no_tokenizer_makes_are_the_clients(model: Model) -> None:
    spec = model.write(LOGITS, {**IDS, "weights": (FLOAT, ["batch", 4])}).spec()
    assert spec["model"]["inputs"][2] == {
        "name": "weights",
        "dataType": "FP32",
        "dims": [4],
        "from": "pipeline.weights",
    }


def test_a_model_without_text_needs_no_tokenizer(model: Model) -> None:
    model.write({"scores": (FLOAT, ["n", 10])}, {"pixels": (FLOAT, ["n", 3, 224, 224])})
    ended = model.tritonpipe(
        "init",
        "--onnx",
        str(model.folder / "model.onnx"),
        "--name",
        "images",
        "--source-uri",
        "s3://models/images",
    )
    made = yaml.safe_load(ended.out)
    assert (ended.code, made["metadata"]["name"], list(made["spec"])) == (
        0,
        "images",
        ["model", "health"],
    )
    assert model.tritonpipe("validate", "--strict", "-", text=ended.out.encode()).code == 0
    assert "# LOOK: no file contains an example of pixels" in ended.out
    assert made["spec"]["model"]["source"]["uri"] == "s3://models/images/model.onnx"


def test_pairs_and_labels_by_hand(model: Model) -> None:
    (model.folder / "labels.txt").write_text("no\nyes\n")
    spec = model.write(LOGITS).spec(
        "--pair", "--labels", str(model.folder / "labels.txt"), "--postprocess", "Sigmoid"
    )
    assert spec["tokenizer"]["inputs"] == {"text": "TEXT", "textPair": "TEXT_PAIR"}
    assert spec["postprocess"] == {"type": "Sigmoid", "labels": ["no", "yes"]}


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("s3://models/topics/", {"uri": "s3://models/topics/model.onnx"}),
        ("hf://org/topics@v1", {"uri": "hf://org/topics", "revision": "v1", "path": "model.onnx"}),
        (
            "oci://registry.example/topics:1",
            {"uri": "oci://registry.example/topics:1", "path": "model.onnx"},
        ),
    ],
)
def test_sources_are_written_as_their_store_names_files(
    model: Model, uri: str, source: dict[str, str]
) -> None:
    held = model.write(LOGITS).spec("--source-uri", uri)["model"]["source"]
    assert {key: value for key, value in held.items() if key != "sha256"} == source


def test_a_vocabulary_without_tokenizer_json_is_a_folder(model: Model) -> None:
    model.write(LOGITS, tokenizer_config={"tokenizer_class": "BertTokenizer"})
    (model.folder / "tokenizer.json").unlink()
    (model.folder / "vocab.txt").write_text(
        "\n".join([*tinymodel.SPECIAL, "[MASK]", *tinymodel.WORDS]) + "\n"
    )
    assert model.spec("--source-uri", "s3://models/topics")["tokenizer"]["source"] == {
        "uri": "s3://models/topics/"
    }


Break = Callable[[Model], list[str]]


def _break(
    outputs: dict[str, tuple[int, Axes]] = LOGITS,
    inputs: dict[str, tuple[int, Axes]] | None = None,
    *options: str,
) -> Break:
    def made(model: Model) -> list[str]:
        model.write(outputs, inputs)
        return [
            "--onnx",
            str(model.folder / "model.onnx"),
            "--tokenizer",
            str(model.folder),
            *options,
        ]

    return made


def _no_tokenizer(model: Model) -> list[str]:
    return _break()(model)[:2]


def _not_onnx(model: Model) -> list[str]:
    arguments = _break()(model)
    (model.folder / "model.onnx").write_text("<html>log in</html>")
    return arguments


def _bad_tokenizer(model: Model) -> list[str]:
    arguments = _break()(model)
    (model.folder / "tokenizer.json").write_text("{}")
    return arguments


def _bad_json(model: Model) -> list[str]:
    arguments = _break()(model)
    (model.folder / "config.json").write_text("{")
    return arguments


def _taken(model: Model) -> list[str]:
    (model.folder / "taken.yaml").write_text("kept")
    return [*_break()(model), "--output-file", str(model.folder / "taken.yaml")]


@pytest.mark.parametrize(
    ("broken", "reported"),
    [
        (
            _no_tokenizer,
            r"model\.onnx",
        ),
        (_not_onnx, r"model\.onnx"),
        (_bad_tokenizer, r"tokenizer\.json"),
        (_bad_json, r"config\.json"),
        (_taken, r"taken\.yaml"),
        (
            _break(LOGITS, {**IDS, "past_key_values.0.key": (FLOAT, ["b", 2, "s", 4])}),
            r"past_key_values\.0\.key",
        ),
        (
            _break(LOGITS, {**IDS, "position_ids": (INT64, ["b", "s"])}),
            "position_ids",
        ),
        (
            _break(LOGITS, {"input_ids": (FLOAT, ["b", "s"])}),
            "input_ids",
        ),
        (_break(LOGITS, {"input_ids": (INT64, ["s"])}), "input_ids"),
        (
            _break(LOGITS, {"input_ids": (INT64, ["b", 8]), "attention_mask": (INT64, ["b", 16])}),
            "lengths",
        ),
        (
            _break({"logits": (FLOAT, None)}),
            r"\(outputs: logits\)",
        ),
        (_break(LOGITS, None, "--labels", "a,b,c"), "2 classes"),
        (_break(LOGITS, None, "--labels", "a,a"), "once"),
        (_break(LOGITS, None, "--labels", "nosuch.txt"), r"nosuch\.txt"),
        (_break(LOGITS, None, "--postprocess", "Max"), "'Max'"),
        (
            _break(LOGITS, None, "--postprocess", "MeanPooling"),
            r"FP32\[2\]",
        ),
        (_break(HIDDEN, None, "--labels", "a,b"), "class scores"),
        (_break(LOGITS, None, "--name", "Not A Name"), "resource name"),
        (_break(LOGITS, None, "--source-uri", "models/x"), "URI"),
        (lambda _: [], "repository"),
        (lambda _: ["org/name"], "org/name"),
    ],
)
def test_what_cannot_be_known_is_asked_for(
    model: Model, broken: Break, reported: str, messages: Messages
) -> None:
    ended = model.tritonpipe("init", *broken(model))
    assert (ended.code, ended.out) == (2, "")
    assert re.search(reported, ended.err), ended.err
    messages.check(ended.err)


def test_an_existing_file_is_kept_and_a_new_one_written(model: Model) -> None:
    path = model.folder / "topics.yaml"
    assert model.write(LOGITS).init("--output-file", str(path)).out == ""
    assert yaml.safe_load(path.read_text())["metadata"] == {"name": "topics"}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


def small(name: str) -> bytes:
    return json.dumps(
        {"config.json": {"id2label": {"0": "no", "1": "yes"}, "max_position_embeddings": 64}}.get(
            name, {}
        )
    ).encode()


def repository(**more: bytes) -> dict[str, bytes]:
    tokenizer = tinymodel.tokenizer().to_str().encode()
    files = {
        "tokenizer.json": tokenizer,
        "config.json": small("config.json"),
        "onnx/model.onnx": graph(IDS, LOGITS),
    }
    return {
        **files,
        "onnx/model_quantized.onnx": b"never read",
        "pytorch_model.bin": b"never read",
        **more,
    }


def test_a_repository_is_read_file_by_file(hub: HubServer, tritonpipe: Run) -> None:
    commit = hub.publish("org/Yes-No", repository())
    ended = tritonpipe("init", "hf://org/Yes-No@main", f"--source-map=hf://={hub.url}")
    assert ended.code == 0, ended.err
    made = yaml.safe_load(ended.out)
    assert made["metadata"] == {"name": "yes-no"}
    assert made["spec"]["tokenizer"]["source"] == {"uri": "hf://org/Yes-No", "revision": commit}
    digest = hashlib.sha256(repository()["onnx/model.onnx"]).hexdigest()
    assert made["spec"]["model"]["source"] == {
        "uri": "hf://org/Yes-No",
        "revision": commit,
        "path": "onnx/model.onnx",
        "sha256": digest,
    }
    assert made["spec"]["postprocess"] == {"type": "Softmax", "labels": ["no", "yes"]}
    fetched = {
        request.path.rpartition(f"/{commit}/")[2]
        for request in hub.requests
        if "/resolve/" in request.path
    }
    assert fetched == {"tokenizer.json", "config.json", "onnx/model.onnx"}


def test_a_hub_may_be_a_folder_of_this_machine(tmp_path: Path, tritonpipe: Run) -> None:
    for name, content in repository().items():
        path = tmp_path / "org" / "name" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    ended = tritonpipe("init", "hf://org/name", f"--source-map=hf://={tmp_path.as_uri()}/")
    assert ended.code == 0, ended.err
    assert yaml.safe_load(ended.out)["spec"]["tokenizer"]["source"] == {"uri": "hf://org/name"}


@pytest.mark.parametrize(
    ("files", "options", "code", "reported"),
    [
        ({"model.bin": b""}, (), 2, "ONNX"),
        (
            {"a.onnx": b"", "b.onnx": b""},
            (),
            2,
            "--onnx-path",
        ),
        (
            repository(),
            ("--onnx-path=nosuch.onnx",),
            2,
            "onnx/model_quantized.onnx",
        ),
        (repository(), ("--tokenizer=x",), 2, "tokenizer"),
        (None, (), 2, "org/name"),
    ],
)
def test_a_repository_that_does_not_do(
    hub: HubServer,
    tritonpipe: Run,
    files: dict[str, bytes] | None,
    options: tuple[str, ...],
    code: int,
    reported: str,
    messages: Messages,
) -> None:
    if files is not None:
        hub.publish("org/name", files)
    ended = tritonpipe("init", "hf://org/name", f"--source-map=hf://={hub.url}", *options)
    assert (ended.code, ended.out) == (code, "")
    assert reported in ended.err
    messages.check(ended.err)


def test_a_private_repository_needs_a_token(tmp_path: Path, tritonpipe: Run) -> None:
    (tmp_path / "token").write_text("hf_secret\n")
    with HubServer(token="hf_secret") as hub:
        hub.publish("org/name", repository())
        refused = tritonpipe("init", "hf://org/name", f"--source-map=hf://={hub.url}")
        assert refused.code == 2
        assert "--token-file" in refused.err
        granted = tritonpipe(
            "init",
            "hf://org/name",
            f"--source-map=hf://={hub.url}",
            f"--token-file={tmp_path / 'token'}",
        )
        assert granted.code == 0, granted.err
        assert "hf_secret" not in granted.out + granted.err


def test_an_unreachable_hub_is_another_failure(tritonpipe: Run, messages: Messages) -> None:
    ended = tritonpipe("init", "hf://org/name", "--source-map=hf://=http://127.0.0.1:9")
    assert ended.code == 3
    messages.check(ended.err)


def test_the_graph_of_a_real_model(tmp_path: Path, tritonpipe: Run) -> None:
    """The tiny encoder that other tests serve: what is not chosen is named."""
    tinymodel.write(tmp_path)
    ended = tritonpipe(
        "init", f"--onnx={tmp_path / 'model.onnx'}", f"--tokenizer={tmp_path}", "--name=tiny"
    )
    comments = " ".join(line.strip().removeprefix("# ") for line in ended.out.splitlines())
    assert (
        "As declared in the graph. These outputs are not served, because they are not used: "
        "hidden" in comments
    )
    assert onnx.load(str(tmp_path / "model.onnx")).graph.output[0].name == "hidden"

"""Resources written by `tritonpipe init` and `tritonpipe import` are served unchanged.

Their answers match independent computations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from e2e.models import tree
from e2e.suite.clients import http_json
from e2e.suite.pipelines import TOLERANCE, check_answer, golden
from tests.support import tinymodel
from tests.support.handmade_repositories import TOKENIZER, write_files
from tests.support.hub import HubServer
from tests.support.serving import SAMPLES, Served, run, sample_sources, served

pytestmark = pytest.mark.integration
SHORT = 40
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "the quick fox jumps over a happy dog",
    "bird sings",
    "very old river falls near a small stone and the tree",
]


def ask(server: Served, rows: Sequence[str]) -> dict[str, np.ndarray]:
    return dict(http_json(server.endpoint, server.model, rows))


def test_an_onnx_file_with_its_tokenizer(tmp_path: Path) -> None:
    """Run the commands that `init` suggests.

    The answer is that of the tiny model, computed in numpy.
    """
    tinymodel.write(tmp_path / "tiny")
    (tmp_path / "tiny" / "config.json").write_text(
        json.dumps(
            {
                "id2label": {"0": "low", "1": "middle", "2": "high"},
                "max_position_embeddings": tinymodel.POSITIONS,
            }
        )
    )
    file = tmp_path / "tiny.yaml"
    made = run(
        "init",
        f"--onnx={tmp_path / 'tiny' / 'model.onnx'}",
        f"--tokenizer={tmp_path / 'tiny'}",
        f"--output-file={file}",
    )
    assert made.returncode == 0, made.stderr
    hint = re.search(
        r"^to try the pipeline on this machine, run: tritonpipe serve (\S+) (.*)$",
        made.stderr,
        re.MULTILINE,
    )
    assert hint is not None, made.stderr
    assert hint[1] == str(file)
    tokenizer = tinymodel.tokenizer(baked_in=False)
    logits = np.array([tinymodel.classify(np.array(tokenizer.encode(text).ids)) for text in TEXTS])
    wanted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    with served(file, *hint[2].split(), log=tmp_path / "serve.log") as server:
        answer = ask(server, TEXTS)
    np.testing.assert_allclose(answer["PROBABILITIES"], wanted, atol=TOLERANCE, rtol=0)
    assert [row[0].decode() for row in answer["LABEL"]] == [
        ("low", "middle", "high")[index] for index in wanted.argmax(axis=1)
    ]


def test_a_repository_of_a_hub(tmp_path: Path) -> None:
    """Real MiniLM weights, laid out as sentence-transformers publishes them."""
    built = tree.build()
    files = {
        path.name: path.read_bytes()
        for path in (built / "hub" / MINILM).iterdir()
        if path.is_file()
    }
    files["onnx/model.onnx"] = (built / "s3/models/minilm/model.onnx").read_bytes()
    files["1_Pooling/config.json"] = json.dumps(
        {
            "word_embedding_dimension": 384,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": False,
        }
    ).encode()
    files["sentence_bert_config.json"] = json.dumps({"max_seq_length": 256}).encode()
    names = ("Transformer", "Pooling", "Normalize")
    files["modules.json"] = json.dumps(
        [{"type": f"sentence_transformers.models.{name}"} for name in names]
    ).encode()
    file = tmp_path / "minilm.yaml"
    with HubServer() as hub:
        hub.publish(MINILM, files)
        mapped = f"--source-map=hf://={hub.url}"
        made = run("init", f"hf://{MINILM}", mapped, f"--output-file={file}", "--name=minilm")
        assert made.returncode == 0, made.stderr
        rows = golden("embedding", 4, longest=SHORT)
        with served(file, mapped, log=tmp_path / "serve.log") as server:
            check_answer("embedding", rows, ask(server, [row["text"] for row in rows]))


def test_a_repository_that_serves(tmp_path: Path) -> None:
    """Import the repository of a served pipeline and serve it again.

    It gives the same golden answers without the resource that it was made from.
    """
    rows = golden("sentiment", 3, longest=SHORT)
    with served(
        SAMPLES / "sentiment.yaml",
        *sample_sources(),
        f"--folder={tmp_path / 'first'}",
        log=tmp_path / "first.log",
    ) as server:
        check_answer("sentiment", rows, ask(server, [row["text"] for row in rows]))
    file = tmp_path / "again.yaml"
    repository = tmp_path / "first" / "models"
    made = run("import", str(repository), f"--output-file={file}", "--strict")
    assert made.returncode == 0, made.stderr
    hint = re.search(
        r"^to try the pipeline on this machine, run: tritonpipe serve \S+ (.*)$",
        made.stderr,
        re.MULTILINE,
    )
    assert hint is not None, made.stderr
    with served(file, *hint[1].split(), log=tmp_path / "again.log") as server:
        assert server.model == "sentiment"
        check_answer("sentiment", rows, ask(server, [row["text"] for row in rows]))


def test_an_unpacked_python_environment(tmp_path: Path) -> None:
    """Triton activates an environment folder that `import` carried over."""
    code = (
        "import os\n"
        "import numpy as np\n"
        "import triton_python_backend_utils as pb_utils\n\n\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        '        value = np.array([[os.environ["FROM_ENVIRONMENT"].encode()]], dtype=object)\n'
        '        tensor = pb_utils.Tensor("MARK", value)\n'
        "        return [pb_utils.InferenceResponse([tensor]) for _ in requests]\n"
    )
    environment = (
        'parameters { key: "EXECUTION_ENV_PATH"'
        ' value { string_value: "$$TRITON_MODEL_DIRECTORY/conda" } }\n'
    )
    folder = write_files(
        tmp_path / "models",
        {
            "mark/config.pbtxt": TOKENIZER.replace(
                '"input_ids" data_type: TYPE_INT64 dims: -1',
                ('"MARK" data_type: TYPE_STRING dims: 1'),
            )
            + environment,
            "mark/1/model.py": code,
            "mark/conda/bin/activate": "export FROM_ENVIRONMENT=activated\n",
            "marks/config.pbtxt": (
                'platform: "ensemble"\nmax_batch_size: 8\n'
                'input { name: "TEXT" data_type: TYPE_STRING dims: 1 }\n'
                'output { name: "MARK" data_type: TYPE_STRING dims: 1 }\n'
                'ensemble_scheduling { step { model_name: "mark" model_version: -1'
                ' input_map { key: "TEXT" value: "TEXT" }'
                ' output_map { key: "MARK" value: "MARK" } } }\n'
            ),
            "marks/1/": "",
        },
    )
    file = tmp_path / "marks.yaml"
    made = run("import", str(folder), f"--output-file={file}", "--strict")
    assert made.returncode == 0, made.stderr
    mapped = f"--source-map=pvc://replace-me/={folder.as_uri()}/"
    with served(file, mapped, log=tmp_path / "serve.log") as server:
        assert ask(server, ["x"])["MARK"].tolist() == [[b"activated"]]

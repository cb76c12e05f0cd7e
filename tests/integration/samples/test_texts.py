"""Samples that read texts, with names and shapes that clients know.

Other steps come before, next to or in place of the usual ones.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from e2e.suite.pipelines import TOLERANCE
from tests.support.samples import Array, Client, cases, column, on
from tests.support.serving import SAMPLES

pytestmark = pytest.mark.integration
WORDS = cases("words")
TEXTS = column(*(case["text"] for case in WORDS))
LOGITS = np.array([case["logits"] for case in WORDS])
PROBABILITIES = np.array([case["probabilities"] for case in WORDS])


def close(found: Array, expected: Array) -> None:
    """Equal to 1e-5, and of one shape."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


# --- article --------------------------------------------------------------------------------------


@on("article")
@pytest.mark.proves("spec.ensemble.modelName", "behaviour")
@pytest.mark.proves("spec.model.modelName", "behaviour")
@pytest.mark.proves("spec.tokenizer.modelName", "behaviour")
def test_the_client_of_the_article_works_unchanged(sample: Client) -> None:
    """The program next to the sample runs as a separate process.

    It imports nothing of this project.
    """
    rows = [case["text"] for case in WORDS]
    command = [sys.executable, str(SAMPLES / "article_client.py"), sample.address, *rows]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    for line, case in zip(done.stdout.splitlines(), WORDS, strict=True):
        label, _, rest = line.partition("  ")
        assert label == ["negative", "positive"][int(np.argmax(case["logits"]))]
        close(
            np.array(rest[rest.index("[") + 1 : rest.index("]")].split(), float),
            np.array(case["logits"]),
        )


@pytest.mark.proves_files("manifests/samples/article.yaml", "loaded", "spec.*.instances.gpus")
@on("article")
def test_logits_are_the_only_output_and_rows_are_all_answered(sample: Client) -> None:
    metadata = sample.metadata()
    assert [(one["name"], one["datatype"], one["shape"]) for one in metadata["inputs"]] == [
        ("TEXT", "BYTES", [-1, 1])
    ]
    assert [(one["name"], one["datatype"], one["shape"]) for one in metadata["outputs"]] == [
        ("LOGITS", "FP32", [-1, 2])
    ]
    many = np.concatenate([TEXTS] * 32)
    close(sample.ask({"TEXT": many})["LOGITS"], np.concatenate([LOGITS] * 32))


@on("article")
def test_the_steps_answer_by_the_names_of_the_article(sample: Client) -> None:
    with tritonclient.http.InferenceServerClient(sample.address) as client:
        text = tritonclient.http.InferInput("TEXT", [1, 1], "BYTES")
        text.set_data_from_numpy(column(WORDS[0]["text"]))
        tokens = client.infer("tokenizer", [text])
        assert tokens.as_numpy("INPUT_IDS").tolist() == [WORDS[0]["inputIds"]]
        inputs = []
        for name in ("INPUT_IDS", "ATTENTION_MASK"):
            values = tokens.as_numpy(name)
            inputs.append(tritonclient.http.InferInput(name, list(values.shape), "INT64"))
            inputs[-1].set_data_from_numpy(values)
        close(client.infer("bert_classifier", inputs).as_numpy("LOGITS"), LOGITS[:1])


def test_what_tutorials_spell_is_refused_by_the_client_library() -> None:
    """The spelling found in tutorials is refused by tritonclient.

    The sample and the documentation mention it. When a release of tritonclient accepts it, both
    must be changed.
    """
    with pytest.raises(TypeError, match="binary_format"):
        tritonclient.http.InferInput("TEXT", [1, 1], "BYTES").set_data_from_numpy(
            column("x"), binary_format=True
        )
    with pytest.raises(TypeError, match="binary_format"):
        tritonclient.http.InferRequestedOutput("LOGITS", binary_format=True)


# --- cleaner --------------------------------------------------------------------------------------


@pytest.mark.proves_files("manifests/samples/cleaner.yaml", "loaded")
@on("cleaner")
@pytest.mark.proves("spec.tokenizer.inputs.textFrom", "behaviour")
@pytest.mark.proves("spec.steps[].python.code.inline", "behaviour")
def test_texts_are_cleaned_before_they_are_tokenized(sample: Client) -> None:
    def dirty(text: str) -> str:
        return f"<p>\n {text.replace(' ', '  ', 1)}</p> <br/> https://example.com/awful?terrible=worst&nbsp;"

    answer = sample.ask({"TEXT": column(*(dirty(case["text"]) for case in WORDS))})
    close(answer["PROBABILITIES"], PROBABILITIES)
    assert answer["LABEL"].ravel().tolist() == [
        [b"negative", b"positive"][best] for best in PROBABILITIES.argmax(axis=1)
    ]


@on("cleaner")
async def test_a_text_that_cannot_be_read_hurts_itself_alone(sample: Client) -> None:
    good = [asyncio.to_thread(Client(sample.served).ask, {"TEXT": TEXTS[:1]}) for _ in range(4)]
    bad = asyncio.to_thread(Client(sample.served).ask, {"TEXT": column(b"\xff\xfe")})
    *answers, error = await asyncio.gather(*good, bad, return_exceptions=True)
    assert isinstance(error, InferenceServerException)
    assert "TEXT is not valid UTF-8" in str(error)
    for answer in answers:
        assert isinstance(answer, dict), answer
        close(answer["PROBABILITIES"], PROBABILITIES[:1])


# --- slo ------------------------------------------------------------------------------------------


@pytest.mark.proves_files("manifests/samples/slo.yaml", "loaded")
@on("slo")
@pytest.mark.parametrize(
    "options", [{}, {"priority": 1}, {"priority": 2}, {"priority": 9}, {"timeout": 30_000}], ids=str
)
def test_requests_of_every_priority_are_answered(sample: Client, options: dict[str, int]) -> None:
    """A priority that no level has counts as the default."""
    close(sample.ask({"TEXT": TEXTS}, **options)["PROBABILITIES"], PROBABILITIES)


# --- unbatched ------------------------------------------------------------------------------------


@pytest.mark.proves_files("manifests/samples/unbatched.yaml", "loaded")
@on("unbatched")
@pytest.mark.parametrize("rows", [1, 2, len(WORDS)])
@pytest.mark.proves("spec.tokenizer.maxBatchSize", "behaviour")
@pytest.mark.proves("spec.model.maxBatchSize", "behaviour")
def test_texts_without_a_batch_axis(sample: Client, rows: int) -> None:
    answer = sample.ask({"TEXT": TEXTS[:rows, 0]})
    close(answer["PROBABILITIES"], PROBABILITIES[:rows])
    assert answer["LABEL"].shape == answer["SCORE"].shape == (rows, 1)
    assert [one["shape"] for one in sample.metadata()["inputs"]] == [[-1]]


@on("unbatched")
def test_the_usual_shape_is_refused_there(sample: Client) -> None:
    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'TEXT'"):
        sample.ask({"TEXT": TEXTS})


# --- two-models -----------------------------------------------------------------------------------

# The large model's golden cases have the same first texts.
SENTIMENT = {case["text"]: case for case in cases("sentiment")}


@pytest.mark.proves_files("manifests/samples/two-models.yaml", "loaded")
@on("two-models")
@pytest.mark.proves("spec.steps[].inputs[].from", "behaviour")
@pytest.mark.proves("spec.ensemble.outputs[].name", "behaviour")
@pytest.mark.proves("spec.ensemble.outputs[].from", "behaviour")
def test_branches_join(sample: Client) -> None:
    known = [case for case in WORDS if case["text"] in SENTIMENT]
    assert len(known) >= 6
    answer = sample.ask({"TEXT": column(*(case["text"] for case in known))})
    assert list(answer) == ["PROBABILITIES", "BY_MODEL", "BY_WORDS"]
    large = [SENTIMENT[case["text"]] for case in known]
    close(answer["BY_MODEL"], np.array([case["logits"] for case in large]))
    close(answer["BY_WORDS"], np.array([case["logits"] for case in known]))
    close(
        answer["PROBABILITIES"],
        np.array(
            [
                (np.array(a["probabilities"]) + b["probabilities"]) / 2
                for a, b in zip(large, known, strict=True)
            ]
        ),
    )


# --- bls ------------------------------------------------------------------------------------------


@pytest.mark.proves_files("manifests/samples/bls.yaml", "loaded")
@on("bls")
@pytest.mark.proves("spec.ensemble.entryPoint", "behaviour")
def test_only_doubtful_rows_go_to_the_large_model(sample: Client) -> None:
    assert sample.served.model == "cascade"
    known = [case for case in WORDS if case["text"] in SENTIMENT]
    sure = [max(case["probabilities"]) >= 0.95 for case in known]
    assert 0 < sum(sure) < len(sure)
    before = executions(sample)
    answer = sample.ask({"TEXT": column(*(case["text"] for case in known))})
    assert answer["ANSWERED_BY"].ravel().tolist() == [b"small" if one else b"large" for one in sure]
    close(
        answer["PROBABILITIES"],
        np.array(
            [
                (c if s else SENTIMENT[c["text"]])["probabilities"]
                for c, s in zip(known, sure, strict=True)
            ]
        ),
    )
    after = executions(sample)
    assert {name: after[name] - before[name] for name in after} == {
        "cascade": len(known),
        "tokenizer": len(known),
        "small": len(known),
        "large": sure.count(False),
    }


@on("bls")
def test_an_error_of_a_called_model_is_the_answer(sample: Client) -> None:
    with pytest.raises(InferenceServerException, match=r"tokenizer: .*UTF-8"):
        sample.ask({"TEXT": column(b"\xff")})


def executions(sample: Client) -> dict[str, int]:
    """Rows that each model has computed so far."""
    with tritonclient.http.InferenceServerClient(sample.address) as client:
        return {
            one["name"]: one["inference_count"]
            for one in client.get_inference_statistics()["model_stats"]
        }


# --- documents ------------------------------------------------------------------------------------


@pytest.mark.proves_files("manifests/samples/documents.yaml", "loaded")
@on("documents")
def test_topics_of_long_documents(sample: Client) -> None:
    """Long and short texts share one request, with more rows than there are golden cases.

    Rows of one request stay in order.
    """
    known = cases("documents") * 6
    answer = sample.ask({"TEXT": column(*(case["text"] for case in known))})
    expected = np.array([case["probabilities"] for case in known])
    close(answer["PROBABILITIES"], expected)
    assert answer["LABEL"].shape == (len(known), 2)
    assert answer["LABEL"][:, 0].tolist() == [case["label"].encode() for case in known]
    close(answer["SCORE"], -np.sort(-expected, axis=1)[:, :2])


@on("documents")
def test_more_rows_than_a_batch_are_refused(sample: Client) -> None:
    with pytest.raises(InferenceServerException, match="batch-size must be <= 128"):
        sample.ask({"TEXT": np.concatenate([TEXTS] * 17)})


# --- advisory -------------------------------------------------------------------------------------


@on("advisory")
def test_advice_changes_no_answer(sample: Client) -> None:
    """The classifier of the sentiment sample, with two tokenizers."""
    rows = cases("sentiment")[:8]
    answer = sample.ask({"TEXT": column(*(row["text"] for row in rows))})
    close(answer["PROBABILITIES"], np.array([row["probabilities"] for row in rows]))
    assert [label.decode() for label in answer["LABEL"][:, 0]] == [row["label"] for row in rows]

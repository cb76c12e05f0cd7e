"""Resources as YAML: every reader sees the same values, and comments stand where they belong."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_pipelines.tools.importer.yaml_document import WIDTH, ResourceDraft, slug

keys = st.one_of(st.sampled_from(["name", "y", "1e3", "a.b", "", "no"]), st.text(max_size=8))
scalars = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "no",
            "8",
            "0x1F",
            "1e3",
            "1_000",
            "~",
            "null",
            "${x}",
            "a: b",
            "- a",
            "# a",
            "line\n",
            "two\nlines",
            "\n",
            " lead\n  in\n",
            "tab\there\n",
            "…",
            "12:30",
        ]
    ),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(spec=st.dictionaries(keys, values, max_size=4))
def test_whatever_it_holds_is_read_back(spec: dict[str, Any]) -> None:
    made = ResourceDraft("name", spec)
    assert yaml.safe_load(made.text())["spec"] == spec


@pytest.mark.parametrize(
    "text", ["1e3", "1_0", "0o17", ".5", "+1", "y", "N", "2026-01-01", "no", "true", "~"]
)
def test_texts_that_other_readers_take_for_something_else_are_quoted(text: str) -> None:
    """Quote every text that either YAML version reads as another type.

    kubectl reads numbers by YAML 1.2 and Booleans by YAML 1.1; PyYAML alone implements neither rule
    completely.
    """
    line = ResourceDraft("name", {"parameters": {"value": text}}).text().splitlines()[-1]
    assert any(f"{quote}{text}{quote}" in line for quote in "'\""), line


def test_comments_stand_above_what_they_are_about() -> None:
    made = ResourceDraft(
        "name",
        {
            "model": {
                "outputs": [{"name": "logits", "dims": [2]}, {"name": "other", "dims": [1]}],
                "platform": "python",
            }
        },
        ["Head."],
    )
    made.comment("spec.model.outputs[1]", "Of the second.")
    made.comment("spec.model.outputs[0].dims", "Of a field in a list.")
    made.comment("spec.model.platform", "Twice.", "Twice.")
    made.comment("spec.postprocess.type", "Of nothing that is there.")
    made.comment("spec.model.warmup", "Of a field that is left out.")
    assert made.text() == textwrap.dedent(
        """\
        # Head.
        # spec.postprocess.type: Of nothing that is there.
        apiVersion: tritonpipelines.io/v1alpha1
        kind: InferencePipeline
        metadata: {name: name}
        spec:
          model:
            outputs:
              - name: logits
                # Of a field in a list.
                dims: [2]
              # Of the second.
              - {name: other, dims: [1]}
            # Twice.
            platform: python
            # Of a field that is left out.
        """
    )


def test_long_comments_are_wrapped_and_examples_are_not() -> None:
    made = ResourceDraft("name", {"model": {"platform": "python"}})
    made.comment("spec.model", "word " * 60 + "\n  " + "x" * 150)
    lines = made.text().splitlines()
    assert all(len(line) <= WIDTH for line in lines if "word" in line)
    assert f"  #   {'x' * 150}" in lines


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("My Model_v2.onnx", "my-model-v2-onnx"),
        ("854", "pipeline"),
        ("--x--", "x"),
        ("a" * 60, "a" * 40),
        ("größe", "gr-e"),
    ],
)
def test_names_are_made_of_anything(text: str, made: str) -> None:
    assert slug(text, 40) == made

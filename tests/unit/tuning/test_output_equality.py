"""Whether answers stay what they were."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support.messages import Messages
from triton_pipelines.tools.tuner.output_equality import output_difference

SCORES = np.array([[0.25, 0.75]], np.float32)
LABELS = np.array([[b"positive"]], object)


def test_equal_answers_are_equal_within_the_order_of_additions() -> None:
    assert (
        output_difference(
            [{"P": SCORES, "LABEL": LABELS}],
            [{"P": SCORES + np.float32(3e-5), "LABEL": LABELS.copy()}],
        )
        == ""
    )
    assert (
        output_difference(
            [{"P": SCORES.astype(np.float16)}],
            [{"P": SCORES.astype(np.float16) * np.float16(1.005)}],
        )
        == ""
    )
    assert output_difference([{"P": np.array([np.nan])}], [{"P": np.array([np.nan])}]) == ""


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (
            {"P": SCORES + np.float32(0.01), "LABEL": LABELS},
            r"0\.01",
        ),
        (
            {"P": SCORES, "LABEL": np.array([[b"negative"]], object)},
            "LABEL",
        ),
        (
            {"P": np.zeros((1, 3), np.float32), "LABEL": LABELS},
            r"\[1, 3\]",
        ),
        ({"P": SCORES}, "LABEL"),
        ({"P": SCORES, "LABEL": np.array([[1]])}, "'LABEL' differs"),
    ],
)
def test_other_answers_are_told(
    after: dict[str, np.ndarray], text: str, messages: Messages
) -> None:  # type: ignore[type-arg]
    before = {"P": SCORES, "LABEL": LABELS}
    assert re.search(text, output_difference([before, before], [before, after]))
    messages.check(output_difference([before, before], [before, after]))


def test_numbers_that_are_counted_are_compared_exactly() -> None:
    assert output_difference([{"N": np.array([1_000_000])}], [{"N": np.array([1_000_001])}]) != ""

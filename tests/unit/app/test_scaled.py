"""When scaling has something to say of a pipeline."""

from __future__ import annotations

import pytest

from tests.support import builders
from triton_pipelines.api.parse import parse
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.app.scaled import Counted, Watched, said_in, settling, telling
from triton_pipelines.pipeline import build
from triton_pipelines.reconcile.observed import Pod
from triton_pipelines.reconcile.scaling import Intent, View
from triton_pipelines.scaling.types import Action, Decision, Memory, Verdict

START = 1_000.0


def watched(said: str = "", slow: int = 60) -> Watched:
    pipeline, findings = parse(builders.document(scaling={"windows": {"slowSeconds": slow}}))
    assert pipeline is not None, findings
    return Watched(pipeline, build(pipeline, builders.options()), START, *said_in(status(said)))


def status(bottleneck: str, instances: int = 1) -> dict[str, object]:
    return {"scaling": {"bottleneck": bottleneck}, "steps": [{"name": "tokenizer", "instances": instances}]} if bottleneck else {}


def seen(found: Watched, instances: int) -> Watched:
    """With one pod that has reported so many tokenizers."""
    found.pods = (Pod.of({"metadata": {"name": "p", "uid": "u"}, "status": {}}),)
    found.counted = {"u": Counted(START, "", {"tokenizer": instances})}
    return found


def view(verdict: Verdict = Verdict.BALANCED, *, history: tuple[Action, ...] = (), mode: ScalingMode = ScalingMode.ACTIVE, message: str = "") -> View:
    return View(Decision((), verdict, Memory(history=history), message=message), mode)


@pytest.mark.parametrize("verdict", [Verdict.IDLE, Verdict.UNKNOWN, Verdict.OVERPROVISIONED])
def test_a_process_that_has_just_started_says_nothing_calm_against_its_predecessor(verdict: Verdict) -> None:
    assert settling(watched("Balanced"), verdict, START + 89)
    assert not settling(watched("Balanced"), verdict, START + 90)
    assert not settling(watched(verdict.value), verdict, START)


def test_what_is_not_calm_is_said_at_once_and_so_is_a_change() -> None:
    assert not settling(watched("Balanced"), Verdict.TOKENIZER_BOUND, START)
    acted = watched("Balanced")
    acted.intent = Intent({"tokenizer": 2}, "")
    assert not settling(acted, Verdict.IDLE, START)
    told = watched("Balanced")
    told.view = view()
    assert not settling(told, Verdict.IDLE, START)


def test_counts_that_the_status_does_not_tell_of_are_said_at_once() -> None:
    assert settling(seen(watched("Balanced"), 1), Verdict.IDLE, START)
    assert not settling(seen(watched("Balanced"), 2), Verdict.IDLE, START)


def test_that_what_was_not_calm_is_over_is_said_at_once() -> None:
    assert not settling(watched("TokenizerBound"), Verdict.BALANCED, START)
    assert settling(watched("TokenizerBound"), Verdict.UNKNOWN, START)


def test_of_a_new_pipeline_everything_is_said_but_that_nothing_is_known_yet() -> None:
    assert not settling(watched(), Verdict.IDLE, START)
    assert settling(watched(), Verdict.UNKNOWN, START + 29)
    assert not settling(watched(), Verdict.UNKNOWN, START + 30)


def test_digits_are_no_news_and_a_mode_a_verdict_or_an_action_is() -> None:
    before = telling(view(message="0.4 requests/s"))
    assert telling(view(message="0.5 requests/s")) == before
    assert telling(view(mode=ScalingMode.ADVISORY)) != before
    assert telling(view(Verdict.IDLE)) != before
    assert telling(view(history=(Action(START, "tokenizer", 1, 2, "why"),))) != before

"""Compare the validator with a real Triton.

The inputs are generated repositories, and a good one with every rule broken once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import nullbackend
from tests.support.differential import Differential, Repository, breaks, running
from tests.support.differential.fuzz import campaign
from tests.support.differential.good import add_model, good
from triton_pipelines.compile.validation import RuleId
from triton_pipelines.compile.validation.stricter_rules import LIMITS

pytestmark = pytest.mark.integration

# Draws of up to four repositories of a few models each.
_EXAMPLES = 150
_LOADS = 300
_SEED = 2451


@pytest.fixture(scope="module")
def differential(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    """One server for all comparisons of this file."""
    with running(tmp_path_factory.mktemp("differential") / "server") as result:
        yield result


def _good() -> Repository:
    return good(nullbackend.library().read_bytes())


def _broken(broken: breaks.Break) -> Repository:
    repository = _good()
    broken.change(repository)
    return repository


def test_the_good_repository_is_accepted_and_loads(differential: Differential) -> None:
    said, reasons = differential.outcome(_good())
    assert said == []
    assert reasons == dict.fromkeys(good().configs)


@pytest.mark.parametrize("broken", breaks.REFUSED, ids=str)
def test_one_broken_rule_is_refused_by_both(
    differential: Differential, broken: breaks.Break
) -> None:
    said, reasons = differential.outcome(_broken(broken))
    assert {(violation.model, violation.rule) for violation in said} == {
        (broken.model, broken.rule)
    }, said
    assert reasons[broken.model] is not None


@pytest.mark.parametrize("broken", breaks.LIMITED, ids=str)
def test_a_stated_limit_is_refused_by_the_validation_alone(
    differential: Differential, broken: breaks.Break
) -> None:
    said, reasons = differential.outcome(_broken(broken))
    assert {(violation.model, violation.rule) for violation in said} == {
        (broken.model, broken.rule)
    }, said
    assert broken.rule in LIMITS
    assert reasons[broken.model] is None


@pytest.mark.parametrize("broken", breaks.DEADLY, ids=str)
def test_what_would_fill_up_the_machine_is_refused_without_asking(
    differential: Differential, broken: breaks.Break
) -> None:
    assert {
        (violation.model, violation.rule) for violation in differential.judged(_broken(broken))
    } == {(broken.model, broken.rule)}


@pytest.mark.parametrize("broken", breaks.FATAL, ids=str)
def test_what_ends_the_server_is_refused(tmp_path: Path, broken: breaks.Break) -> None:
    repository = _broken(broken)
    with running(tmp_path / "server") as alone:
        assert {(violation.model, violation.rule) for violation in alone.judged(repository)} == {
            (broken.model, broken.rule)
        }
        assert alone.alone(repository, broken.model) is not None


def test_resources_of_both_kinds_are_refused_by_a_server_that_limits_rates(tmp_path: Path) -> None:
    group = (
        "instance_group {{ kind: KIND_CPU rate_limiter {{ resources {{ name: 'R' count: 1 global: "
        "{} }} }} }}"
    )
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 '
        "dims: 1 }"
    )
    for mixed in (False, True):
        repository = Repository({})
        for name, everywhere in (("a", True), ("b", not mixed)):
            add_model(name, f'backend: "null" {tensors} {group.format(str(everywhere).lower())}')(
                repository
            )
        with running(
            tmp_path / f"server-{mixed}",
            extra_args=["--rate-limit=execution_count"],
            rate_limiting=True,
        ) as limited:
            said, reasons = limited.outcome(repository)
        assert [violation.rule for violation in said] == ([RuleId.RATE_LIMITER] if mixed else [])
        assert any(reasons.values()) is mixed


def test_every_rule_is_broken_somewhere() -> None:
    covered = {
        broken.rule for broken in (*breaks.REFUSED, *breaks.LIMITED, *breaks.FATAL, *breaks.DEADLY)
    }
    assert covered | set(breaks.ELSEWHERE) == set(RuleId)
    assert not covered & set(breaks.ELSEWHERE)


@pytest.mark.timeout(300)
def test_generated_repositories_agree(
    differential: Differential, record_property: Callable[[str, object], None]
) -> None:
    campaign(differential, number=_SEED, examples=_EXAMPLES)
    counts = differential.counts
    record_property("figures", f"{counts}; rules met: {', '.join(sorted(counts.rules))}")
    assert counts.loads >= _LOADS
    assert counts.accepted >= _LOADS // 2
    assert counts.refused >= _LOADS // 10
    assert counts.disagreements == 0

"""Compare whole resources with a real Triton.

What the product accepts, Triton loads. What the product refuses by one of Triton's rules, Triton
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.differential import Differential, passages, resources, running
from tests.support.differential.engine import DisagreementError

pytestmark = pytest.mark.integration

_EXAMPLES = 600
_SEED = 907


@pytest.fixture(scope="module")
def differential(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    """One server whose every backend, python too, is the null backend: the configs count here."""
    with running(tmp_path_factory.mktemp("resources") / "server", python=False) as result:
        yield result


@pytest.mark.parametrize(
    "document", resources.samples(), ids=lambda document: str(document["metadata"]["name"])
)
def test_every_sample_loads(differential: Differential, document: resources.Document) -> None:
    tally = passages.Tally()
    passages.compare(differential, document, tally)
    newer = (document["spec"].get("ensemble") or {}).get("maxInflightRequests") is not None
    assert (tally.loaded, tally.refused) == ((0, 1) if newer else (1, 0)), (
        "a field of a newer Triton alone keeps a sample from loading here"
    )


@pytest.mark.timeout(300)
def test_generated_resources_agree(
    differential: Differential, record_property: Callable[[str, object], None]
) -> None:
    tally = passages.campaign(differential, number=_SEED, examples=_EXAMPLES)
    record_property("figures", str(tally))
    assert tally.loads >= 300
    assert tally.loaded >= 100
    assert tally.refused >= 20


def test_a_renderer_that_breaks_a_rule_is_noticed(
    differential: Differential, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = resources.through(dict(resources.samples()[0]))
    assert made.repository is not None
    next(iter(made.repository.configs.values())).max_batch_size = -1
    monkeypatch.setattr(passages, "through", lambda document: made)
    with pytest.raises(
        DisagreementError, match=r"the product accepts, Triton refuses:\n.*must be non-negative"
    ):
        passages.compare(differential, {}, passages.Tally())

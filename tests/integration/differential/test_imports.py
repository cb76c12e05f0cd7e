"""What `tritonpipe import` writes, a real Triton loads: the corpus, and random changes of it.

A seed that fails can be repeated with ``mutated(seed, folder)``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.differential import Differential, passages, running
from tests.support.differential.engine import DisagreementError
from tests.support.imports import imported
from tests.support.repository_mutations import NAMES, mutated
from triton_pipelines.tools.importer.import_notes import ModelRepositoryError

pytestmark = pytest.mark.integration
SEEDS = range(504)
NO_BACKEND = "unable to find backend library for backend"


@pytest.fixture(scope="module")
def differential(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    """One server whose every backend, python too, is the null backend: the configs count here."""
    with running(tmp_path_factory.mktemp("imports") / "server", python=False) as result:
        yield result


@pytest.mark.timeout(600)
def test_what_import_writes_is_loaded(
    differential: Differential, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    assert len(SEEDS) >= 500
    assert len(NAMES) <= len(SEEDS), "every repository of the corpus is changed at least once"
    tally, own = passages.Tally(), 0
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        mutated(seed, folder)
        try:
            made = imported(folder)
        except ModelRepositoryError:
            continue  # tests/unit/importing/test_mutations.py: whether it had to be refused
        finally:
            shutil.rmtree(folder)
        try:
            passages.compare(differential, made.document, tally)
        except DisagreementError as error:
            if NO_BACKEND not in str(error):
                error.add_note(f"seed {seed}")
                raise
            # A backend of the user's own, which only the user's image has.
            own += 1
    record_property("figures", f"{tally}; {own} with backends of their own")
    assert tally.loaded >= 250
    assert own <= 25

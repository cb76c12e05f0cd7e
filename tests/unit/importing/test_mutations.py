"""Whatever `tritonpipe import` writes, `tritonpipe validate` accepts.

504 random changes of the corpus take about 30 s of CPU. A seed that fails can be repeated with
``mutated(seed, folder)``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import imported
from tests.support.mutated_repository import MutatedRepository
from tests.support.repository_mutations import NAMES, mutated
from triton_pipelines.cli.documents import check_resource
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.validation import RuleId, ServerFacts, validate_repository
from triton_pipelines.tools.importer.import_notes import (
    InexpressibleRepositoryError,
    ModelRepositoryError,
)

BLOCKS = 12
SEEDS_PER_BLOCK = 42
# Triton would load these, but the import stops: the choice or the files of a user are needed.
NEEDS_USER = re.compile(
    "contains no ensemble; use --ensemble|extra0/config\\.pbtxt|does not exist; the directory "
    "contains|input is missing|model\\.json: the file with the engine arguments is missing"
)
# Limits of the resource, each with its field.
LIMITS = re.compile(
    r"maxBatchSize: must be at most 65536"
    r"|instances(\.groups\[\d+\])?\.count: must be at most 256"
    r"|dims: must have at most 16 items"
    r"|instances(\.groups\[\d+\])?\.gpus\[\d+\]: must be at most 63"
    r"|platform: backend 'tensorflow'|backend: 'Custom-Backend'"
    r"|instances\.profiles|instances\.groups.*profile|steps call different versions|gpus: must be"
)


def would_load(repository: MutatedRepository) -> bool:
    """Return whether Triton would load every model, as far as its own rules go."""
    facts = ServerFacts(
        release=(99, 12), files={name: _versions(repository, name) for name in repository.configs}
    )
    found = validate_repository(repository.configs, facts)
    return not repository.texts and not [
        one for one in found if one.rule not in (RuleId.LABELS, RuleId.TENSOR_NAME_TWICE)
    ]


def _versions(repository: MutatedRepository, name: str) -> Mapping[str, int]:
    folders = [path.name for path in (repository.folder / name).iterdir() if path.is_dir()]
    return {f"{folder}/": 0 for folder in folders if folder.isdigit()} or {"1/": 0}


def outcome(seed: int, folder: Path) -> tuple[str, str]:
    """Return what an import of one mutation did, and a message if it is wrong."""
    repository = mutated(seed, folder)
    loads = would_load(repository)
    where = f"seed {seed} {repository.applied}"
    try:
        made = imported(folder)
    except InexpressibleRepositoryError as error:
        return "inexpressible", "" if LIMITS.search(str(error)) or not loads else f"{where} {error}"
    except ModelRepositoryError as error:
        fine = not loads or NEEDS_USER.search(str(error))
        return "refused", "" if fine else f"{where} {error}"
    findings = check_resource("made", made.document, Options()).findings
    return "written", f"{where} {findings[0]}" if findings else ""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_import_writes_is_valid(block: int, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kind, problem = outcome(seed, folder)
        outcomes[kind] += 1
        wrong += [problem] if problem else []
    assert wrong == []
    # Refusing everything would be no import.
    assert outcomes["written"] >= SEEDS_PER_BLOCK // 2, outcomes


def test_every_repository_of_the_corpus_is_mutated() -> None:
    assert SEEDS_PER_BLOCK * BLOCKS >= 500
    assert len(NAMES) <= SEEDS_PER_BLOCK


def test_a_mutation_is_repeated_by_its_seed(tmp_path: Path) -> None:
    def configs(folder: Path) -> dict[str, Any]:
        folder.mkdir()
        return {name: str(config) for name, config in mutated(7, folder).configs.items()}

    assert configs(tmp_path / "a") == configs(tmp_path / "b")

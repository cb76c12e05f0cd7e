"""Test that the API accepts each example in the user's guide to sources.

Each rule of its table is a source map.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from triton_pipelines.api.loadplan import LoadReason
from triton_pipelines.api.source import SCHEMES, ModelSource
from triton_pipelines.loader.uris import SourceMap

GUIDE = "\n".join(
    (Path(__file__).parents[3] / "docs/user" / page).read_text(encoding="utf-8")
    for page in ("sources.md", "loading.md", "air-gapped.md")
)
# Others show parts of a whole resource.
EXAMPLES = re.findall(r"```yaml\n(source:.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid_sources(example: str) -> None:
    document = yaml.safe_load(example)
    assert list(document) == ["source"]
    source = ModelSource.model_validate(document["source"])
    assert all(rule.holds(source) for rule in ModelSource.rules)


def test_every_scheme_has_an_example() -> None:
    shown = {yaml.safe_load(example)["source"]["uri"].partition("://")[0] for example in EXAMPLES}
    assert shown == set(SCHEMES)


def test_every_reason_is_explained() -> None:
    for reason in LoadReason:
        assert f"| `{reason.value}` |" in GUIDE


@pytest.mark.parametrize("rule", re.findall(r"^\| `(\S+=\S+)` \|", GUIDE, re.MULTILINE))
def test_rules_of_the_guide_are_source_maps(rule: str) -> None:
    assert SourceMap.parse([rule]).apply(rule.partition("=")[0] + "org/name").mapped

"""Compare the product's verdicts on whole resources with those of a real Triton.

Triton gets the configs that are rendered from the resources.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

from triton_pipelines.api import Finding
from triton_pipelines.compile.validation import RuleId
from triton_pipelines.compile.validation.stricter_rules import DEADLY, LIMITS

from .engine import Differential, DisagreementError, Repository
from .resources import Document, documents, through

_RULES: Final = frozenset(RuleId) - frozenset(LIMITS)
"""Rules of the validation that Triton has, too: a finding with such a code claims its refusal."""

_FILES_OF_THE_IMAGE: Final = frozenset({RuleId.RUNTIME})
"""Rules over files in Triton's image, which the product cannot read before a pod runs it."""

# What the checks of connections say about a tensor that Triton compares as well.
_INCONSISTENT: Final = re.compile(r"^inconsistent (data type|shape): ")
# Triton takes equal dims where one side alone batches, and then fails every batch of two or more
# rows.
_ONE_SIDE_BATCHES: Final = "since only one side batches"


@dataclass
class Tally:
    """What the comparisons came to, in resources.

    Attributes:
        loaded: accepted, and every model of it loaded.
        refused: refused by both sides.
        unrendered: refused, and no config can be made of them.
        image: accepted, and refused for want of a file of the image.
        own: refused for the product's own reasons, and Triton loads them; by what the first finding
            says.
        loads: models that Triton was asked to load.
    """

    loaded: int = 0
    refused: int = 0
    unrendered: int = 0
    image: int = 0
    loads: int = 0
    own: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        resources = self.loaded + self.refused + self.unrendered + self.image + self.own.total()
        return (
            f"{self.loads} real loads of {resources} resources: accepted and loaded {self.loaded},"
            f" refused by both {self.refused}, refused by the product's own rules"
            f" {self.own.total()}, refused and not to be rendered {self.unrendered}, refused for"
            f" files of the image {self.image}, disagreements 0"
        )


def compare(differential: Differential, document: Document, tally: Tally) -> None:
    """Take one resource through the product and ask Triton.

    Raises:
        DisagreementError: an accepted resource does not load, or one loads that the judge refused,
            or that was refused for no stated reason.
    """
    passage = through(document)
    if passage.repository is None:
        tally.unrendered += 1
        return
    if passage.findings and any(
        violation.rule in DEADLY for violation in differential.judged(passage.repository)
    ):
        tally.unrendered += 1
        return
    reasons = {
        name: reason
        for name, reason in differential.served(passage.repository).items()
        if reason is not None
    }
    tally.loads += len(passage.repository.configs)
    if not passage.findings and not reasons:
        tally.loaded += 1
    elif passage.findings and reasons:
        tally.refused += 1
    elif reasons and _lacks_only_files_of_the_image(differential, passage.repository):
        tally.image += 1
    elif reasons:
        raise DisagreementError(
            _report(
                "the product accepts, Triton refuses",
                document,
                "\n".join(f"{name}: {text}" for name, text in reasons.items()),
            )
        )
    elif claimed := [finding for finding in passage.findings if claims_triton(finding)]:
        raise DisagreementError(
            _report(
                "the product refuses by a rule of Triton's, Triton loads",
                document,
                "\n".join(map(str, claimed)),
            )
        )
    else:
        tally.own[_kind(passage.findings[0])] += 1


def _lacks_only_files_of_the_image(differential: Differential, repository: Repository) -> bool:
    """Return whether the validation explains a refusal once it knows the files of the image."""
    rules = {violation.rule for violation in differential.judged(repository)}
    return bool(rules) and rules <= _FILES_OF_THE_IMAGE


def claims_triton(finding: Finding) -> bool:
    """Return whether a finding claims that Triton would refuse to load the resource.

    All others are rules of the product: Triton loads the resource and then answers wrongly, or the
    null backend accepts what a real one would not. Many of their messages name Triton, so the code
    decides. Only the checks of connections share their codes with rules of the product.
    """
    if finding.code in _RULES:
        return True
    return bool(_INCONSISTENT.match(finding.message)) and _ONE_SIDE_BATCHES not in finding.message


def _kind(finding: Finding) -> str:
    """What a finding says, without the names and numbers of the one resource."""
    return re.sub(r"'[^']*'|\[[^\]]*\]|-?[0-9]+", "…", finding.message)[:80]


def campaign(differential: Differential, number: int, examples: int) -> Tally:
    """Compare ``examples`` resources, those of seed ``number``.

    Raises:
        DisagreementError: the first one.
    """
    tally = Tally()

    @seed(number)
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(documents())
    def ask(document: Document) -> None:
        compare(differential, document, tally)

    ask()
    return tally


def _report(what: str, document: Document, said: str) -> str:
    return f"{what}:\n{said}\n---\n{yaml.safe_dump(document, sort_keys=False, allow_unicode=True)}"

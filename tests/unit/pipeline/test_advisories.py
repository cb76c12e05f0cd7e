"""Which security bulletins and fatal requests affect a release, and who is warned of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.builders import built, options
from tests.support.messages import Messages
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph.advisories import (
    AdvisorySeverity,
    advisories_of,
    describe_advisories,
    fatal_requests_of,
    known_problems,
    lint_server,
    release_of_version,
    server_image,
    spelled,
)
from triton_pipelines.compile.graph.options import DEFAULT_FAMILY_IMAGES, DEFAULT_SERVER_IMAGE
from triton_pipelines.compile.graph.server_settings import server_version

DEFAULTS = {"default": DEFAULT_SERVER_IMAGE, **DEFAULT_FAMILY_IMAGES}


def affecting(release: tuple[int, int] | None) -> set[str]:
    return {one.id for one in advisories_of(release)}


def codes(image: str, **changes: Any) -> list[str]:
    subject = built(**changes)
    return [str(finding.code) for finding in lint_server(subject.pipeline, subject.graph, image)]


def test_the_data_file_is_complete() -> None:
    known = known_problems()
    ids = [one.id for one in known.advisories]
    assert len(ids) == len(set(ids))
    for one in (*known.advisories, *known.fatal_requests):
        assert one.source.startswith("https://"), one.id
        assert 1 <= one.fixed_in[1] <= 12, one.id
        assert one.effect, one.id
    for advisory in known.advisories:
        assert re.fullmatch(r"\d{4}", advisory.id)
        assert f"/{advisory.id}/" in advisory.source
        assert re.fullmatch(r"[A-Z][^.]+\.", advisory.effect), advisory.effect
        assert advisory.since is None or advisory.since < advisory.fixed_in


@pytest.mark.parametrize(
    ("release", "ids", "others"),
    [
        ((24, 10), {"5687", "5691", "5828", "5865"}, {"5565", "5612"}),
        ((24, 11), {"5612"}, {"5565"}),
        ((25, 6), {"5687"}, set()),
        ((25, 7), {"5691"}, {"5687"}),
        ((26, 2), {"5828", "5860"}, {"5816"}),
        ((26, 3), {"5865"}, {"5828"}),
        ((26, 6), {"5875"}, {"5865"}),
    ],
    ids=lambda value: "-".join(map(str, sorted(value))) or "none",
)
def test_a_release_is_affected_until_the_fix(
    release: tuple[int, int], ids: set[str], others: set[str]
) -> None:
    assert affecting(release) >= ids
    assert not affecting(release) & others


def test_an_unknown_release_is_not_validated() -> None:
    assert advisories_of(None) == fatal_requests_of(None) == ()
    assert describe_advisories(None) is None


@pytest.mark.parametrize("family", DEFAULTS)
def test_the_default_images_are_not_affected(family: str) -> None:
    release = server_version(None, DEFAULTS[family])
    assert release is not None
    assert advisories_of(release) == fatal_requests_of(release) == ()


def test_the_message_names_the_critical_ones_and_the_release_that_fixes_all() -> None:
    subject = built()
    (text, *_) = (
        one.message for one in lint_server(subject.pipeline, subject.graph, "x:24.10-py3")
    )
    found = advisories_of((24, 10))
    critical = [one.id for one in found if one.severity is AdvisorySeverity.CRITICAL]
    assert f"{len(found)} NVIDIA security bulletins" in text
    assert f"critical ({', '.join(critical)})" in text
    fixed = max(one.fixed_in for one in found)
    assert f"use Triton release {spelled(fixed)} or later" in text
    assert advisories_of(fixed) == ()


def test_the_running_image_gets_advisories() -> None:
    """The resource's, else the operator's, and server.version for tags without a release."""
    advisory = FindingCode.SERVER_ADVISORY.value
    assert advisory in codes("x:24.10-py3")
    assert codes("x:26.07-py3") == []
    assert advisory in codes("x:latest", server={"version": "26.01"})
    assert codes("x:latest") == []
    subject = built(server={"image": "own:25.01"})
    assert server_image(subject.pipeline, subject.graph, options()) == "own:25.01"


def test_a_text_output_can_end_an_older_server(messages: Messages) -> None:
    fatal = FindingCode.FATAL_REQUEST.value
    assert codes("x:25.06-py3").count(fatal) == 1
    assert fatal not in codes("x:25.07-py3")
    assert fatal not in codes("x:25.06-py3", postprocess=None)
    subject = built()
    (finding,) = (
        one
        for one in lint_server(subject.pipeline, subject.graph, "x:24.10-py3")
        if one.code == fatal
    )
    assert "postprocess.LABEL" in finding.message
    messages.check(finding.message)


@pytest.mark.parametrize(
    ("version", "release"), [("2.51.0", (24, 10)), ("2.50.0", (24, 9)), ("9.9.9", None), ("", None)]
)
def test_the_release_of_a_local_server(version: str, release: tuple[int, int] | None) -> None:
    assert release_of_version(version) == release

"""The Grafana dashboards as Grafana reads them."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from hack import monitoring
from hack.dashboards import alerts, grafana
from tests.support import dashboards

DOCUMENTS = dashboards.documents()
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, document in DOCUMENTS.items()
    for panel in dashboards.panels(document)
]
# https://grafana.com/docs/grafana/latest/dashboards/variables/add-template-variables/
BUILT_IN = {"__all", "__rate_interval", "__url_time_range", "__field", "__data"}
# Grafana's names of units that mean something for these figures.
UNITS = {"short", "s", "reqps", "ops", "percentunit", "bytes", "none"}
NAMED = re.compile(r"\$(?:\{([a-z_]\w*)|([a-z_]\w*))")


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    """Return the cells of the grid that a panel covers."""
    place = panel["gridPos"]
    return set(
        itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    )


def test_no_file_lacks_a_description() -> None:
    found = {path.name for path in (monitoring.CHART_FILES / "dashboards").iterdir()}
    assert found == {path.name for path in dashboards.FILES} == {"overview.json", "pipeline.json"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_panels_do_not_overlap_and_have_ids_of_their_own(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DOCUMENTS[name]["panels"]:
        mine = cells(panel)
        assert max(x for x, _ in mine) < grafana.COLUMNS, panel["title"]
        assert not taken & mine, panel["title"]
        taken |= mine
    ids = [panel["id"] for panel in DOCUMENTS[name]["panels"]]
    assert sorted(set(ids)) == sorted(ids)


def test_dashboards_have_ids_of_their_own_and_link_to_each_other() -> None:
    uids = {document["uid"] for document in DOCUMENTS.values()}
    assert uids == {"triton-pipelines-overview", "triton-pipelines-pipeline"}
    for document in DOCUMENTS.values():
        assert len(document["uid"]) <= 40  # Grafana's limit
        others, runbooks = document["links"]
        assert others["type"] == "dashboards"
        assert set(others["tags"]) <= set(document["tags"])
        assert runbooks["url"].startswith("${docs_url}/runbooks/")
    links = {
        link["url"].partition("?")[0]
        for panel in dashboards.panels(DOCUMENTS["overview"])
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())
    }
    assert links == {"/d/triton-pipelines-pipeline"}


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].rstrip().endswith(".")
    if panel["type"] == "text":
        return
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    if panel["type"] == "timeseries":
        assert defaults["custom"]["axisLabel"]
        assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("panel", PANELS)
def test_every_query_is_of_the_chosen_source_and_has_an_id(panel: dict[str, Any]) -> None:
    targets = panel.get("targets", [])
    assert bool(targets) == (panel["type"] != "text")
    assert len({target["refId"] for target in targets}) == len(targets)
    for target in targets:
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert target["instant"] is (panel["type"] in ("table", "stat"))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_variables_are_defined_and_used(name: str) -> None:
    document = DOCUMENTS[name]
    defined = {variable["name"] for variable in document["templating"]["list"]}
    named = {found[1] or found[2] for found in NAMED.finditer(json.dumps(document))}
    assert named - BUILT_IN == defined == {"datasource", "namespace", "pipeline", "docs_url"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_query_is_limited_to_the_chosen_namespaces(name: str) -> None:
    """All but those about the operator itself."""
    operator = {"Does the operator keep up?", "Is the operator healthy?"}
    row = ""
    for panel in DOCUMENTS[name]["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        if row in operator:
            continue
        for target in panel.get("targets", ()):
            for found in dashboards.METRIC.finditer(target["expr"]):
                matchers = target["expr"][found.end() :].partition("}")[0]
                assert matchers.startswith("{"), target["expr"]
                assert "$namespace" in matchers, target["expr"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_alert_is_explained_and_linked(name: str) -> None:
    (text,) = (
        panel["options"]["content"]
        for panel in dashboards.panels(DOCUMENTS[name])
        if panel["type"] == "text"
    )
    runbook = (monitoring.ROOT / monitoring.RUNBOOKS).read_text(encoding="utf-8")
    linked = re.findall(r"\[(\w+)\]\(\$\{docs_url\}/runbooks/alerts\.md#(\w+)\)", text)
    assert all(anchor == alert.lower() and f"## {alert}\n" in runbook for alert, anchor in linked)
    expected = {rule["alert"] for rule in monitoring.alerts()}
    if name == "pipeline":
        expected = {alert for alert in expected if not alert.startswith("TritonPipelines")}
    assert {alert for alert, _ in linked} == expected


def test_a_runbook_without_a_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match="section NoSuchAlert has no paragraph"):
        alerts.meanings([{"alert": "NoSuchAlert", "annotations": {}}])

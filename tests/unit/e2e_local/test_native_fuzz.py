"""What a fuzzing run reports about its coverage."""

from __future__ import annotations

from tests.support.nativefuzz import Coverage, coverage

LINES = [
    (0.0, "INFO: Seed: 1\n"),
    (1.0, "#512\tpulse  cov: 90 ft: 100 corp: 3/3b exec/s: 1 rss: 50Mb\n"),
    (5.0, "#4982\tINITED cov: 100 ft: 900 corp: 4/4b exec/s: 900 rss: 60Mb\n"),
    (9.0, "#5000\tNEW    cov: 100 ft: 901 corp: 5/5b lim: 20 exec/s: 900 rss: 60Mb L: 2/3\n"),
    (17.0, "#6000\tNEW    cov: 103 ft: 905 corp: 6/6b lim: 20 exec/s: 900 rss: 60Mb L: 2/3\n"),
    (20.0, "#7000\tREDUCE cov: 103 ft: 905 corp: 6/5b lim: 20 exec/s: 900 rss: 60Mb L: 2/3\n"),
    (65.0, "#9000\tDONE   cov: 103 ft: 905 corp: 6/5b lim: 20 exec/s: 150 rss: 60Mb\n"),
    (65.1, "stat::number_of_executed_units: 9000\n"),
]


def test_the_time_of_the_last_new_edge_is_reported() -> None:
    found = coverage(LINES)
    assert found == Coverage(9000, 100, 103, 60.0, 12.0)
    assert str(found).endswith("the last new edge after 12 s")


def test_a_run_without_growth_says_so() -> None:
    found = coverage([*LINES[:4], (65.0, LINES[3][1].replace("NEW   ", "DONE  "))])
    assert found == Coverage(5000, 100, 100, 60.0, None)
    assert str(found).endswith("no new edge")


def test_a_corpus_that_was_not_read_has_no_coverage() -> None:
    assert coverage(LINES[:2]) is None

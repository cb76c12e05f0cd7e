"""Settings of hypothesis for all tests, and its early import.

Its pytest plugin would otherwise import it in the terminal summary, where a garbage collection
inside ``ast.parse`` (assertion rewriting) ends pytest with "AST constructor recursion depth
mismatch" on CPython 3.11.7, long after all tests have passed.

Examples have no deadline: a busy machine makes them slow, never wrong. They are the same in every
run, so that a failure is caused by the change; ``HYPOTHESIS_PROFILE=explore`` draws new ones. A
failure prints how to repeat it. The phase that looks for a cause of it traces every line and has
never named one, so it is left out.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

from tests.support import messages as golden_messages

# For tests that import ONNX Runtime themselves: tests send no usage data to anybody.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "phases": set(Phase) - {Phase.explain},
    "print_blob": True,
}
settings.register_profile("repeatable", derandomize=True, **_COMMON)
settings.register_profile("explore", derandomize=False, **_COMMON)
settings.load_profile(_PROFILE)
if _PROFILE == "repeatable":
    # Hypothesis also draws constants that it reads from every local module imported so far. Then
    # examples depend on which tests ran before, and on any constant in the code.
    providers.is_local_module_file = lambda path: False


def pytest_collection_finish() -> None:
    """Exclude from garbage collection what lives until the end: modules, imports, items."""
    _collect_and_freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Do it again after each file, for what was imported or cached since."""
    if nextitem is None or nextitem.path != item.path:
        _collect_and_freeze()


def _collect_and_freeze() -> None:
    """Free what is unused, and let later collections skip what is left.

    Otherwise a full collection takes up to 0.3 s, and code that frees memory by one runs it
    hundreds of times.
    """
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-messages",
        metavar="FILE",
        help="run only the tests that check messages, and write the golden messages to FILE",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--write-messages", default=None):
        fixture = golden_messages.FIXTURE
        items[:] = [item for item in items if fixture in getattr(item, "fixturenames", ())]


@pytest.fixture
def messages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[golden_messages.Messages]:
    """The golden messages of this test: ``tests/support/messages.py``."""
    written = request.config.getoption("--write-messages", default=None)
    checked = golden_messages.of_test(
        request.node.nodeid, tmp_path_factory.getbasetemp(), rewrite=written is not None
    )
    request.node.user_properties.append((golden_messages.PROPERTY, checked.seen))
    failed = request.session.testsfailed
    yield checked
    if request.session.testsfailed == failed:
        checked.finish()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the property ``figures`` of tests; with ``--write-messages``, write their messages.

    Properties also arrive from parallel workers.
    """
    recorded: dict[str, list[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(f"{report.nodeid}: {value}")
            elif name == golden_messages.PROPERTY:
                recorded[report.nodeid] = value
    written = terminalreporter.config.getoption("--write-messages", default=None)
    if written is None or hasattr(terminalreporter.config, "workerinput"):
        return  # A parallel worker has only a part of them.
    if terminalreporter.getreports("failed") or terminalreporter.getreports("error"):
        terminalreporter.write_line("tests failed, so the golden messages are not written")
        return
    content = golden_messages.merged(golden_messages.golden(), recorded)
    Path(written).write_text(golden_messages.text_of(content), encoding="utf-8")

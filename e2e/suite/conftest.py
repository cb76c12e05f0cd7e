"""Fixtures of the end-to-end suite.

There is one cluster and one installation of the chart per run (or worker), and one namespace per
test.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest

from e2e.load.record import Summary
from e2e.local.cluster import PRODUCT_IMAGES, Cluster
from e2e.local.images import SAMPLES_IMAGE, build
from e2e.suite import diagnostics
from e2e.suite.access import (
    Access,
    AccessError,
    Images,
    choose,
    keep,
    own_cluster,
    require_one_worker,
)
from e2e.suite.installation import Installation, namespace, remove_namespaces
from e2e.suite.kube import Kube
from e2e.suite.measured import Record, record
from e2e.suite.pipelines import Pipeline
from e2e.suite.reach import Endpoint, Reach
from e2e.suite.tiny import TinyPipeline

TEST_SECONDS = 300
NewNamespace = Callable[[], str]


def pytest_configure(config: pytest.Config) -> None:
    """Refuse several workers on one cluster before any of them starts."""
    try:
        require_one_worker(os.environ, config.getoption("numprocesses", None) or 0)
    except AccessError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of the suite.

    The time limit covers only the test itself, because fixtures may build images first.
    """
    for item in items:
        if item.path.parent == diagnostics.FOLDER.parents[1] / "e2e" / "suite":
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect diagnostics while the objects are still there."""
    report = yield
    if report.failed and call.when in ("setup", "call"):
        fixtures = getattr(item, "funcargs", {})
        kept = item.session.stash.get(INSTALLATION, None)
        if kept is not None:
            known = item.session.stash.setdefault(SPACES, [])
            spaces = sorted(
                {value.namespace for value in fixtures.values() if isinstance(value, Pipeline)}
                | set(known)
            )
            folder = diagnostics.collect(f"{item.path.stem}-{item.name}", kept, spaces)
            report.sections.append(("diagnostics", f"collected in {folder}"))
    return report


INSTALLATION = pytest.StashKey[Installation]()
SPACES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def archives() -> dict[str, Path]:
    """Return archives of the default images by name.

    They are built once, so that an edit during the run changes nothing.
    """
    return {reference: build.ensure(reference) for reference in (*PRODUCT_IMAGES, SAMPLES_IMAGE)}


@pytest.fixture(scope="session")
def access(request: pytest.FixtureRequest) -> Iterator[Access]:
    """Return the cluster to use.

    Without `KUBECONFIG`, a local one is started and removed afterwards unless `KEEP=1`.
    """
    try:
        chosen = choose(os.environ)
    except AccessError as error:
        pytest.exit(f"error: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
    with contextlib.ExitStack() as stack:
        if chosen is None:
            own = Cluster(own_cluster())
            stack.enter_context(own.reserved())
            if not keep():
                stack.callback(own.down)
            own.up(images=())
            chosen = Access(own.kubeconfig, own.context, own, temporary=not keep())
        if chosen.local is not None:
            for archive in request.getfixturevalue("archives").values():
                chosen.local.load_image(str(archive))
        yield chosen


@pytest.fixture(scope="session")
def kube(access: Access) -> Iterator[Kube]:
    """The cluster, as its administrator."""
    client = Kube(access.kubeconfig, access.context)
    yield client
    client.close()


@pytest.fixture(scope="session")
def installation(
    access: Access, kube: Kube, request: pytest.FixtureRequest
) -> Iterator[Installation]:
    """The operator from the chart and the samples' server.

    Both are taken out at the end, unless the cluster goes with them or `KEEP=1`.
    """
    images = Images.of(os.environ)
    built = (
        request.getfixturevalue("archives").get(images.operator)
        if access.local is not None
        else None
    )
    made = Installation(kube, images, build=built.stem if built else "")
    request.session.stash[INSTALLATION] = made
    remove_namespaces(kube)
    made.install()
    yield made
    if not (keep() or access.temporary):
        made.uninstall()


@pytest.fixture(scope="session")
def reach(kube: Kube) -> Reach:
    """How clients get to Services."""
    return Reach(kube)


def _spaces(kube: Kube, request: pytest.FixtureRequest, title: str) -> Iterator[NewNamespace]:
    made: list[str] = []
    known = request.session.stash.setdefault(SPACES, [])
    failed = request.session.testsfailed

    def new() -> str:
        short = (
            re.sub(r"[^a-z0-9]+", "-", title.lower().removeprefix("test_"))
            .strip("-")[:40]
            .strip("-")
        )
        name = f"e2e-{short}-{uuid.uuid4().hex[:5]}"
        kube.apply(namespace(name))
        made.append(name)
        known.append(name)
        return name

    yield new
    for name in made:
        known.remove(name)
        if not (keep() and request.session.testsfailed > failed):
            kube.delete("Namespace", None, name)


@pytest.fixture
def new_namespace(
    kube: Kube, installation: Installation, request: pytest.FixtureRequest
) -> Iterator[NewNamespace]:
    """Makes namespaces for one test; they are deleted after it (without waiting)."""
    yield from _spaces(kube, request, request.node.name)


@pytest.fixture(scope="module")
def module_namespace(
    kube: Kube, installation: Installation, request: pytest.FixtureRequest
) -> Iterator[str]:
    """Provide a namespace that a module's tests share.

    It is for pipelines that each test only reads or brings back to the state before it.
    """
    for new in _spaces(kube, request, request.node.path.stem):
        yield new()


@pytest.fixture
def test_namespace(new_namespace: NewNamespace) -> str:
    """This test's own namespace, enforcing the restricted Pod Security Standard."""
    return new_namespace()


@pytest.fixture
def pipeline(kube: Kube, test_namespace: str) -> Pipeline:
    """A handle on the pipeline `sentiment` in this test's namespace; nothing is applied yet."""
    return Pipeline(kube, test_namespace, "sentiment")


@pytest.fixture
def open_endpoint(reach: Reach) -> Iterator[Callable[[Pipeline], Endpoint]]:
    """Opens ways to pipelines for the time of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda item: stack.enter_context(reach.service(item.namespace, item.name))


@pytest.fixture
def tiny(kube: Kube, test_namespace: str, reach: Reach) -> TinyPipeline:
    """Return a handle on a pipeline that starts in seconds, in this test's namespace.

    Only its sources are applied.
    """
    return _tiny(kube, test_namespace, reach)


@pytest.fixture(scope="module")
def module_tiny(kube: Kube, module_namespace: str, reach: Reach) -> TinyPipeline:
    """Return a handle on a pipeline that a module's tests share.

    Only its sources are applied.
    """
    return _tiny(kube, module_namespace, reach)


def _tiny(kube: Kube, namespace: str, reach: Reach) -> TinyPipeline:
    if not reach.routed:
        pytest.skip(
            "the cluster's service range is not routed here: a forwarded port ends at one pod"
        )
    return TinyPipeline(kube, namespace, reach)


@pytest.fixture
def measured(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Record:
    """Keeps and prints figures of a load under a case's name."""

    def keep_figures(case: str, summaries: Mapping[str, Summary]) -> None:
        with capsys.disabled():
            record("rollout", case, summaries)

    return keep_figures

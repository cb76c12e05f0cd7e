"""How a new revision takes over on a real node, with clients on the pipeline all the while."""

import pytest

from e2e.suite.kube import Kube
from e2e.suite.reach import Reach
from e2e.suite.tiny import TinyPipeline


@pytest.fixture
def tiny(kube: Kube, test_namespace: str, reach: Reach) -> TinyPipeline:
    """The tiny pipeline in this test's namespace; only its sources are applied."""
    return TinyPipeline(kube, test_namespace, reach)


@pytest.mark.parametrize("replicas", [1, 2])
def test_surge_loses_no_request(tiny: TinyPipeline, replicas: int) -> None:
    tiny.serve("old", replicas=replicas)
    with tiny.load() as load:
        tiny.change("new")
        tiny.wait_ready()
        load.wait_requests()
    print(*load.summary().values(), sep="\n")
    for o in load.outcomes:
        if o.error:
            print(o)
    for client in ("grpc", "http-new-connection"):
        assert load.summary()[client].failed == 0

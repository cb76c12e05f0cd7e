"""Every model that the good corpus and the samples are rendered to loads in a real Triton.

Its core, which judges configs, is real; its backends are the null backend, under the names of those
that the machine lacks (see tests/support/nullbackend). What the machine or this Triton cannot have
is taken out of a config first.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from tests.corpus import good
from tests.support import nullbackend
from tests.support.differential import Differential, Repository, running
from tests.support.fields import resources_in
from tests.support.meaning import models_of
from triton_pipelines.api.names import NATIVE_TOKENIZER_BACKEND

pytestmark = pytest.mark.integration

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
KINDS = model_config_pb2.ModelInstanceGroup
OWN_BACKENDS = ("python", NATIVE_TOKENIZER_BACKEND)
STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
RESOURCES = [
    *(pytest.param(sample.document, id=sample.name) for sample in good()),
    *(pytest.param(document, id=f"sample-{file.stem}") for file, document in resources_in(SAMPLES)),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    """A Triton with the null backend."""
    with running(
        tmp_path_factory.mktemp("fields") / "server",
        extra_args=["--cache-config=local,size=1048576"],
    ) as differential:
        yield differential


def _loadable(config: Any) -> Any:
    """A config for this machine.

    No GPU, release 24.10, own backends stood in for, no library to load.
    """
    config.backend = nullbackend.NAME if config.backend in OWN_BACKENDS else config.backend
    for group in config.instance_group:  # no GPU at hand
        group.kind = KINDS.KIND_CPU if group.kind == KINDS.KIND_GPU else group.kind
        del group.gpus[:], group.profile[:]
    if config.HasField("ensemble_scheduling"):
        config.ensemble_scheduling.ClearField("max_inflight_requests")  # server 25.11
    config.parameters.pop(
        STRATEGY, None
    )  # shown with real libraries in behaviour/test_batch_strategy.py
    return config


def _versions(config: Any) -> dict[str, bytes]:
    """Version folders.

    Three where the config chooses among them, else the one that is always there.
    """
    return {
        f"{number}/": b"" for number in ((1, 2, 3) if config.HasField("version_policy") else (1,))
    }


@pytest.mark.proves_files(
    "tests/corpus/good",
    "loaded",
    "spec.*.instances.gpus",
    "spec.*.instances.profiles",
    "spec.ensemble.maxInflightRequests",
    "spec.*.batchStrategy.path",
)
@pytest.mark.parametrize("document", RESOURCES)
def test_what_is_rendered_loads(server: Differential, document: dict[str, Any]) -> None:
    configs = {name: _loadable(config) for name, config in models_of(document).items()}
    violations, reasons = server.outcome(
        Repository(configs, {name: _versions(config) for name, config in configs.items()})
    )
    assert {name: reason for name, reason in reasons.items() if reason is not None} == {}
    assert list(map(str, violations)) == []


def test_a_wrong_config_does_not_load(server: Differential) -> None:
    """Else the above would say nothing."""
    document = next(sample for sample in good() if sample.name == "everything").document
    configs = {name: _loadable(config) for name, config in models_of(document).items()}
    broken = next(config for config in configs.values() if config.HasField("dynamic_batching"))
    broken.dynamic_batching.preferred_batch_size.append(broken.max_batch_size + 1)
    _, reasons = server.outcome(Repository(configs))
    assert "must be <= max batch size" in str(reasons[broken.name])

"""A step that accepts fewer rows than the model limits the ensemble.

The tuner measures what such a pipeline accepts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.serving import ROOT, sample_sources
from triton_pipelines.cli.local_pipeline import serve_locally
from triton_pipelines.tools.loadgen import TextLengths
from triton_pipelines.tools.tuner import BatchingSetting, TuningOptions, TuningTarget
from triton_pipelines.tools.tuner.measured_server import MeasuredServer
from triton_pipelines.tools.tuner.profiling import profile
from triton_pipelines.tools.tuner.workload import workload

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
ROWS = 4
CODE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAME", text)]) for text in texts]
"""  # noqa: E501


async def test_requests_have_no_more_rows_than_the_smallest_step_takes(tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "bench" / "gpu-step.yaml").read_text())
    text = {"name": "TEXT", "dataType": "STRING", "dims": [1], "from": "pipeline.TEXT"}
    document["spec"]["steps"] = [
        {"name": "same", "platform": "python", "maxBatchSize": ROWS, "inputs": [text],
         "outputs": [{"name": "SAME", "dataType": "STRING", "dims": [1]}],
         "python": {"code": {"inline": CODE}}}
    ]  # fmt: skip
    document["spec"]["tokenizer"] |= {"inputs": {"textFrom": "same.SAME"}, "maxBatchSize": 16}
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document))
    with serve_locally(
        file, [rule.removeprefix("--source-map=") for rule in sample_sources()]
    ) as running:
        target = TuningTarget(
            running.server.grpc_address, running.rebuild, url=running.server.http_url
        )
        async with MeasuredServer(target, running.pipeline, running.graph) as server:
            settings = TuningOptions(lengths=TextLengths(32, 0.3, 64), cores=1.0)
            work = await workload(server.client, running.pipeline, running.graph, settings)
            found = await profile(
                server, running.graph, work, [BatchingSetting(16, 0, 1, 1)], 10.0, seconds=2.0
            )
            assert server.most_rows == ROWS
            assert server.failed == 0
    assert max(sample.rows for sample in found.samples["tokenizer"] if sample.requests == 1) <= ROWS

"""The comparison with other servers: losses are found, tables have one number per cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from bench import pages
from bench.server_comparison import environments, figures, models, tables
from bench.server_comparison.figures import Sample

OURS, MOSEC, FAR = "pipeline", "mosec", "far away"
FAST, SLOW = Sample(200.0, 0.01, 0.05, 1e-4), Sample(100.0, 0.02, 0.08, 3e-4)


def test_a_baseline_with_more_requests_at_its_p99_is_a_loss() -> None:
    found = figures.request_losses("one text", [{OURS: [SLOW]}], {MOSEC: [FAST]})
    assert [(loss.baseline, loss.ours, loss.theirs) for loss in found] == [(MOSEC, 0.0, 200.0)]


def test_a_smaller_number_of_clients_counts_for_the_pipeline() -> None:
    few_clients = {OURS: [replace(FAST, p99_s=0.04)]}
    crowded = {OURS: [replace(FAST, p99_s=0.5)]}
    assert figures.request_losses("one text", [crowded], {MOSEC: [SLOW]})
    assert not figures.request_losses("one text", [crowded, few_clients], {MOSEC: [SLOW]})


def test_less_cpu_time_of_a_baseline_is_a_loss_unless_it_is_unknown() -> None:
    far = replace(FAST, cpu_s=None)
    found = figures.cpu_losses("one text", {OURS: [SLOW]}, {MOSEC: [FAST], FAR: [far]})
    assert [(loss.baseline, loss.ours, loss.theirs) for loss in found] == [(MOSEC, 300.0, 100.0)]
    assert not figures.cpu_losses("one text", {OURS: [FAST]}, {MOSEC: [SLOW]})


def test_figures_are_median_lowest_and_highest() -> None:
    found = figures.document({OURS: [FAST, SLOW, SLOW], FAR: [replace(FAST, cpu_s=None)]})
    assert found[OURS]["requestsPerSecond"] == [100.0, 100.0, 200.0]
    assert found[OURS]["cpuMicrosecondsPerRequest"] == [300.0, 100.0, 300.0]
    assert found[FAR]["cpuMicrosecondsPerRequest"] is None
    assert figures.best({OURS: [SLOW], MOSEC: [FAST]}, [OURS, MOSEC]) == MOSEC


def test_cpu_time_is_attributed_to_the_steps_processes() -> None:
    server = ("/opt/bin/tritonserver", "--http-port=1")
    stub = "/opt/backends/python/triton_python_backend_stub"
    models_of = [(stub, "/repository/model/1/model.py", f"region-{number}") for number in (0, 1)]
    before = {server: 1.0, models_of[0]: 0.5}
    after = {server: 1.01, models_of[0]: 0.52, models_of[1]: 0.01}
    found = figures.shares(before, after, 100)
    assert found == {"server": pytest.approx(100.0), "model": pytest.approx(300.0)}


def result() -> dict[str, Any]:
    servers = figures.document({OURS: [SLOW], MOSEC: [FAST]})
    both = {tables.ONE: servers, tables.MANY: servers}
    loss = {"load": "one text", "figure": "f", "baseline": MOSEC, "ours": 300.0, "theirs": 100.0}
    detail = {
        "loads": both,
        "outsideModel": both,
        "memoryMebibytes": {OURS: 512},
        "pipeline": [OURS],
        "shares": {OURS: {tables.ONE: {"server": 71.4}}},
        "losses": [loss],
    }
    return {"detail": detail}


def test_servers_are_ordered_and_the_pipeline_stands_out() -> None:
    head, rows = tables.throughput(result(), tables.ONE)
    assert [row[0] for row in rows] == [MOSEC, f"**{OURS}**"]
    assert rows[0] == (MOSEC, "200", "200", "200", "10", "50", "100")
    assert all(len(row) == len(head) for row in rows)
    assert tables.outside_model(result())[1][1] == (
        *(f"**{OURS}**", "300", "300", "300", "300", "300", "300"),
        512,
    )


def test_no_loss_is_said_in_words() -> None:
    assert tables.losses(result())[1] == [("one text", "f", MOSEC, "100", "300")]
    assert tables.losses({"detail": {"losses": []}})[1][0][0] == "none"


@pytest.mark.parametrize("kind", ["servers", "servers-many", "outside-model", "shares", "losses"])
def test_every_table_is_a_block_of_a_page(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "result", lambda _: result())
    assert pages.block(kind, ["S7"]).count("\n") >= 2


def test_the_table_model_masks_padding_and_keeps_the_width() -> None:
    model = models.table_model().SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ids = np.array([[101, 2000, 0]], np.int64)
    (hidden,) = session.run(
        None, {"input_ids": ids, "attention_mask": np.array([[1, 1, 0]], np.int64)}
    )
    assert hidden.shape == (1, 3, models.WIDTH)
    assert not hidden[0, 2].any()
    assert hidden[0, :2].all()


def test_an_environment_is_named_after_its_lock_file_and_contents(tmp_path: Path) -> None:
    lock = tmp_path / "mosec.txt"
    lock.write_text("mosec==1 --hash=sha256:00")
    first = environments.folder_of(lock)
    lock.write_text("mosec==2 --hash=sha256:00")
    assert first.name.startswith("server-mosec-")
    assert environments.folder_of(lock) != first


@pytest.mark.parametrize("lock", sorted(environments.LOCKS.glob("*.txt")), ids=lambda p: p.stem)
def test_lock_files_have_hashes_and_no_index(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    packages = [line for line in text.splitlines() if "==" in line and line[0] not in " #"]
    assert packages
    assert all(line.endswith("\\") for line in packages), "a package without a hash"
    assert "://" not in text
    assert "-index" not in text.partition("\n")[2]

"""What a tuning run says when it is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from triton_pipelines.cli import tune
from triton_pipelines.cli.local_pipeline import StoppedBySignal
from triton_pipelines.cli.main import application

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "sentiment.yaml"
SERVER = "127.0.0.1:8001"
KEPT = "the original settings could not be restored, so restart the Triton server"


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ("", f"stopped; {SERVER}: the original setting was restored"),
        (KEPT, f"stopped; {SERVER}: {KEPT}"),
    ],
    ids=["put back", "not put back"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_setting_that_stays_on_the_server_is_told(
    number: int, left: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stopping([number], left, monkeypatch) == (128 + number, said)


def test_a_second_interrupt_reports_an_unknown_state(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = stopping([signal.SIGINT, signal.SIGINT], "", monkeypatch)
    assert code == 128 + signal.SIGINT
    assert f"{SERVER}: the original setting might not have been restored" in said


def stopping(numbers: list[int], left: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Return exit code and last line of a run ended by signals, the second during cleanup."""

    async def run(*given: Any) -> None:
        tell: Callable[[str], None] = given[-1]
        try:
            raise StoppedBySignal(numbers[0])
        finally:
            if left:
                tell(left)
            if numbers[1:]:
                raise StoppedBySignal(numbers[1])

    monkeypatch.setattr(tune, "run", run)
    result = CliRunner().invoke(
        application("tune"), ["tune", str(SAMPLE), "--server", SERVER, "--slo", "100"]
    )
    return result.exit_code, result.stderr.strip().splitlines()[-1]


def test_a_signal_in_a_callback_of_the_loop_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load callbacks are where most signals come."""
    cleaned: list[str] = []

    async def run(*_: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(signal.raise_signal, signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        except asyncio.CancelledError:
            cleaned.append("cancelled")
            raise

    monkeypatch.setattr(tune, "run", run)
    result = CliRunner().invoke(
        application("tune"), ["tune", str(SAMPLE), "--server", SERVER, "--slo", "100"]
    )
    assert result.exit_code == 128 + signal.SIGTERM
    assert cleaned == ["cancelled"]

"""Signals that end ``tritonpipe serve``."""

from __future__ import annotations

import signal

import pytest

from triton_pipelines.cli.local_pipeline import StoppedBySignal, raise_on_signals


class Interrupted:
    """Receives a signal while it is finalized."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


# Python drops the exception of the finalizer with this warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_during_a_finalizer_is_not_lost() -> None:
    with raise_on_signals() as check:
        check()
        Interrupted()
        with pytest.raises(StoppedBySignal) as stopped:
            check()
    assert stopped.value.number == signal.SIGINT


def test_a_signal_ends_what_runs() -> None:
    with pytest.raises(StoppedBySignal), raise_on_signals():
        signal.raise_signal(signal.SIGTERM)

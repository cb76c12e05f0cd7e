"""ONNX Runtime sessions of one block, and the file its process writes."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_step.encoder import (
    NODE_COUNTS,
    OFFLINE_TEXTS,
    POISONED,
    SEED,
    Array,
    EncoderShape,
    Feeds,
    Form,
    Precision,
    draw_batch,
    draw_weights,
)
from bench.gpu_step.graphs import EncoderGraph
from bench.gpu_step.inputs import prepare
from bench.gpu_step.plans import Execution


@dataclass
class Settings:
    """What one process measures."""

    shape: EncoderShape
    precision: Precision
    without: Sequence[Form]
    """Forms that ended an earlier process of this block."""
    deadline: float
    """`time.monotonic` after which no new section begins."""
    rehearse: bool
    rows: Sequence[int] = (32, 8, 64, 128)
    grid_rows: Sequence[int] = (1, 4, 8, 16, 32, 64)
    grid_tokens: Sequence[int] = (16, 32, 64, 128, 256, 512)
    offline_texts: int = OFFLINE_TEXTS
    seconds: float = 3.0
    """For the rounds of one number of rows."""
    document_rows: Sequence[int] = (32, 8)
    counts_nodes: bool = True

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The graphs' floating type."""
        return np.float16 if self.precision is Precision.FP16 else np.float32

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


class PartFile:
    """Results of one process, written again after every change."""

    def __init__(self, path: Path) -> None:
        """Begin an empty document at ``path``."""
        self._path = path
        self.data: dict[str, Any] = {"errors": {}}

    def save(self) -> None:
        """Write the file so that a reader never sees half of it."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(self.data), encoding="utf-8")
        draft.replace(self._path)

    def put(self, key: str, value: Any) -> None:
        """Set a key and write."""
        self.data[key] = value
        self.save()

    @contextmanager
    def attempting(self, form: Form) -> Iterator[None]:
        """Name the form that runs, for the parent process to read should this one end."""
        self.put("attempting", form)
        yield
        self.put("attempting", None)

    def error(self, key: str, error: Exception) -> None:
        """Record an error, print it and go on."""
        text = f"{type(error).__name__}: {error}"[:1500]
        say(f"  ERROR {key}: {text[:400]}")
        self.data["errors"].setdefault(key, text)
        self.save()


_BEGIN = time.monotonic()


def say(text: str) -> None:
    """Print progress with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGIN:6.1f}] {text}", flush=True)


@cache
def load_onnxruntime() -> Any:
    """Return onnxruntime with CUDA's libraries loaded, from PyTorch's packages where present."""
    with suppress(ImportError):
        import torch  # noqa: F401
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        onnxruntime.preload_dlls()
    return onnxruntime


def open_session(model: bytes, settings: Settings, profile: Path | None = None) -> Any:
    """Return an ONNX Runtime session on the GPU, or on the CPU in a rehearsal.

    Raises:
        RuntimeError: the session fell back to the CPU.
    """
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if settings.rehearse:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    tf32 = "1" if settings.precision is Precision.TF32 else "0"
    session = onnxruntime.InferenceSession(
        model, options, providers=[("CUDAExecutionProvider", {"use_tf32": tf32})]
    )
    if "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError("no CUDAExecutionProvider: onnxruntime fell back to the CPU")
    return session


class Sessions:
    """The sessions of one block by form; a form that fails has none."""

    def __init__(self, settings: Settings, part: PartFile) -> None:
        """Build every form, compute one small batch and count nodes per provider."""
        self._settings, self._part = settings, part
        self._open: dict[Form, Any] = {}
        self.placement: dict[str, Any] = {}
        weights = draw_weights(settings.shape)
        for form in Form:
            if form in settings.without:
                part.data["errors"][form] = "left out: it ended an earlier process"
                continue
            try:
                with part.attempting(form):
                    self._add(form, weights)
            except Exception as error:
                self.failed(form, error)

    def _add(self, form: Form, weights: Feeds) -> None:
        settings = self._settings
        begin = time.monotonic()
        model = EncoderGraph(settings.shape, form, settings.dtype, weights).model()
        data = model.SerializeToString()
        self._open[form] = open_session(data, settings)
        answers = self.run(form, Execution(draw_batch(8, SEED), 512, range(8)))
        if not np.isfinite(answers).all():
            raise ValueError("answers are not finite")
        if settings.counts_nodes:
            try:
                self.placement[form] = count_nodes(data, settings, prepare_small(form, settings))
            except Exception as error:
                self._part.error(f"{form} profile", error)
        nodes = {key: self.placement[form][key] for key in NODE_COUNTS if form in self.placement}
        say(f"  {form}: session in {time.monotonic() - begin:.1f} s {nodes or ''}")

    def __contains__(self, form: Form) -> bool:
        """Whether the form has a session."""
        return form in self._open

    def run(self, form: Form, execution: Execution) -> Array:
        """Return the logits [rows, CLASSES] of one execution."""
        feeds = prepare(form, execution.batch, execution.width, self._settings.dtype)
        return np.asarray(self._open[form].run(None, feeds)[0])

    def session(self, form: Form) -> Any:
        """Return the session itself."""
        return self._open[form]

    def failed(self, form: Form, error: Exception) -> None:
        """Drop a form; ends the process where the error broke the CUDA context."""
        self._part.error(form, error)
        self._open.pop(form, None)
        if form is Form.PADDED:
            raise SystemExit(f"the plain graph fails: {error}")
        try:
            self.run(Form.PADDED, Execution(draw_batch(2, SEED), 512, range(2)))
        except Exception as broken:
            self._part.put("attempting", form)
            self._part.error("context", broken)
            raise SystemExit(POISONED) from error
        self._part.put("attempting", None)


def prepare_small(form: Form, settings: Settings) -> Feeds:
    """Return inputs of a small batch, 8 rows of lognormal lengths."""
    batch = draw_batch(8, SEED)
    return prepare(form, batch, batch.longest, settings.dtype)


def count_nodes(model: bytes, settings: Settings, feeds: Feeds) -> dict[str, Any]:
    """Return nodes per provider, copies between host and GPU, and what runs on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(model, settings, Path(folder) / "profile")
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    providers: dict[str, int] = {}
    copies: dict[str, int] = {}
    on_cpu: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for event in events:
        detail = event.get("args") or {}
        if event.get("cat") != "Node" or not event.get("name", "").endswith("_kernel_time"):
            continue
        kind, provider = detail.get("op_name", "?"), detail.get("provider", "?")
        providers[provider] = providers.get(provider, 0) + 1
        kinds[kind] = kinds.get(kind, 0) + 1
        if kind.startswith("Memcpy"):
            copies[kind] = copies.get(kind, 0) + 1
        elif provider == "CPUExecutionProvider":
            on_cpu[kind] = on_cpu.get(kind, 0) + 1
    return {"providers": providers, "copies": copies, "onCpu": on_cpu, "kinds": kinds}

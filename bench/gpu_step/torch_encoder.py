"""The same encoder in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.gpu_step.encoder import (
    BATCHES,
    Array,
    Batch,
    EncoderShape,
    Form,
    draw_batch,
    draw_weights,
)
from bench.gpu_step.inputs import prepare
from bench.gpu_step.measure import batch_seed, show_variants
from bench.gpu_step.plans import BASELINE
from bench.gpu_step.sessions import PartFile, Settings, say
from bench.gpu_step.timing import compare, interleave


class TorchEncoder:
    """The same encoder in PyTorch (eager), FP16, for comparison."""

    def __init__(self, shape: EncoderShape, device: str, half: bool = True) -> None:
        """Copy the weights to the device."""
        import torch

        self.torch = torch
        self._shape, self.device = shape, device
        self._dtype = torch.float16 if half else torch.float32
        self._weights = {
            name: torch.from_numpy(value.T.copy() if name.endswith("weight") else value).to(
                device, self._dtype
            )
            for name, value in draw_weights(shape).items()
        }

    def encode(self, ids: Any, positions: Any, attend: Callable[[Any, Any, Any], Any]) -> Any:
        """Return the hidden states of ids [...]; ``attend`` takes [..., heads, size] each."""
        weights, heads = self._weights, self._shape.heads
        state = self._normalize(weights["words"][ids] + weights["places"][positions])
        split = (*ids.shape, heads, self._shape.hidden // heads)
        for layer in range(self._shape.layers):
            parts = [
                self._linear(state, f"{layer}.{part}").view(split)
                for part in ("query", "key", "value")
            ]
            context = attend(parts[0], parts[1], parts[2]).reshape(state.shape)
            state = self._normalize(self._linear(context, f"{layer}.output") + state)
            inner = self.torch.nn.functional.gelu(self._linear(state, f"{layer}.inner"))
            state = self._normalize(self._linear(inner, f"{layer}.outer") + state)
        return state

    def head(self, state: Any) -> Array:
        """Return the logits in host memory."""
        return np.asarray(self._linear(state, "head").float().cpu().numpy())

    def tensor(self, value: Array) -> Any:
        """Copy an array to the device."""
        return self.torch.from_numpy(value).to(self.device)

    def _linear(self, state: Any, name: str) -> Any:
        weights = self._weights
        return self.torch.nn.functional.linear(
            state, weights[f"{name}.weight"], weights[f"{name}.bias"]
        )

    def _normalize(self, state: Any) -> Any:
        return self.torch.nn.functional.layer_norm(state, (self._shape.hidden,))

    def padded(self, batch: Batch) -> Array:
        """Padded to the longest row, scaled_dot_product_attention with a mask."""
        functional = self.torch.nn.functional
        feeds = prepare(Form.PADDED, batch, batch.longest, np.float32)
        ids, mask = self.tensor(feeds["input_ids"]), self.tensor(feeds["attention_mask"]).bool()
        positions = self.torch.arange(batch.longest, device=self.device).expand(ids.shape)

        def attend(query: Any, key: Any, value: Any) -> Any:
            rows = [part.transpose(1, 2) for part in (query, key, value)]
            context = functional.scaled_dot_product_attention(
                *rows, attn_mask=mask[:, None, None, :]
            )
            return context.transpose(1, 2)

        state = self.encode(ids, positions, attend)
        weights = mask.to(state.dtype)[:, :, None]
        return self.head((state * weights).sum(1) / weights.sum(1))

    def _flat(self, batch: Batch, attend: Callable[[Any, Any, Any, Any], Any]) -> Array:
        torch = self.torch
        lengths = self.tensor(batch.lengths)
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        rows = torch.repeat_interleave(
            torch.arange(batch.rows, device=self.device), lengths, output_size=len(batch.ids)
        )
        positions = torch.arange(len(batch.ids), device=self.device) - ends[rows].long()
        state = self.encode(
            self.tensor(batch.ids), positions, lambda q, k, v: attend(q, k, v, ends)
        )
        total = torch.zeros(batch.rows, state.shape[1], device=self.device).index_add_(
            0, rows, state.float()
        )
        return self.head((total / lengths[:, None]).to(self._dtype))

    def varlen(self, batch: Batch) -> Array:
        """Packed, torch.nn.attention.varlen."""
        from torch.nn.attention.varlen import varlen_attn

        longest = batch.longest
        return self._flat(batch, lambda q, k, v, e: varlen_attn(q, k, v, e, e, longest, longest))

    def flash(self, batch: Batch) -> Array:
        """Packed, the operator behind scaled_dot_product_attention."""
        longest, run = batch.longest, self.torch.ops.aten._flash_attention_forward
        return self._flat(
            batch,
            lambda q, k, v, e: run(q, k, v, e, e, longest, longest, 0.0, False, False)[0],
        )

    def jagged(self, batch: Batch) -> Array:
        """Packed, nested tensors of layout jagged."""
        torch = self.torch

        def attend(query: Any, key: Any, value: Any, ends: Any) -> Any:
            rows = [
                torch.nested.nested_tensor_from_jagged(
                    part, ends.long(), min_seqlen=1, max_seqlen=batch.longest
                ).transpose(1, 2)
                for part in (query, key, value)
            ]
            context = torch.nn.functional.scaled_dot_product_attention(*rows)
            return context.transpose(1, 2).values()

        return self._flat(batch, attend)


def run_torch_block(settings: Settings, part: PartFile) -> None:
    """Compare padded and packed attention in PyTorch."""
    try:
        import torch
    except ImportError:
        say("torch is not installed: section left out")
        part.put("skipped", "torch is not installed")
        return
    device = "cpu" if settings.rehearse else "cuda"
    say(f"{settings.shape.name} torch {torch.__version__} on {device}")
    part.data["cases"] = []
    with torch.inference_mode():
        encoder = TorchEncoder(settings.shape, device, half=not settings.rehearse)
        exact = TorchEncoder(settings.shape, device, half=False)
        for rows in settings.rows:
            if settings.left_s > 0:
                found = _torch_case(encoder, exact, rows, settings, part)
                show_variants(found)
                part.data["cases"].append(found)
                part.save()


def _torch_case(
    encoder: TorchEncoder, exact: TorchEncoder, rows: int, settings: Settings, part: PartFile
) -> dict[str, Any]:
    batches = [draw_batch(rows, batch_seed(rows, number)) for number in range(BATCHES)]
    alone = [exact.padded(batches[0].take([row])) for row in range(rows)]
    reference = np.concatenate(alone)
    variants: dict[str, Callable[[Batch], Array]] = {
        BASELINE: encoder.padded,
        "varlen": encoder.varlen,
        "flash": encoder.flash,
        "jagged": encoder.jagged,
    }
    cases: dict[str, list[Callable[[], object]]] = {}
    differences: dict[str, float] = {}
    for name, function in variants.items():
        try:
            firsts = [function(batch) for batch in batches]
        except Exception as error:
            part.error(f"torch {name}", error)
            continue
        differences[name] = float(f"{np.abs(firsts[0] - reference).max():.3g}")
        cases[name] = [lambda f=function, b=batch: f(b) for batch in batches]  # type: ignore[misc]
    compared = compare(interleave(cases, settings.seconds / 2), BASELINE)
    for name, one in compared.items():
        one |= {"maxDifference": differences[name], "executions": 1}
    fill = [batch.lengths.sum() / (batch.rows * batch.longest) for batch in batches]
    return {
        "rows": rows,
        "lengths": "lognormal",
        "fill": round(float(np.mean(fill)), 3),
        "variants": compared,
    }

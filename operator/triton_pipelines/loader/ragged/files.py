"""An ONNX file on disk, adapted in place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from triton_pipelines.api.loadplan import PlanAdapt
from triton_pipelines.loader.download import fsync_folder
from triton_pipelines.loader.onnxstore import load, save, skeleton
from triton_pipelines.loader.ragged.adapt import adapt
from triton_pipelines.loader.ragged.examine import OPSET, Adaptable, Obstacle, Refusal, examine
from triton_pipelines.loader.ragged.prove import Means, Proof, givens, prove
from triton_pipelines.loader.ragged.upgrade import upgraded
from triton_pipelines.loader.ragged.walk import opset


@dataclass(frozen=True)
class Adapted:
    """A file that takes ragged batches now: what it was adapted for and how that was proven."""

    adaptable: Adaptable
    proof: Proof

    def __str__(self) -> str:
        guarded = [f"{name} below {size}" for name, size in self.adaptable.sizes.items()]
        if self.adaptable.max_length is not None:
            guarded.append(f"at most {self.adaptable.max_length} tokens")
        proven = f"structure only, no answers compared ({self.proof.why})"
        if self.proof.means is not Means.NONE:
            proven = f"rows in company answered as alone, by {self.proof.means}"
        return f"adapted to ragged batches; {proven}; rows are taken with {', '.join(guarded) or 'any values'}"


def adapt_file(path: Path, plan: PlanAdapt) -> Adapted | Refusal:
    """Adapt the model at ``path``: the new file takes its name only when it is whole and proven as far as it can be here.

    External data is neither read (but for the proof) nor copied: the adapted graph names the same side files.
    Raises :class:`OSError` where the volume is full, and what :func:`.onnxstore.load` raises for a file that is no model.
    """
    model = load(path)
    converted = opset(model) < OPSET
    model = upgraded(model)
    if isinstance(model, Refusal):
        return model
    found = examine(model, plan)
    if isinstance(found, Refusal):
        return found
    if lacking := sorted(side for side in _sides(model) if not (path.parent / side).is_file()):
        return Refusal((Obstacle(f"weights lie in {', '.join(lacking)}, which is not beside the file", "give a source that holds all of its files"),))
    given, weights = givens(model, found), _bytes(model, path)
    temporary = path.with_name(f".{path.name}.ragged")
    try:
        save(adapt(model, found), temporary)
        bare = skeleton(model)
        del model
        proof = prove(path, temporary, given, found, weights)
        if proof.means is Means.NONE and converted:
            return Refusal(
                (Obstacle(f"the graph had to be converted to opset {OPSET}, which nothing here can prove", f"export it with opset {OPSET}"),)
            )
        if proof.means is Means.NONE:
            onnx.checker.check_model(bare)
        if proof.fault:
            return Refusal((Obstacle(proof.fault, "set spec.tokenizer.padding to Fixed, or export the model anew"),))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except onnx.checker.ValidationError as error:
        return Refusal((Obstacle(f"the adapted graph is not valid ({str(error).partition(chr(10))[0]})", "set spec.tokenizer.padding to Fixed"),))
    finally:
        temporary.unlink(missing_ok=True)
    return Adapted(found, proof)


def _bytes(model: Any, path: Path) -> int:
    """The size of a model with its external data."""
    return sum(file.stat().st_size for file in (path, *(path.parent / side for side in _sides(model))))


def _sides(model: Any) -> set[str]:
    """The files with a model's external data, as it names them."""
    return {ExternalDataInfo(tensor).location for tensor in model.graph.initializer if uses_external_data(tensor)}

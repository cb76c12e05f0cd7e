"""An ONNX file on disk, adapted in place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx

from triton_pipelines.api.loadplan import PlanAdapt
from triton_pipelines.loader.download import fsync_folder
from triton_pipelines.loader.onnx_store import Stored, lean, load, save, skeleton
from triton_pipelines.loader.onnx_weights import sides, size_of
from triton_pipelines.loader.ragged.adapt import adapt
from triton_pipelines.loader.ragged.eligibility import OPSET, Adaptable, Obstacle, Refusal, examine
from triton_pipelines.loader.ragged.equivalence import Means, Proof, givens, prove
from triton_pipelines.loader.ragged.graph_walk import opset
from triton_pipelines.loader.ragged.inline_functions import inlined
from triton_pipelines.loader.ragged.opset_upgrade import CONVERTED_MAX, too_old, upgraded


@dataclass(frozen=True)
class Adapted:
    """A file that takes ragged batches now: what it was adapted for and how that was proven."""

    adaptable: Adaptable
    proof: Proof

    @property
    def proven(self) -> bool:
        """Whether answers were compared, and not only the structure looked at."""
        return self.proof.means is not Means.NONE

    def __str__(self) -> str:
        guarded = [f"{name} below {size}" for name, size in self.adaptable.sizes.items()]
        if self.adaptable.max_length is not None:
            guarded.append(f"at most {self.adaptable.max_length} tokens")
        proven = f"structure only, no answers compared ({self.proof.why})"
        if self.proven:
            proven = f"rows in company answered as alone, by {self.proof.means}"
        return f"adapted to ragged batches; {proven}; rows are taken with {', '.join(guarded) or 'any values'}"


def adapt_file(path: Path, plan: PlanAdapt) -> Adapted | Refusal:
    """Adapt the model at ``path``: the new file takes its name only when it is whole and proven as far as it can be here.

    External data is neither read (but for the proof) nor copied: the adapted graph names the same side files.
    Raises :class:`OSError` where the volume is full, and what :func:`.onnxstore.load` raises for a file that is no model.
    """
    stored = lean(path)
    converted = opset(stored.model) < OPSET
    if converted:
        # A file that is too large to be converted may be too large to be parsed whole.
        large = path.stat().st_size > CONVERTED_MAX
        whole = too_old(opset(stored.model)) if large else upgraded(load(path))
        if isinstance(whole, Refusal):
            return whole
        stored = Stored(whole, path)
    model = stored.model
    inlined(model)
    found = examine(model, plan)
    if isinstance(found, Refusal):
        return found
    if lacking := sorted(side for side in sides(model) if not (path.parent / side).is_file()):
        return Refusal(
            (
                Obstacle(
                    f"weights lie in {', '.join(lacking)}, which is not beside the file",
                    "give a source that holds all of its files",
                ),
            )
        )
    given, weights = givens(model, [item.name for item in plan.inputs]), size_of(path, model)
    temporary = path.with_name(f".{path.name}.ragged")
    try:
        adapt(model, found)
        save(stored, temporary)
        bare = skeleton(model)
        del model, stored
        proof = prove(path, temporary, given, found, weights)
        if proof.means is Means.NONE and converted:
            return Refusal(
                (
                    Obstacle(
                        f"the graph had to be converted to opset {OPSET}, which nothing here can prove",
                        f"export it with opset {OPSET}",
                    ),
                )
            )
        if proof.means is Means.NONE:
            onnx.checker.check_model(bare)
        if proof.fault:
            return Refusal(
                (
                    Obstacle(
                        proof.fault, "set spec.tokenizer.padding to Fixed, or export the model anew"
                    ),
                )
            )
        if found.max_length is not None and found.max_length < (plan.max_length or 0):
            # Rows that the tokenizer makes in good faith would be answered with marks.
            what = f"the file carries {found.max_length} positions, and spec.tokenizer.maxLength lets rows have {plan.max_length} tokens"
            return Refusal(
                (Obstacle(what, f"set spec.tokenizer.maxLength to at most {found.max_length}"),)
            )
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except onnx.checker.ValidationError as error:
        return Refusal(
            (
                Obstacle(
                    f"the adapted graph is not valid ({str(error).partition(chr(10))[0]})",
                    "set spec.tokenizer.padding to Fixed",
                ),
            )
        )
    finally:
        temporary.unlink(missing_ok=True)
    return Adapted(found, proof)

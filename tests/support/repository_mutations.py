"""Random changes of the repositories of the corpus, for the properties of `tritonpipe import`.

A mutation is determined by its seed, so a failing one can be repeated by its number.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tritonclient.grpc import model_config_pb2 as pb

from tests.support.imports import FILLED, NAMED, REPOSITORIES
from triton_pipelines.tools.importer.repository_reader import read_repository

from . import model_mutations, tensor_mutations
from .mutated_repository import MutatedRepository

NAMES = sorted(path.name for path in REPOSITORIES.iterdir())
MUTATIONS: tuple[Callable[[Random, MutatedRepository], None], ...] = (
    model_mutations.instance_kind,
    model_mutations.version_policy,
    model_mutations.versions,
    model_mutations.pinned_version,
    tensor_mutations.double_tensor,
    tensor_mutations.wiring,
    model_mutations.steps,
    model_mutations.batch_size,
    tensor_mutations.dims,
    tensor_mutations.reshape,
    tensor_mutations.data_type,
    tensor_mutations.tensor_name,
    tensor_mutations.public_name,
    model_mutations.model_name,
    tensor_mutations.tensor_flags,
    tensor_mutations.extra_tensor,
    model_mutations.batching,
    model_mutations.parameters,
    model_mutations.settings,
    model_mutations.backend,
    model_mutations.files,
    model_mutations.extra_model,
    model_mutations.random_field,
)


def mutated(seed: int, folder: Path) -> MutatedRepository:
    """Return a repository of the corpus with one to three random changes, written to a folder."""
    random = Random(seed)
    name = NAMES[seed % len(NAMES)]
    repository = read_repository(REPOSITORIES / name, FILLED, NAMED.get(name))
    shutil.copytree(REPOSITORIES / name, folder, dirs_exist_ok=True)
    configs = {}
    for model in repository.models.values():
        configs[model.name] = pb.ModelConfig()
        configs[model.name].CopyFrom(model.config)
    result = MutatedRepository(folder, configs)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        change = random.choice(MUTATIONS)
        change(random, result)
        result.applied.append(change.__name__)
    result.write()
    return result

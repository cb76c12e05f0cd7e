"""Random changes of tensors and of their wiring in a repository."""

from __future__ import annotations

from random import Random

from tritonclient.grpc import model_config_pb2 as pb

from .mutated_repository import MutatedRepository, a_model, any_config

TYPES = (pb.TYPE_STRING, pb.TYPE_INT64, pb.TYPE_INT32, pb.TYPE_FP32, pb.TYPE_FP16, pb.TYPE_UINT8)
TENSORS = ("854", "input.1", "a/b:0", "model.logits", "TEXT", "text ", "é", "x" * 200, "pipeline.x")


def double_tensor(random: Random, repository: MutatedRepository) -> None:
    """Declare a tensor twice."""
    config = any_config(random, repository)
    tensors = random.choice((config.output, config.input))
    if tensors:
        tensors.add().CopyFrom(random.choice(list(tensors)))


def wiring(random: Random, repository: MutatedRepository) -> None:
    """Map a tensor that a model does not have, or another tensor of the ensemble."""
    for ensemble in repository.ensembles:
        step = random.choice(list(ensemble.ensemble_scheduling.step))
        names = random.choice((step.input_map, step.output_map))
        if not names:
            continue
        key = random.choice(sorted(names))
        match random.choice(("key", "value", "remove", "add")):
            case "key":
                names["nosuch"] = names.pop(key)
            case "value":
                names[key] = random.choice(("nosuch", *sorted(names.values())))
            case "remove":
                del names[key]
            case _:
                names["nosuch"] = names[key]


def dims(random: Random, repository: MutatedRepository) -> None:
    """Change a shape."""
    config = any_config(random, repository)
    tensors = [*config.input, *config.output]
    if tensors:
        tensor = random.choice(tensors)
        del tensor.dims[:]
        tensor.dims.extend(random.choice(([1], [-1], [0], [2, 3], [], [1] * 20, [-1, 5], [2**40])))


def reshape(random: Random, repository: MutatedRepository) -> None:
    """Reshape a tensor without changing its elements."""
    config = a_model(random, repository)
    tensors = [*config.input, *config.output]
    if tensors:
        tensor = random.choice(tensors)
        tensor.reshape.SetInParent()
        tensor.reshape.shape.extend(random.choice(([], [1, *tensor.dims], list(tensor.dims))))


def data_type(random: Random, repository: MutatedRepository) -> None:
    """Change the type of a tensor everywhere that it is mentioned by the same name."""
    config = any_config(random, repository)
    tensors = [*config.input, *config.output]
    if tensors:
        name, chosen = random.choice(tensors).name, random.choice(TYPES)
        for other in repository.configs.values():
            for tensor in (*other.input, *other.output):
                if tensor.name == name:
                    tensor.data_type = chosen


def tensor_name(random: Random, repository: MutatedRepository) -> None:
    """Rename a tensor of a model, and in the maps of its steps."""
    model = a_model(random, repository)
    new = random.choice(TENSORS)
    for kind in random.choice((("input",), ("output",))):
        tensors = getattr(model, kind)
        if not tensors or new in {tensor.name for tensor in tensors}:
            continue
        tensor = random.choice(list(tensors))
        old, tensor.name = tensor.name, new
        for ensemble in repository.ensembles:
            for step in ensemble.ensemble_scheduling.step:
                names = getattr(step, f"{kind}_map")
                if step.model_name == model.name and old in names:
                    names[new] = names.pop(old)


def public_name(random: Random, repository: MutatedRepository) -> None:
    """Rename a tensor of the ensemble everywhere."""
    for ensemble in repository.ensembles:
        values = {
            value
            for step in ensemble.ensemble_scheduling.step
            for names in (step.input_map, step.output_map)
            for value in names.values()
        }
        old, new = random.choice(sorted(values)), random.choice(TENSORS)
        if new in values:
            continue
        for tensor in (*ensemble.input, *ensemble.output):
            tensor.name = new if tensor.name == old else tensor.name
        for step in ensemble.ensemble_scheduling.step:
            for names in (step.input_map, step.output_map):
                for key in [key for key, value in names.items() if value == old]:
                    names[key] = new


def tensor_flags(random: Random, repository: MutatedRepository) -> None:
    """Make an input optional or ragged."""
    config = any_config(random, repository)
    if config.input:
        tensor = random.choice(list(config.input))
        tensor.optional = random.random() < 0.5
        tensor.allow_ragged_batch = random.random() < 0.5


def extra_tensor(random: Random, repository: MutatedRepository) -> None:
    """Add a tensor that no step uses."""
    config = a_model(random, repository)
    kind = random.choice(("input", "output"))
    tensor = getattr(config, kind).add(
        name=random.choice(TENSORS), data_type=random.choice(TYPES), dims=[1]
    )
    if kind == "input":
        tensor.optional = True

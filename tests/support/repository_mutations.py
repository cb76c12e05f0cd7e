"""Random changes of the repositories of the corpus, for the properties of `tritonpipe import`.

A mutation is determined by its seed, so a failing one can be repeated by its number.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.support.imports import FILLED, NAMED, REPOSITORIES
from triton_pipelines.tools.importer.repository_reader import read_repository

NAMES = sorted(path.name for path in REPOSITORIES.iterdir())
TYPES = (pb.TYPE_STRING, pb.TYPE_INT64, pb.TYPE_INT32, pb.TYPE_FP32, pb.TYPE_FP16, pb.TYPE_UINT8)
TENSORS = ("854", "input.1", "a/b:0", "model.logits", "TEXT", "text ", "é", "x" * 200, "pipeline.x")
FOLDERS = ("Tokenizer-V2", "model", "postprocess", "pipeline", "steps", "a.b", "m" * 120, "1model")
CODE = "import torch\n\n\nclass TritonPythonModel:\n    pass\n"


@dataclass
class MutatedRepository:
    """A repository that is being changed: configs by model, and its folder."""

    folder: Path
    """The repository on disk; configs are written to it last."""
    configs: dict[str, Any]
    """Configs by folder."""
    texts: dict[str, str] = field(default_factory=dict)
    """Configs that are written as text, by folder."""
    applied: list[str] = field(default_factory=list)
    """Names of the mutations that were applied."""

    @property
    def ensembles(self) -> list[Any]:
        """Return the configs of ensembles."""
        return [config for config in self.configs.values() if config.ensemble_scheduling.step]

    def write(self) -> None:
        """Write every config to its folder."""
        for name, config in self.configs.items():
            path = self.folder / name
            path.mkdir(exist_ok=True)
            shutil.rmtree(path / "configs", ignore_errors=True)
            text = self.texts.get(name) or text_format.MessageToString(config, as_utf8=True)
            (path / "config.pbtxt").write_text(text, encoding="utf-8")


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


def _model(random: Random, repository: MutatedRepository) -> Any:
    models = [one for one in repository.configs.values() if not one.ensemble_scheduling.step]
    return random.choice(models)


def _any(random: Random, repository: MutatedRepository) -> Any:
    return random.choice(list(repository.configs.values()))


def instance_kind(random: Random, repository: MutatedRepository) -> None:
    """Run a model elsewhere, or with other counts."""
    model = _model(random, repository)
    del model.instance_group[:]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        group = model.instance_group.add(
            kind=random.choice((0, 1, 2, 3)), count=random.choice((0, 1, 2, 5, 300))
        )
        if group.kind == 1 and random.random() < 0.5:
            group.gpus.extend(sorted(random.sample(range(70), random.choice((1, 2)))))
        if random.random() < 0.2:
            group.host_policy = random.choice(("numa_0", "host policy"))
        if random.random() < 0.1:
            group.profile.append(random.choice(("0", "123456789")))
        if random.random() < 0.1:
            group.passive = True
        if random.random() < 0.1:
            group.rate_limiter.priority = 2


def version_policy(random: Random, repository: MutatedRepository) -> None:
    """Serve other versions."""
    config = _any(random, repository)
    kind = random.choice(("all", "latest", "specific"))
    if kind == "all":
        config.version_policy.all.SetInParent()
    elif kind == "latest":
        config.version_policy.latest.num_versions = random.choice((0, 1, 2, 100))
    else:
        config.version_policy.specific.versions.extend(random.choice(([1], [1, 2], [], [1, 1])))


def versions(random: Random, repository: MutatedRepository) -> None:
    """Add version folders, with or without files."""
    model = _model(random, repository)
    source = repository.folder / model.name / "1"
    for number in random.choice(((2,), (3, 10), (7,))):
        target = repository.folder / model.name / str(number)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
    if random.random() < 0.3:
        shutil.rmtree(source, ignore_errors=True)


def pinned_version(random: Random, repository: MutatedRepository) -> None:
    """Pin the version of a step."""
    for ensemble in repository.ensembles:
        random.choice(list(ensemble.ensemble_scheduling.step)).model_version = random.choice(
            (0, 1, 1, 2, 9)
        )


def double_tensor(random: Random, repository: MutatedRepository) -> None:
    """Declare a tensor twice."""
    config = _any(random, repository)
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


def steps(random: Random, repository: MutatedRepository) -> None:
    """Reorder, repeat or remove steps."""
    for ensemble in repository.ensembles:
        listed = list(ensemble.ensemble_scheduling.step)
        match random.choice(("shuffle", "shuffle", "repeat", "remove")):
            case "shuffle":
                random.shuffle(listed)
            case "repeat":
                listed.append(random.choice(listed))
            case _:
                listed.pop(random.randrange(len(listed)))
        copies = [pb.ModelEnsembling.Step.FromString(one.SerializeToString()) for one in listed]
        del ensemble.ensemble_scheduling.step[:]
        ensemble.ensemble_scheduling.step.extend(copies)


def batch_size(random: Random, repository: MutatedRepository) -> None:
    """Change max_batch_size of one model, or of all."""
    size = random.choice((0, 1, 4, 64, 5000, 100_000, -1))
    chosen = random.choice((list(repository.configs.values()), [_any(random, repository)]))
    for config in chosen:
        config.max_batch_size = size


def dims(random: Random, repository: MutatedRepository) -> None:
    """Change a shape."""
    config = _any(random, repository)
    tensors = [*config.input, *config.output]
    if tensors:
        tensor = random.choice(tensors)
        del tensor.dims[:]
        tensor.dims.extend(random.choice(([1], [-1], [0], [2, 3], [], [1] * 20, [-1, 5], [2**40])))


def reshape(random: Random, repository: MutatedRepository) -> None:
    """Reshape a tensor without changing its elements."""
    config = _model(random, repository)
    tensors = [*config.input, *config.output]
    if tensors:
        tensor = random.choice(tensors)
        tensor.reshape.SetInParent()
        tensor.reshape.shape.extend(random.choice(([], [1, *tensor.dims], list(tensor.dims))))


def data_type(random: Random, repository: MutatedRepository) -> None:
    """Change the type of a tensor everywhere that it is mentioned by the same name."""
    config = _any(random, repository)
    tensors = [*config.input, *config.output]
    if tensors:
        name, chosen = random.choice(tensors).name, random.choice(TYPES)
        for other in repository.configs.values():
            for tensor in (*other.input, *other.output):
                if tensor.name == name:
                    tensor.data_type = chosen


def tensor_name(random: Random, repository: MutatedRepository) -> None:
    """Rename a tensor of a model, and in the maps of its steps."""
    model = _model(random, repository)
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


def model_name(random: Random, repository: MutatedRepository) -> None:
    """Rename a model's folder and every step that calls it."""
    old, new = random.choice(sorted(repository.configs)), random.choice(FOLDERS)
    if new in repository.configs:
        return
    repository.configs[new] = repository.configs.pop(old)
    repository.configs[new].name = new
    (repository.folder / old).rename(repository.folder / new)
    for ensemble in repository.ensembles:
        for step in ensemble.ensemble_scheduling.step:
            step.model_name = new if step.model_name == old else step.model_name


def tensor_flags(random: Random, repository: MutatedRepository) -> None:
    """Make an input optional or ragged."""
    config = _any(random, repository)
    if config.input:
        tensor = random.choice(list(config.input))
        tensor.optional = random.random() < 0.5
        tensor.allow_ragged_batch = random.random() < 0.5


def extra_tensor(random: Random, repository: MutatedRepository) -> None:
    """Add a tensor that no step uses."""
    config = _model(random, repository)
    kind = random.choice(("input", "output"))
    tensor = getattr(config, kind).add(
        name=random.choice(TENSORS), data_type=random.choice(TYPES), dims=[1]
    )
    if kind == "input":
        tensor.optional = True


def batching(random: Random, repository: MutatedRepository) -> None:
    """Change the batcher."""
    config = _any(random, repository)
    if config.ensemble_scheduling.step:
        return
    match random.choice(("none", "plain", "sizes", "priorities", "direct", "oldest")):
        case "none":
            config.ClearField("dynamic_batching")
        case "plain":
            config.dynamic_batching.SetInParent()
        case "sizes":
            config.dynamic_batching.preferred_batch_size.extend(random.choice(([4, 2], [1, 1])))
            config.dynamic_batching.max_queue_delay_microseconds = 2**33
        case "priorities":
            config.dynamic_batching.priority_levels = 2
            config.dynamic_batching.default_priority_level = 1
            policy = config.dynamic_batching.priority_queue_policy[random.choice((1, 2, 3))]
            policy.max_queue_size = 5
            policy.default_timeout_microseconds = 2**40
        case "direct":
            config.sequence_batching.max_sequence_idle_microseconds = 7
            config.sequence_batching.direct.minimum_slot_utilization = random.choice((0.005, 0.5))
        case _:
            config.sequence_batching.oldest.max_candidate_sequences = random.choice((0, 4))
            config.sequence_batching.iterative_sequence = random.random() < 0.3


def parameters(random: Random, repository: MutatedRepository) -> None:
    """Add parameters."""
    config = _model(random, repository)
    match random.choice(("long", "many", "environment", "ours", "key", "strategy")):
        case "long":
            config.parameters["long"].string_value = "x" * 2000
        case "many":
            for number in range(100):
                config.parameters[f"key{number}"].string_value = str(number)
        case "environment":
            place = random.choice(
                ("$$TRITON_MODEL_DIRECTORY/env", "/opt/env", "$$TRITON_MODEL_DIRECTORY/../e.tar.gz")
            )
            config.parameters["EXECUTION_ENV_PATH"].string_value = place
            activate = repository.folder / config.name / "env" / "bin" / "activate"
            activate.parent.mkdir(parents=True, exist_ok=True)
            activate.write_text("true\n")
        case "ours":
            config.parameters["tritonpipelines.io/x"].string_value = "1"
        case "key":
            config.parameters["k" * 200].string_value = "\x01"
            config.parameters[""].string_value = "1"
        case _:
            config.parameters["TRITON_BATCH_STRATEGY_PATH"].string_value = "/opt/strategy.so"


def settings(random: Random, repository: MutatedRepository) -> None:
    """Set a field that the resource has under another name, or not at all."""
    config = _any(random, repository)
    match random.randrange(10):
        case 0:
            config.model_transaction_policy.decoupled = True
        case 1:
            config.response_cache.enable = True
        case 2:
            config.metric_tags["team"] = "search"
        case 3:
            config.default_model_filename = random.choice(
                ("model.onnx", "model.py", "model.plan", "other.onnx", "sub/model.onnx")
            )
        case 4 if config.output:
            config.output[0].label_filename = "labels.txt"
            (repository.folder / config.name / "labels.txt").write_text("a\nb\n")
        case 5:
            config.cc_model_filenames["8.0"] = "model_80.plan"
        case 6:
            config.model_operations.op_library_filename.append("custom.so")
        case 7 if config.input:
            warmup = config.model_warmup.add(name="w", batch_size=1, count=3)
            for tensor in config.input:
                entry = warmup.inputs[tensor.name]
                entry.data_type, entry.zero_data = tensor.data_type, True
                entry.dims.extend(max(dim, 1) for dim in tensor.dims)
        case 8:
            config.optimization.priority = 1
            config.optimization.graph.level = -1
        case _:
            config.runtime = random.choice(("", "libtriton_other.so"))


def backend(random: Random, repository: MutatedRepository) -> None:
    """Let another backend run a model."""
    model = _model(random, repository)
    model.platform, model.backend = random.choice(
        (
            ("", "python"),
            ("", "Custom-Backend"),
            ("", "dali"),
            ("onnxruntime_onnx", ""),
            ("", "onnxruntime"),
            ("pytorch_libtorch", "pytorch"),
            ("tensorflow_savedmodel", "tensorflow"),
            ("", "vllm"),
        )
    )
    if model.backend == "python":
        code = repository.folder / model.name / "1" / "model.py"
        code.parent.mkdir(parents=True, exist_ok=True)
        code.write_text(CODE)


def files(random: Random, repository: MutatedRepository) -> None:
    """Add files to a version, or code that is large."""
    model = _model(random, repository)
    folder = repository.folder / model.name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    match random.choice(("many", "odd", "large", "folder", "none")):
        case "many":
            for number in range(20):
                (folder / f"file{number}.txt").write_text("x")
        case "odd":
            (folder / "a file (1).txt").write_text("x")
            (folder / ".hidden").write_text("x")
            (folder / "noextension").write_text("x")
        case "large":
            for config in repository.configs.values():
                if config.backend == "python":
                    code = repository.folder / config.name / "1" / "model.py"
                    code.parent.mkdir(parents=True, exist_ok=True)
                    code.write_text(CODE + "# " + "x" * 60_000 + "\n")
        case "folder":
            (folder / "helpers").mkdir(exist_ok=True)
            (folder / "helpers" / "words.py").write_text("import numpy\n")
        case _:
            shutil.rmtree(folder)


def extra_model(random: Random, repository: MutatedRepository) -> None:
    """Add models that no step calls; some are broken."""
    for number in range(random.choice((1, 1, 15))):
        name = f"extra{number}"
        config = pb.ModelConfig(name=name, backend="python", max_batch_size=4)
        config.input.add(name="X", data_type=pb.TYPE_FP32, dims=[1])
        config.output.add(name="Y", data_type=pb.TYPE_FP32, dims=[1])
        repository.configs[name] = config
        (repository.folder / name / "1").mkdir(parents=True, exist_ok=True)
        (repository.folder / name / "1" / "model.py").write_text(CODE)
    if random.random() < 0.3:
        repository.texts["extra0"] = random.choice(("name: {", 'name: "other"', "input: 7"))


def random_field(random: Random, repository: MutatedRepository) -> None:
    """Set a random scalar field of a random message of a config."""
    message = _any(random, repository)
    while True:
        fields = [one for one in message.DESCRIPTOR.fields if one.name != "name"]
        if not fields:
            return
        chosen = random.choice(fields)
        value = getattr(message, chosen.name)
        if chosen.message_type is None:
            break
        if chosen.message_type.GetOptions().map_entry:
            return
        if chosen.label == chosen.LABEL_REPEATED:
            message = random.choice(list(value)) if value else value.add()
        else:
            value.SetInParent()
            message = value
    new: Any = random.choice((-1, 0, 1, 2, 3)) if chosen.cpp_type != chosen.CPPTYPE_STRING else "x"
    if chosen.enum_type is not None:
        new = random.choice(chosen.enum_type.values).number
    elif chosen.cpp_type in (chosen.CPPTYPE_UINT32, chosen.CPPTYPE_UINT64):
        new = abs(new)
    elif chosen.cpp_type == chosen.CPPTYPE_BOOL:
        new = bool(new)
    elif chosen.type == chosen.TYPE_BYTES:
        new = b"x"
    if chosen.label == chosen.LABEL_REPEATED:
        value.append(new)
    else:
        setattr(message, chosen.name, new)


MUTATIONS: tuple[Callable[[Random, MutatedRepository], None], ...] = (
    instance_kind,
    version_policy,
    versions,
    pinned_version,
    double_tensor,
    wiring,
    steps,
    batch_size,
    dims,
    reshape,
    data_type,
    tensor_name,
    public_name,
    model_name,
    tensor_flags,
    extra_tensor,
    batching,
    parameters,
    settings,
    backend,
    files,
    extra_model,
    random_field,
)

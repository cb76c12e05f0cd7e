"""Random changes of models, versions, batching, files and other fields in a repository."""

from __future__ import annotations

import shutil
from random import Random
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from .mutated_repository import MutatedRepository, a_model, any_config

FOLDERS = ("Tokenizer-V2", "model", "postprocess", "pipeline", "steps", "a.b", "m" * 120, "1model")
CODE = "import torch\n\n\nclass TritonPythonModel:\n    pass\n"


def instance_kind(random: Random, repository: MutatedRepository) -> None:
    """Run a model elsewhere, or with other counts."""
    model = a_model(random, repository)
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
    config = any_config(random, repository)
    kind = random.choice(("all", "latest", "specific"))
    if kind == "all":
        config.version_policy.all.SetInParent()
    elif kind == "latest":
        config.version_policy.latest.num_versions = random.choice((0, 1, 2, 100))
    else:
        config.version_policy.specific.versions.extend(random.choice(([1], [1, 2], [], [1, 1])))


def versions(random: Random, repository: MutatedRepository) -> None:
    """Add version folders, with or without files."""
    model = a_model(random, repository)
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
    chosen = random.choice((list(repository.configs.values()), [any_config(random, repository)]))
    for config in chosen:
        config.max_batch_size = size


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


def batching(random: Random, repository: MutatedRepository) -> None:
    """Change the batcher."""
    config = any_config(random, repository)
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
    config = a_model(random, repository)
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
    config = any_config(random, repository)
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
    model = a_model(random, repository)
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
    model = a_model(random, repository)
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
    message = any_config(random, repository)
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

"""Small model repositories as text, for tests that change one thing in them."""

from __future__ import annotations

from pathlib import Path

CODE = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return []
"""
TOKENIZER = """backend: "python"
max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "input_ids" data_type: TYPE_INT64 dims: -1 }
instance_group { kind: KIND_CPU }
dynamic_batching { }
"""
MODEL = """platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "input_ids" data_type: TYPE_INT64 dims: -1 }
output { name: "logits" data_type: TYPE_FP32 dims: 2 }
instance_group { kind: KIND_GPU }
dynamic_batching { }
"""
ENSEMBLE = """platform: "ensemble"
max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "logits" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling {
  step {
    model_name: "tok" model_version: -1
    input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "input_ids" value: "ids" }
  }
  step {
    model_name: "bert" model_version: -1
    input_map { key: "input_ids" value: "ids" }
    output_map { key: "logits" value: "logits" }
  }
}
"""
FILES = {
    "tok/config.pbtxt": TOKENIZER,
    "tok/1/model.py": CODE,
    "bert/config.pbtxt": MODEL,
    "bert/1/model.onnx": "not read, because the config is complete",
    "sentiment/config.pbtxt": ENSEMBLE,
    "sentiment/1/": "",
}


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Write files by their path below a folder; a path that ends in ``/`` is a folder."""
    for name, text in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def replaced(name: str, old: str, new: str) -> dict[str, str]:
    """Return the changed text of one of :data:`FILES`."""
    assert old in FILES[name]
    return {name: FILES[name].replace(old, new)}

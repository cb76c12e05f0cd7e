"""A BERT encoder with mean pooling and a linear head in PyTorch.

It is custom code of a python step, as a user would write it.

It is rendered into the model repository as text (``spec.model.python.code.inline``) and never
imported by a test. It runs in FP32 on the GPU that Triton gave the instance, or on the CPU for an
instance of kind CPU. The weights lie beside it, fetched by the loader.

Parameters: ``heads`` (attention heads), ``weights`` (safetensors file in the version folder,
tensors named as in Hugging Face's BERT checkpoints). Inputs: ``input_ids`` and ``attention_mask``,
INT64 [rows, tokens]; requests of one batch may differ in length. Output: ``logits`` FP32 [rows,
classes].
"""

import json
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from safetensors.torch import load_file
from torch.nn import functional

EPSILON = 1e-12


class TritonPythonModel:
    def initialize(self, args):
        parameters = {
            key: entry["string_value"]
            for key, entry in json.loads(args["model_config"])["parameters"].items()
        }
        on_gpu = args["model_instance_kind"] == "GPU"
        self.device = (
            torch.device("cuda", int(args["model_instance_device_id"]))
            if on_gpu
            else torch.device("cpu")
        )
        # TF32 keeps 10 bits of the mantissa: answers would differ from FP32 in the third digit.
        torch.backends.cuda.matmul.allow_tf32 = False
        self.heads = int(parameters["heads"])
        folder = Path(args["model_repository"]) / args["model_version"]
        self.weights = load_file(str(folder / parameters["weights"]), device=str(self.device))
        self.layers = sum(
            name.endswith("output.dense.weight") and ".attention." not in name
            for name in self.weights
        )
        where = torch.cuda.get_device_name(self.device) if on_gpu else "CPU"
        pb_utils.Logger.log_info(f"torch {torch.__version__} on {self.device}: {where}")

    def execute(self, requests):
        pairs = [
            [
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("input_ids", "attention_mask")
            ]
            for request in requests
        ]
        rows = [len(ids) for ids, _ in pairs]
        batch = np.zeros((2, sum(rows), max(ids.shape[1] for ids, _ in pairs)), dtype=np.int64)
        first = 0
        for ids, mask in pairs:
            batch[0, first : first + len(ids), : ids.shape[1]] = ids
            batch[1, first : first + len(ids), : ids.shape[1]] = mask
            first += len(ids)
        with torch.inference_mode():
            ids, mask = torch.from_numpy(batch).to(self.device)
            logits = self.classify(ids, mask).cpu().numpy()
        answers = np.split(logits, np.cumsum(rows)[:-1])
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("logits", np.ascontiguousarray(answer))])
            for answer in answers
        ]

    def linear(self, name, x):
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, x):
        return functional.layer_norm(
            x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], EPSILON
        )

    def classify(self, ids, mask):
        length = ids.shape[1]
        x = functional.embedding(ids, self.weights["embeddings.word_embeddings.weight"])
        x = (
            x
            + self.weights["embeddings.position_embeddings.weight"][:length]
            + self.weights["embeddings.token_type_embeddings.weight"][0]
        )
        x = self.norm("embeddings.LayerNorm", x)
        seen = mask.bool()[:, None, None, :]
        for layer in range(self.layers):
            name = f"encoder.layer.{layer}"
            query, key, value = (
                self.linear(f"{name}.attention.self.{part}", x)
                .unflatten(2, (self.heads, -1))
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = (
                functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
                .transpose(1, 2)
                .flatten(2)
            )
            x = self.norm(
                f"{name}.attention.output.LayerNorm",
                x + self.linear(f"{name}.attention.output.dense", mixed),
            )
            inner = functional.gelu(self.linear(f"{name}.intermediate.dense", x))
            x = self.norm(
                f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", inner)
            )
        weight = mask[:, :, None].to(x.dtype)
        return self.linear("classifier", (x * weight).sum(1) / weight.sum(1))

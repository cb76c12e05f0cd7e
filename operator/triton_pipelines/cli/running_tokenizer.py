"""Find out which implementation of the tokenizer a running server has."""

from __future__ import annotations

from dataclasses import replace

from triton_pipelines.api.tokenizer import TokenizerImplementation
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.graph.options import DEFAULT_TOKENIZER
from triton_pipelines.compile.graph.tokenizer_step import IMPLEMENTATION_OF_BACKEND
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import TritonError


async def options_of_server(
    pipeline: InferencePipeline, options: Options, address: str, control_key: str | None
) -> Options:
    """Return options with the implementation that the server runs, if the resource names none.

    The operator keeps the former default for pipelines that ran before it changed.

    Args:
        pipeline: the resource.
        options: the operator's options.
        address: ``host:port`` of the server's gRPC API.
        control_key: key of the control API; ``None`` if it is not restricted.
    """
    implementation = await _running(pipeline, address, control_key)
    return options if implementation is None else replace(options, tokenizer=implementation)


def implementation_note(options: Options) -> str:
    """Return which other implementation than the default is measured; empty for the default.

    Args:
        options: options of :func:`options_of_server`.
    """
    if options.tokenizer is DEFAULT_TOKENIZER:
        return ""
    return (
        f"the server runs the tokenizer with implementation {options.tokenizer}, which the run "
        f"measures; a changed spec runs it with {DEFAULT_TOKENIZER}, unless "
        f"spec.tokenizer.implementation is {options.tokenizer}"
    )


async def _running(
    pipeline: InferencePipeline, address: str, control_key: str | None
) -> TokenizerImplementation | None:
    tokenizer = pipeline.spec.tokenizer
    if tokenizer is None or tokenizer.implementation is not None or tokenizer.python is not None:
        return None
    async with TritonClient(address, control_key) as client:
        try:
            config = await client.model_config(tokenizer.model_name)
        except TritonError:
            return None  # Whoever uses the server next reports it.
    return IMPLEMENTATION_OF_BACKEND.get(config.backend)

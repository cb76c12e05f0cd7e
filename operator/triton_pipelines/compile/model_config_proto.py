"""Triton's ModelConfig messages, loaded without the rest of the client library.

The package ``tritonclient.grpc`` imports gRPC and numpy. These imports would take a quarter of the
time of ``tritonpipe validate``, which sends no request.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from typing import Any, Final

_NAME: Final = "tritonclient.grpc.model_config_pb2"


def _load() -> Any:
    """Return the module that protoc generated, under its own name.

    A later import of the client library reuses it: it is in ``sys.modules``.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    library = importlib.util.find_spec("tritonclient")
    folders = library.submodule_search_locations if library else None
    spec = importlib.machinery.PathFinder.find_spec(
        _NAME, [f"{folder}/grpc" for folder in folders or ()]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no module {_NAME}; is tritonclient installed?", name=_NAME)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module


model_config_pb2: Final = _load()

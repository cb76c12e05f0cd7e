"""Copy Python packages for the stock Triton image from the loader's own environment."""

from __future__ import annotations

import importlib.util
import shutil
from importlib import metadata
from pathlib import Path
from typing import Final

from triton_pipelines.api.loadplan import LoadReason
from triton_pipelines.loader.errors import LoaderError

_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.pyi", "py.typed")


def copy_package(package: str, site: Path) -> None:
    """Copy an import package and its distribution's metadata (license, version) into ``site``.

    Its requirements are not copied: ``tokenizers`` needs none to import and encode (huggingface_hub
    only serves ``from_pretrained``). Extension modules must use the stable ABI, because the Triton
    image has another Python.

    Raises:
        LoaderError: the package is missing, or is built for one Python version.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LoaderError(LoadReason.INTERNAL_ERROR, f"the loader's image has no package {package}")
    source = Path(next(iter(spec.submodule_search_locations)))
    bound = [path.name for path in source.rglob("*.so") if not path.name.endswith(".abi3.so")]
    if bound:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR,
            f"package {package} contains {', '.join(bound)}, which is built for a single "
            "Python version; install the abi3 wheel of the package",
        )
    _copy(source, site / package)
    for distribution in metadata.packages_distributions().get(package, [])[:1]:
        folder = next(
            (path for path in source.parent.glob("*.dist-info") if _named(path, distribution)), None
        )
        if folder is not None:
            _copy(folder, site / folder.name)


def _named(folder: Path, distribution: str) -> bool:
    return (
        folder.name.partition("-")[0].replace("_", "-").lower()
        == distribution.replace("_", "-").lower()
    )


def _copy(source: Path, target: Path) -> None:
    """Copy a folder so that ``target`` is complete or absent."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary, ignore=_LEFT_OUT)
    shutil.rmtree(target, ignore_errors=True)
    temporary.replace(target)

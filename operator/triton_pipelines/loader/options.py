"""Options of ``tritonpipe load``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.loader.cache import KEEP_FREE
from triton_pipelines.loader.group_download import PARALLEL
from triton_pipelines.loader.retry import RetryPolicy
from triton_pipelines.loader.uris import SourceMap

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where the kubelet reads a container's last message.

It is Kubernetes' default ``terminationMessagePath``.
"""

STATE_FOLDER: Final = ".load"


@dataclass(frozen=True)
class LoadOptions:
    """Where everything is; the defaults are the pod's mounts."""

    revision: Path = Path(names.PATH_REVISION)
    """The revision's ConfigMap, with the plan."""
    live: Path = Path(names.PATH_LIVE)
    """The live ConfigMap."""
    root: Path = Path(names.PATH_ROOT)
    """The volume of the model repository."""
    credentials: Path = Path(names.PATH_CREDENTIALS)
    """Mounted Secrets, one folder per source."""
    ca: Path = Path(names.PATH_CA)
    """Mounted CA bundles, one folder per source."""
    configmaps: Path = Path(names.PATH_CONFIGMAPS)
    """Mounted ConfigMaps that are sources."""
    claims: Path = Path(names.PATH_CLAIMS)
    """Mounted claims that are sources."""
    images: Path = Path(names.PATH_IMAGES)
    """Mounted images that are sources, by the first digits of their digest."""
    termination: Path | None = TERMINATION_LOG
    """File of the report; ``None`` writes none."""
    source_map: SourceMap = field(default_factory=SourceMap)
    """Rules that rewrite source URIs."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How often sources are tried."""
    cache: Path | None = None
    """Volume on which pods share fetched files; ``None`` for no cache."""
    cache_keep_free: float = 100 * KEEP_FREE
    """Percent of the cache volume that stays free."""
    folders: tuple[Path, ...] = ()
    """Folders to create if they are missing."""
    parallel: int = PARALLEL
    """Files of a source that are fetched at once."""

    @property
    def models(self) -> Path:
        """Return the model repository."""
        return self.root / Path(names.PATH_MODELS).name

    @property
    def state(self) -> Path:
        """Return the folder of unfinished downloads and of records of finished ones.

        It is on the volume of the repository, so that a rename is enough.
        """
        return self.root / STATE_FOLDER


def parse_options(argv: Sequence[str]) -> LoadOptions:
    """Return the options of a command line; the environment changes none of them."""
    parser = _argument_parser(LoadOptions())
    values = vars(parser.parse_args(argv))
    rules = values.pop("source_map")
    retry = RetryPolicy(
        attempts=values.pop("retry_attempts"), first_delay=values.pop("retry_delay")
    )
    try:
        folders = tuple(values.pop("folder"))
        return LoadOptions(
            **values, folders=folders, source_map=SourceMap.parse(rules), retry=retry
        )
    except ValueError as error:
        parser.error(str(error))


_PATHS: Final = {
    "revision": "Mounted ConfigMap of the revision, with the load plan.",
    "live": "Mounted live ConfigMap.",
    "root": "Volume of the model repository.",
    "credentials": "Mounted Secrets, one directory per source.",
    "ca": "Mounted CA bundles, one directory per source.",
    "configmaps": "Mounted ConfigMaps that are sources.",
    "claims": "Mounted PersistentVolumeClaims that are sources.",
    "images": "Mounted images that are sources.",
    "termination": "File for the load report.",
}
"""Options that are fields of :class:`LoadOptions` and paths, and their descriptions."""


def _argument_parser(defaults: LoadOptions) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tritonpipe load",
        description="Fetch the sources of a pipeline revision into its model repository.",
    )
    add = parser.add_argument
    for name, text in _PATHS.items():
        add(f"--{name}", type=Path, default=getattr(defaults, name), metavar="PATH", help=text)
    add("--cache", type=Path, metavar="PATH", help="Volume on which pods share fetched files.")
    add(
        "--cache-keep-free",
        type=_percent,
        default=defaults.cache_keep_free,
        metavar="PERCENT",
        help="Percentage of the cache volume that remains free.",
    )
    add(
        "--folder",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="Directory to create if it does not exist. Repeatable.",
    )
    add(
        "--parallel",
        type=_at_least_one,
        default=defaults.parallel,
        metavar="COUNT",
        help="Number of files of a source to fetch in parallel.",
    )
    add(
        "--source-map",
        action="append",
        default=[],
        metavar="PREFIX=TARGET",
        help="Prefix of source URIs and its replacement, as PREFIX=TARGET. Repeatable.",
    )
    _add_retry_options(parser, defaults)
    return parser


def _add_retry_options(parser: argparse.ArgumentParser, defaults: LoadOptions) -> None:
    parser.add_argument(
        "--retry-attempts",
        type=int,
        default=defaults.retry.attempts,
        help="Give up after this many consecutive attempts without progress.",
    )
    parser.add_argument(
        "--retry-delay",
        type=float,
        default=defaults.retry.first_delay,
        metavar="SECONDS",
        help=(
            "Delay before the second attempt. The delay doubles after each failure, up to "
            f"{defaults.retry.longest_delay:g} s."
        ),
    )


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 90:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 90")
    return value


def _at_least_one(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 64:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 64")
    return value

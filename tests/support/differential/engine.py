"""Compare the validator ``render.judge`` with a real Triton.

Both get the same model repositories, and every difference is shown.

One server runs for many repositories. Models are loaded over gRPC, many at a time, and removed
afterwards. Its backends are the null backend, so that a load takes milliseconds. Its core, which
validates, is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from tests.support import nullbackend
from tests.support.triton import triton_server
from triton_pipelines.api import names
from triton_pipelines.compile.validation import ServerFacts, Violation, validate_repository
from triton_pipelines.compile.validation.stricter_rules import DEADLY, LIMITS
from triton_pipelines.triton.local_server import LocalTriton

RELEASE: Final = (24, 10)
"""Release of the local Triton (2.51.0)."""
FOLDER: Final = "{folder}"
"""Placeholder in a parameter for the model's folder as the server sees it."""

_LOAD_S: Final = 60.0
_POLL_FAILED: Final = re.compile(
    r"Poll failed for model directory '([^']*)': (.*?)\"?$", re.MULTILINE
)
_POLL_S: Final = 0.01
_END_S: Final = 5.0
_BUSY: Final = ("READY", "LOADING", "UNLOADING")
_ACTIONS: Final = 16
"""Loads in flight: Triton itself works at four at a time."""


@dataclass
class Repository:
    """A model repository to judge.

    Attributes:
        configs: model folder → its config.
        files: model folder → path below it → content; a model that is not here has the empty
            version folder 1. A path that ends in "/" is a folder.
    """

    configs: dict[str, Any]
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def copy(self) -> Repository:
        """A deep copy."""
        configs = {}
        for name, config in self.configs.items():
            configs[name] = pb.ModelConfig()
            configs[name].CopyFrom(config)
        return Repository(configs, {name: dict(files) for name, files in self.files.items()})

    def beside(self, name: str) -> dict[str, bytes]:
        """The files of one model next to its config."""
        return self.files.get(name, {"1/": b""})

    def renamed(self, prefix: str, root: Path) -> Repository:
        """Return the same repository with ``prefix`` before every name.

        Many can then share one model repository. The folder's path is filled in.
        """
        result = self.copy()
        result.configs = {f"{prefix}{name}": config for name, config in result.configs.items()}
        result.files = {f"{prefix}{name}": dict(self.beside(name)) for name in self.configs}
        for name, config in result.configs.items():
            config.name = f"{prefix}{config.name}" if config.name else ""
            for step in (
                config.ensemble_scheduling.step if config.HasField("ensemble_scheduling") else ()
            ):
                step.model_name = f"{prefix}{step.model_name}" if step.model_name else ""
            for parameter in config.parameters.values():
                parameter.string_value = parameter.string_value.replace(FOLDER, str(root / name))
        return result

    def text(self) -> str:
        """The whole repository as it is written, for a report."""
        parts = []
        for name, config in self.configs.items():
            parts.append(f"--- {name}/config.pbtxt\n{text_format.MessageToString(config)}")
            if name in self.files:
                parts.append(f"--- files of {name}: {', '.join(sorted(self.files[name]))}\n")
        return "".join(parts)


@dataclass
class Counts:
    """What the comparisons came to, in models."""

    accepted: int = 0
    refused: int = 0
    limits: int = 0
    untried: int = 0
    through_step: int = 0
    disagreements: int = 0
    loads: int = 0
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Add the counts of another server."""
        for name in (
            "accepted",
            "refused",
            "limits",
            "untried",
            "through_step",
            "disagreements",
            "loads",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rules.update(other.rules)

    def __str__(self) -> str:
        return (
            f"{self.loads} real loads: accepted and loaded {self.accepted}, refused by both "
            f"{self.refused}, stated limits {self.limits} "
            f"(and {self.untried} not tried), refused for a step {self.through_step}, "
            f"disagreements {self.disagreements}"
        )


class DisagreementError(AssertionError):
    """The judge and the server differ; both are shown."""


class Differential:
    """A running server and the comparison with it."""

    def __init__(self, server: LocalTriton, backends: Path, rate_limiting: bool = False) -> None:
        self.server = server
        self.rate_limiting = rate_limiting
        self.counts = Counts()
        self.backends = {
            folder.name: frozenset(path.name for path in folder.iterdir())
            for folder in backends.iterdir()
        }
        self._cases = 0
        self._log_at = 0

    def facts(self, repository: Repository) -> ServerFacts:
        """What is known of this server and of a repository on it."""
        files = {
            name: {path: len(content) for path, content in repository.beside(name).items()}
            for name in repository.configs
        }
        root = str(self.server.repository)
        return ServerFacts(
            release=RELEASE,
            gpus=0,
            backends=self.backends,
            files=files,
            root=root,
            rate_limiting=self.rate_limiting,
        )

    def compare(self, repositories: Sequence[Repository]) -> None:
        """Both sides judge all of them.

        Raises:
            DisagreementError: with the repository, what the judge says and what the server says.
        """
        asyncio.run(self._compare(repositories))

    def alone(self, repository: Repository, model: str) -> str | None:
        """Return why the server does not serve one model of a repository.

        The model may end the server. None if it loads.
        """
        placed, prefix = self._place(
            Repository({model: repository.configs[model]}, {model: repository.beside(model)})
        )
        try:
            return asyncio.run(self._ask([placed]))[f"{prefix}{model}"]
        except DisagreementError as error:
            return str(error).splitlines()[0]

    def served(self, repository: Repository) -> dict[str, str | None]:
        """Model → why the server refuses it, None where it loads. Names as given."""
        placed, prefix = self._place(repository)
        return {
            name.removeprefix(prefix): reason
            for name, reason in asyncio.run(self._ask([placed])).items()
        }

    def outcome(self, repository: Repository) -> tuple[list[Violation], dict[str, str | None]]:
        """Return both sides' results for one repository, with names as given.

        The results are the validator's violations, and model → the server's reason (None: loaded).
        """
        return asyncio.run(self._outcome(repository))

    async def _outcome(
        self, repository: Repository
    ) -> tuple[list[Violation], dict[str, str | None]]:
        placed, prefix = self._place(repository)
        reasons = await self._ask([placed])
        return self.judged(repository), {
            name.removeprefix(prefix): reason for name, reason in reasons.items()
        }

    def judged(self, repository: Repository) -> list[Violation]:
        """The judge's answer alone."""
        placed = repository.renamed("", self.server.repository)
        return validate_repository(placed.configs, self.facts(placed))

    async def _compare(self, repositories: Sequence[Repository]) -> None:
        judged = []
        for repository in repositories:
            placed, _ = self._place(repository)
            said = validate_repository(placed.configs, self.facts(placed))
            if any(violation.rule in DEADLY for violation in said):
                self.counts.untried += len(placed.configs)
                continue
            judged.append((placed, said))
        reasons = await self._ask([placed for placed, _ in judged])
        self.counts.loads += len(reasons)
        reports = [
            report for placed, said in judged if (report := self._agree(placed, said, reasons))
        ]
        if reports:
            self.counts.disagreements += len(reports)
            raise DisagreementError("\n\n".join(reports))

    def _place(self, repository: Repository) -> tuple[Repository, str]:
        self._cases += 1
        prefix = f"c{self._cases}_"
        return repository.renamed(prefix, self.server.repository), prefix

    def _agree(
        self, repository: Repository, said: Sequence[Violation], reasons: Mapping[str, str | None]
    ) -> str:
        """Count the models of one repository; a report where the two differ, else ""."""
        differ = []
        for name, config in repository.configs.items():
            mine = [violation for violation in said if violation.model == name]
            hard = [violation for violation in mine if violation.rule not in LIMITS]
            reason = reasons[name]
            steps = (
                {step.model_name for step in config.ensemble_scheduling.step}
                if config.HasField("ensemble_scheduling")
                else set()
            )
            self.counts.rules.update({str(violation.rule) for violation in mine})
            if reason is None and not mine:
                self.counts.accepted += 1
            elif reason is not None and hard:
                self.counts.refused += 1
            elif mine and not hard:
                self.counts.limits += 1
            elif reason is not None and any(reasons.get(step) is not None for step in steps):
                self.counts.through_step += 1
            else:
                judged = (
                    "\n".join(f"    {violation.rule}: {violation}" for violation in mine)
                    or "    accepted"
                )
                differ.append(
                    f"{name}\n  the judge says:\n{judged}\n  Triton says:\n    {reason or 'loaded'}"
                )
        return "\n".join([*differ, repository.text()]) if differ else ""

    # --- the server -------------------------------------------------------------------------------
    async def _ask(self, repositories: Sequence[Repository]) -> dict[str, str | None]:
        """Return why the server refused each model, None if it loaded.

        Afterwards, the server holds nothing of the repositories.
        """
        configs = {
            name: config
            for repository in repositories
            for name, config in repository.configs.items()
        }
        reasons: dict[str, str | None] = {}
        limit = asyncio.Semaphore(_ACTIONS)
        try:
            for repository in repositories:
                _write(self.server.repository, repository)
            async with InferenceServerClient(self.server.grpc_address) as client:

                async def load(name: str) -> None:
                    async with limit:
                        try:
                            await client.load_model(name, client_timeout=_LOAD_S)
                            ready = await client.is_model_ready(name, client_timeout=_LOAD_S)
                            reasons[name] = (
                                None if ready else "the load succeeded, and the model is not ready"
                            )
                        except InferenceServerException as error:
                            reasons[name] = error.message() or str(error)

                async def unload(name: str) -> None:
                    async with limit:
                        # A refused model remains in the server's graph of models until it is
                        # unloaded.
                        with contextlib.suppress(InferenceServerException):
                            await client.unload_model(name, client_timeout=_LOAD_S)

                levels = _levels(configs)
                for level in levels:
                    await asyncio.gather(*(load(name) for name in level))
                for level in reversed(levels):
                    await asyncio.gather(*(unload(name) for name in level))
                async with asyncio.timeout(_LOAD_S):
                    # The server does not report when it is done.
                    while any(  # noqa: ASYNC110
                        state.state in _BUSY
                        for state in (await client.get_model_repository_index()).models
                    ):
                        await asyncio.sleep(_POLL_S)
        except InferenceServerException as error:
            if await self._ended():
                texts = "\n".join(repository.text() for repository in repositories)
                raise DisagreementError(
                    f"the server ended: {_signal(self.server.log())}\n{texts}"
                ) from error
            raise
        finally:
            for name in configs:
                shutil.rmtree(self.server.repository / name, ignore_errors=True)
        return self._explained(reasons)

    async def _ended(self) -> bool:
        """Whether the server ended, or is about to."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while self.server.running():  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        return not self.server.running()

    def _explained(self, reasons: Mapping[str, str | None]) -> dict[str, str | None]:
        """The reasons, those that the server keeps to its log taken from there."""
        log_file = self.server.log_file
        if log_file is None:
            raise ValueError("the server was started without a log file")
        with log_file.open(errors="replace") as log:
            log.seek(self._log_at)
            logged = dict(_POLL_FAILED.findall(log.read()))
            self._log_at = log.tell()
        return {
            name: logged.get(name, reason) if reason is not None else None
            for name, reason in reasons.items()
        }


def _signal(log: str) -> str:
    """The line of the log that says how the server ended."""
    return next((line for line in log.splitlines() if line.startswith("Signal")), log[-500:])


def _write(root: Path, repository: Repository) -> None:
    for name, config in repository.configs.items():
        folder = root / name
        folder.mkdir()
        (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
        for path, content in repository.files[name].items():
            target = folder / path
            if path.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def _levels(configs: Mapping[str, Any]) -> list[list[str]]:
    """Models by depth, those without steps first; ensembles in a circle come last."""
    waiting = {
        name: {step.model_name for step in config.ensemble_scheduling.step} & set(configs)
        if config.HasField("ensemble_scheduling")
        else set()
        for name, config in configs.items()
    }
    levels: list[list[str]] = []
    while waiting:
        level = [name for name, steps in waiting.items() if not steps & set(waiting)] or list(
            waiting
        )
        levels.append(level)
        for name in level:
            del waiting[name]
    return levels


@contextlib.contextmanager
def running(
    folder: Path, extra_args: Sequence[str] = (), rate_limiting: bool = False, python: bool = True
) -> Iterator[Differential]:
    """Start a server with the null backend and an empty repository below ``folder`` (new).

    The server is ready to compare with. ``python`` is the option of the null backend.
    """
    repository, backends = folder / "repository", folder / "backends"
    repository.mkdir(parents=True)
    distribution = nullbackend.distribution(backends, names.NATIVE_TOKENIZER_BACKEND, python=python)
    log = folder / "tritonserver.log"
    # TRITONSERVER logs a line per request at this verbosity, which nothing here reads. Errors
    # remain.
    with triton_server(
        repository,
        [],
        distribution=distribution,
        log_file=log,
        precompile=False,
        extra_args=["--log-info=false", *extra_args],
    ) as server:
        yield Differential(server, backends, rate_limiting)

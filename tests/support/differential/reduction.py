"""Minimize a repository on which the validator and Triton disagree.

It removes one thing after another while they still disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .engine import Differential, DisagreementError, Repository

_Removal = Callable[[Repository], None]


def smallest(differential: Differential, repository: Repository) -> Repository:
    """A repository with a disagreement from which nothing can be taken without losing it."""
    shrunk = True
    while shrunk:
        shrunk = False
        index = 0
        while index < len(removals := list(_removals(repository))):
            candidate = repository.copy()
            removals[index](candidate)
            if disagrees(differential, candidate):
                repository, shrunk = candidate, True
            else:
                index += 1
    return repository


def disagrees(differential: Differential, repository: Repository) -> bool:
    """Whether the two sides differ over a repository."""
    try:
        differential.compare([repository])
    except DisagreementError:
        return True
    return False


def _removals(repository: Repository) -> Iterator[_Removal]:
    for name, config in repository.configs.items():
        yield lambda target, name=name: _forget(target, name)  # type: ignore[misc]
        for path in _paths(config):
            yield lambda target, name=name, path=path: _remove(target.configs[name], path)  # type: ignore[misc]
    for name, files in repository.files.items():
        for file in files:
            yield lambda target, name=name, file=file: target.files[name].pop(file)  # type: ignore[misc]


def _forget(repository: Repository, name: str) -> None:
    del repository.configs[name]
    repository.files.pop(name, None)


_Path = tuple[tuple[str, Any], ...]


def _paths(message: Any, before: _Path = ()) -> Iterator[_Path]:
    """Yield everything that is set, outer things first.

    Each is (field, None), or (field, index or key) for a part of a repeated field or a map.
    """
    for field, value in message.ListFields():
        if not field.is_repeated:
            yield (*before, (field.name, None))
            if field.message_type is not None:
                yield from _paths(value, (*before, (field.name, None)))
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        holds_messages = field.message_type is not None and (
            not is_map or field.message_type.fields_by_name["value"].message_type is not None
        )
        for key in list(value) if is_map else range(len(value)):
            yield (*before, (field.name, key))
            if holds_messages:
                yield from _paths(value[key], (*before, (field.name, key)))


def _remove(message: Any, path: _Path) -> None:
    for name, key in path[:-1]:
        message = getattr(message, name) if key is None else getattr(message, name)[key]
    name, key = path[-1]
    if key is None:
        message.ClearField(name)
    else:
        del getattr(message, name)[key]

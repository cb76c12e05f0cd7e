"""Options that several commands share, declared once as the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, ParamSpec, TypeVar, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")


def expand_options(command: Callable[P, R]) -> Callable[..., R]:
    """Give a command an option for each field of the dataclasses among its parameters.

    The command line sees the options; the command receives the dataclasses. Each field is
    annotated as a parameter of a command would be.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]) and isinstance(hints[name], type):
            groups[name] = hints[name]
            parameters += _parameters(hints[name])
        else:
            parameters.append(
                parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            )

    def run(**values: Any) -> R:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        return command(**values)  # type: ignore[call-arg]

    run.__name__, run.__doc__, run.__module__ = (
        command.__name__,
        command.__doc__,
        command.__module__,
    )
    return with_parameters(parameters)(run)


def with_parameters(
    parameters: list[inspect.Parameter],
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command that takes any keywords these parameters."""

    def give(command: Callable[..., R]) -> Callable[..., R]:
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return give


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in fields(group)
    ]

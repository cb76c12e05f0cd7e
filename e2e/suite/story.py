"""The history of objects in a namespace, in the order of `kubectl get --watch`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import condition

END_SECONDS = 60.0


class Story:
    """States of objects, as reported by a watch; create one with `watched`."""

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._text: str | None = None

    def end(self) -> None:
        """Keep the states reported so far; from now on nothing is added."""
        self._text = self._read()

    def _read(self) -> str:
        self._output.seek(0)
        return self._output.read()

    def states(self) -> list[Object]:
        """Return every state reported so far, in the order of the API server.

        The last state of a deleted object has `_deleted`.
        """
        text = self._read() if self._text is None else self._text
        decoder, found, at = json.JSONDecoder(), [], 0
        while (at := _next(text, at)) < len(text):
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:
                break  # still being written
            found.append({**event["object"], "_deleted": event["type"] == "DELETED"})
        return found

    def conditions(self, kind: str) -> list[tuple[str, str, str]]:
        """(status, reason, message) of a condition, each time that it changed."""
        reported: list[tuple[str, str, str]] = []
        for state in self.states():
            found = condition(state.get("status") or {}, kind)
            entry = (found.get("status", ""), found.get("reason", ""), found.get("message", ""))
            if entry != ("", "", "") and (not reported or reported[-1] != entry):
                reported.append(entry)
        return reported


def version(state: Object) -> int:
    """The resource version: objects of one API server are ordered by it."""
    return int(state["metadata"]["resourceVersion"])


@contextlib.contextmanager
def watched(kube: Kube, namespace: str, kind: str, selector: str = "") -> Iterator[Story]:
    """Watch a kind in a namespace for the duration of the context.

    At least one object of that kind must exist.
    """
    arguments = [
        "get",
        kind,
        f"--namespace={namespace}",
        "--watch",
        "--output-watch-events",
        "--output=json",
    ]
    arguments += [f"--selector={selector}"] if selector else []
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            kube.kubectl_command(*arguments), stdout=output, stdin=subprocess.DEVNULL
        )
        story = Story(output)
        try:
            wait_for(
                f"first state of {kind} in {namespace}",
                story.states,
                lambda states: bool(states),
                END_SECONDS,
                _count,
            )
            yield story
            _catch_up(kube, arguments, story)
        finally:
            process.terminate()
            process.wait(END_SECONDS)
            story.end()


def _catch_up(kube: Kube, watch: Sequence[str], story: Story) -> None:
    """Wait until the story has every state that objects have now; a watch lags behind reads."""
    single = [item for item in watch if not item.startswith(("--watch", "--output"))]
    listed = json.loads(kube.kubectl(*single, "--output=json"))["items"]
    current = {version(item) for item in listed}
    wait_for(
        "the last states",
        story.states,
        lambda states: current <= {version(state) for state in states},
        END_SECONDS,
        _count,
    )


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _count(states: Sequence[Object]) -> str:
    return f"{len(states)} states"

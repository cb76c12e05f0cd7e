"""Errors of a tuning run."""

from __future__ import annotations


class TuneError(Exception):
    """A tuning run that failed because of the server; the message says what to do."""


class NotTunableError(TuneError):
    """A pipeline that cannot be tuned as written; the message names the field and what to do."""


class SettingRefusedError(Exception):
    """A setting that the server or the checks of the resource refuse.

    The server keeps the old one.
    """


class OutputMismatchError(SettingRefusedError):
    """A setting that changes the outputs of the pipeline."""


class RequestShedError(Exception):
    """A server that rejects requests, or answers them too late.

    It does so even when they are sent one by one.
    """

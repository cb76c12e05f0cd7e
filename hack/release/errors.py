"""The error of a release that cannot be made."""


class ReleaseError(RuntimeError):
    """A release cannot be made.

    The message names the file, the tool or the argument, the problem and the remedy.
    """

"""The one family of errors that a user can meet. Only the command line catches them.

Each carries a message (one line, what happened), a hint (what to do about it) and the exit code of its kind.
"""

from __future__ import annotations

from typing import ClassVar


class NaniteError(Exception):
    """Base of every expected failure; never raised itself."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NaniteError):
    """The call's own words are wrong: exit 2."""

    exit_code = 2


class InputError(NaniteError):
    """A file, model, profile or trace is bad: exit 3."""

    exit_code = 3


class MissingError(NaniteError):
    """Hardware or a tool is missing: exit 4."""

    exit_code = 4


class BuildError(NaniteError):
    """Source, patches or build failed: exit 5."""

    exit_code = 5


class GateError(NaniteError):
    """A gate failed: exit 6."""

    exit_code = 6


class DegradedError(NaniteError):
    """The runtime is degraded or inert: exit 7."""

    exit_code = 7

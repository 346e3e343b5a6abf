"""Everything that commbench raises on purpose.

::

    CommbenchError
    ├── UsageError               the caller can put it right at once
    │   ├── UnknownNameError     a name that no entry point carries
    │   └── UnavailableError     this machine lacks what the backend or device needs
    ├── ResultsError             a results directory that can't be read
    │   └── UnwritableError      one that can't be written
    ├── VerificationError        a workload computed something wrong
    └── LaunchError              a launch could not be brought to its end

A message says what was wrong, what is known and what to do, in that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class CommbenchError(Exception):
    """The root: the command line prints it as one message, without a traceback."""


class UsageError(CommbenchError):
    """A wrong argument, value or combination."""


class UnknownNameError(UsageError):
    """A name that is not among the known ones.

    Parameters
    ----------
    what
        The kind of thing, for example ``"workload"``.
    name
        The name that was given.
    known
        Every name that would have been right.

    Examples
    --------
    >>> str(UnknownNameError("workload", "merg", ["merge", "svd"]))
    "unknown workload 'merg' (did you mean 'merge'?); known: merge, svd"
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        import difflib

        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        super().__init__(f"unknown {what} {name!r}{hint}; known: {', '.join(known) or 'none'}")
        self._given = (what, name, known)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is made again from its message alone, as on the way from a worker.
        return type(self), self._given


class UnavailableError(UsageError):
    """Something that this machine lacks, with the remedy.

    Examples
    --------
    >>> str(UnavailableError("backend ucx", "the package ucxx is not installed",
    ...                      "pip install ucxx-cu12"))
    'backend ucx is unavailable: the package ucxx is not installed. To have it: \
pip install ucxx-cu12'
    """

    def __init__(self, what: str, reason: str, remedy: str, more: str = "") -> None:
        super().__init__(f"{what} is unavailable: {reason}. To have it: {remedy}{more}")
        self.what = what
        self.reason = reason
        self.remedy = remedy
        self._more = more

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.reason, self.remedy, self._more)


class ResultsError(CommbenchError):
    """A results directory that is missing, foreign or of another version."""


class UnwritableError(ResultsError):
    """Results that can't be written; what was written before is kept."""


class VerificationError(CommbenchError):
    """A result that is not what the workload's data imply: the sample is void."""


class LaunchError(CommbenchError):
    """A launch that could not go on: a process died, a deadline passed, tasks failed."""

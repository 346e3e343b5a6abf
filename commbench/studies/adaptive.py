"""Add blocks of launches until a run is precise enough, or its time or launches are used up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from commbench.errors import UsageError
from commbench.harness import suite as suites
from commbench.model import Launch, Manifest, Stopping, Suite
from commbench.stats import MIN_LAUNCHES

if TYPE_CHECKING:
    from commbench.analysis.run import Run


def validate_stopping(rule: Stopping, suite: Suite) -> None:
    """Raise an error if the limits are not valid for `suite`.

    Raises
    ------
    UsageError
        With the option that sets the limit.
    """
    if not 0 < rule.rel_ci < 1:
        raise UsageError(f"--rel-ci is {rule.rel_ci:g}; it must be above 0 and below 1, or 100 %")
    if rule.time_budget_s <= 0:
        raise UsageError(f"--time-budget is {rule.time_budget_s:g} s; it must be above 0")
    fewest = min(case.launches for case in suite.cases)
    most = max(case.launches for case in suite.cases)
    if fewest < MIN_LAUNCHES:
        raise UsageError(
            f"--rigorous with {fewest} launches: fewer than {MIN_LAUNCHES} allow no 95 % "
            "interval; raise --launches"
        )
    if rule.max_launches < most:
        raise UsageError(
            f"--max-launches is {rule.max_launches}, but the run begins with {most} launches; "
            "raise it, or lower --launches"
        )


def level_launches(suite: Suite, done: Mapping[str, int]) -> Suite:
    """Return `suite` with at least as many launches of every case as the maximum in `done`.

    So a run that was interrupted within a block continues with the rest of this block.
    """
    most = max(done.values(), default=0)
    cases = (replace(case, launches=max(case.launches, most)) for case in suite.cases)
    return replace(suite, cases=tuple(cases))


def extend(
    launches: Iterable[Launch], manifest: Manifest, read: Callable[[], Run]
) -> Iterator[Launch]:
    """Yield `launches`, then complete blocks of launches until a stopping condition is met.

    Parameters
    ----------
    read
        Returns the run from disk; only called between blocks, when nothing is measured.
    """
    yield from launches
    if manifest.stopping is None:
        return
    suite = manifest.suite
    last_launches = {case.id: case.launches - 1 for case in suite.cases}
    while not (data := read()).ended_by:
        block = suites.plan(suite, manifest.seed + len(data.ends), done=last_launches)
        yield from suites.shift(block, data.launches_begun())

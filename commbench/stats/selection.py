"""Which records count, and in which order they are shown.

A launch may still warm up after the planned warm-ups: the samples at its begin that are slower are
left out. Two windows are compared, the first samples and the second half of the launch. The first
one is warm-up if its median is longer by more than ``_FLOOR`` and a one-sided Mann–Whitney test
finds it slower at ``_ALPHA``; then the next window takes its place. A launch that is still slow
when its first half is over never got warm: that is drift, and nothing is taken from it.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from commbench.model import Case

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from commbench.analysis.run import Run

GROUP = ["case_id", "layer", "payload_bytes"]
"""What one summary is of."""
_SWEPT = ("layers", "sizes")
"""Parameters of which every sample has one value of its own."""
_WINDOW = 10
"""The least samples in a window; of long launches it is a twentieth."""
_FLOOR = 0.05
"""What is slower by less than this share is not called warm-up, however sure it is."""
_ALPHA = 0.01


def counted(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the rows of `table` that count: of measured iterations and launches that ended well.

    A launch that was cut short has told of its first iterations only, and the fast ones come
    first. Where no launch of a case ended well, all of its rows count, and no interval does.
    """
    keep = counts(table, run)
    return table if keep.all() else table[keep]


def counts(table: pd.DataFrame, run: Run) -> pd.Series[bool]:
    """Return of each row of `table` whether ``counted`` keeps it."""
    keep = table["iteration"] >= 0
    for case_id, launches in good_launches(run).items():
        # Of millions of rows many comparisons take less time than one isin.
        good = reduce(or_, (table["launch"] == launch for launch in launches))
        keep &= (table["case_id"] != case_id) | good
    return keep


def measured(run: Run) -> pd.DataFrame:
    """Return the samples that count: those of ``timed`` but for what was found to be warm-up."""
    samples = timed(run)
    return samples[~_is_warmup(samples)]


def timed(run: Run) -> pd.DataFrame:
    """Return the samples of ``counted`` iterations that were verified, and no planned warm-up.

    What another program measured can't be verified; it counts, and names the ``tool``. A clock
    that went back gave no duration: what is negative is left out.
    """
    samples = counted(run.samples, run)
    planned = samples["warmup"].astype(bool)
    sound = samples["verified"].astype(bool) | (samples["tool"] != "")
    return samples[~planned & sound & (samples["seconds"] >= 0)]


def n_warmup(seconds: np.ndarray[Any, Any]) -> int:
    """Return how many of the first samples of a launch are warm-up.

    Parameters
    ----------
    seconds
        Shape (n,): the samples in the order in which they were taken. Of fewer than
        four windows none is warm-up.

    Examples
    --------
    >>> import numpy as np
    >>> steady = np.tile([1.0, 1.01, 1.02], 40)
    >>> n_warmup(steady), n_warmup(np.concatenate([steady[:18] * 3, steady]))
    (0, 20)
    """
    import numpy as np
    import scipy

    half = len(seconds) // 2
    window = max(_WINDOW, len(seconds) // 20)
    if half < 2 * window:
        return 0
    late = seconds[half:]
    limit = (1 + _FLOOR) * np.median(late)
    for begin in range(0, half - window + 1, window):
        early = seconds[begin : begin + window]
        if (
            np.median(early) <= limit
            or scipy.stats.mannwhitneyu(early, late, alternative="greater").pvalue > _ALPHA
        ):
            return begin
    return 0


def _is_warmup(samples: pd.DataFrame) -> pd.Series[bool]:
    """Return for each of the measured `samples` whether it is warm-up, by their index."""
    import pandas as pd

    flags = pd.Series(data=False, index=samples.index)
    ordered = samples.sort_values("iteration", kind="stable")
    seconds = ordered["seconds"].to_numpy()
    for places in ordered.groupby([*GROUP, "launch"], sort=False).indices.values():
        if n := n_warmup(seconds[places]):
            flags.loc[ordered.index[places[:n]]] = True
    return flags


def good_launches(run: Run) -> dict[str, list[int]]:
    """Return by case id the launches that ended well; a case without any is not there."""
    ends = run.ends[run.ends["ok"].astype(bool)]
    return {str(case_id): list(group) for case_id, group in ends.groupby("case_id")["launch"]}


def in_suite_order(table: pd.DataFrame, run: Run, then: list[str] | None = None) -> pd.DataFrame:
    """Return `table` sorted by its cases' order in the suite, then by the columns `then`."""
    order = {case.id: number for number, case in enumerate(run.suite.cases)}
    keys = [name for name in (then or ["layer", "payload_bytes", "launch"]) if name in table]
    return (
        table.assign(_place=table["case_id"].map(order))
        .sort_values(["_place", *keys], kind="stable")
        .drop(columns="_place")
        .reset_index(drop=True)
    )


def case_labels(run: Run) -> dict[str, str]:
    """Return by case id the workload, and the settings that set it apart from others of its kind.

    Cases of the same task differ in their backend only.
    """
    cases = run.suite.cases
    settings = {case.id: _settings(case) for case in cases}
    labels = {}
    for case in cases:
        peers = [settings[peer.id] for peer in cases if peer.workload == case.workload]
        apart = ", ".join(
            f"{key}={_text(value) or 'none'}"
            for key, value in settings[case.id].items()
            if any(_text(peer.get(key)) != _text(value) for peer in peers)
        )
        labels[case.id] = f"{case.workload} ({apart})" if apart else case.workload
    return labels


def settings_of(case: Case) -> str:
    """Return in a line all that a case's times depend on but workload, backend, layer and size.

    Cases of two runs that agree in it are those that ``commbench compare`` takes for the same;
    what ``case_labels`` returns is shorter, and keeps the cases of one run apart only.

    Examples
    --------
    >>> settings_of(Case(workload="pingpong", backend="tcp", params={"sizes": (1, 8), "pairs": 2}))
    'pairs=2, workers=2, threads=1, device=cpu, launcher=local, iterations=3, warmups=1'
    """
    settings = {**_settings(case), "iterations": case.iterations, "warmups": case.warmups}
    return ", ".join(
        f"{key}={_text(value)}"
        for key, value in settings.items()
        if key not in _SWEPT and _text(value)
    )


def _settings(case: Case) -> dict[str, Any]:
    return {**case.params, **case.cluster.words()}


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

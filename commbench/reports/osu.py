"""``osu``: ping-pongs in the format of the OSU Micro-Benchmarks.

A line that begins with ``#`` is a comment. All others are a size in bytes and its numbers: µs for
``osu_latency``, MB/s with MB = 10⁶ B for ``osu_bw`` and ``osu_bibw``, and MB/s and messages per
second for ``osu_mbw_mr``. OSU prints means over one launch; these are medians over launches. Sizes
whose launches split into two modes have no number: a comment has both times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from commbench import stats
from commbench.analysis.run import Run
from commbench.errors import UsageError
from commbench.model import LAYERS, Case
from commbench.reports.sections import median_time
from commbench.store import records

_LATENCY = ("Latency Test", "# Size          Latency (us)")
_BANDWIDTH = "# Size      Bandwidth (MB/s)"
_MULTIPLE = (
    "Multiple Bandwidth / Message Rate Test",
    "# Size                  MB/s        Messages/s",
)
_HEADS = {
    "latency": _LATENCY,
    "loaded-latency": _LATENCY,
    "bandwidth": ("Bandwidth Test", _BANDWIDTH),
    "bidirectional": ("Bi-Directional Bandwidth Test", _BANDWIDTH),
    "message-rate": _MULTIPLE,
    "multi-pair": _MULTIPLE,
}
_UNHALVED = {"memcpy": ", one copy", "worker": ", one fetch, not halved"}


def render(run: Run) -> str:
    """Return one block per task, backend and layer, with a comment that names them.

    Raises
    ------
    UsageError
        If the run has no ping-pong.
    """
    table = run.costs[run.costs["layer"].isin(LAYERS)]
    if table.empty:
        raise UsageError(
            f"{run.manifest.id} has no sample of a ping-pong, and OSU's format is for ping-pongs; "
            f"{run.path / records.FILE} has all samples"
        )
    depth = table["layer"].map(LAYERS.index)
    blocks = [
        "\n".join(_block(run, run.cases[str(case_id)], group))
        for case_id, rows in table.groupby("case_id", sort=False)
        for _, group in rows.groupby(depth)
    ]
    return "\n\n".join(blocks) + "\n"


def _block(run: Run, case: Case, group: pd.DataFrame) -> Iterator[str]:
    first, mode = next(group.itertuples()), stats.pingpong_mode(case)
    test, columns = _HEADS[mode]
    yield f"# OSU MPI {test}: its format, measured by commbench"
    yield (
        f"# {run.case_labels[first.case_id]}, backend {first.backend}, layer {first.layer}"
        f"{_UNHALVED.get(first.layer, '')}; median over {first.n_launches} launches"
    )
    if mode == "loaded-latency":
        yield f"# under load: messages of {case.params['load_size']} B stream to the peer meanwhile"
    if mode == "multi-pair":
        # The format of OSU.
        yield f"# [ pairs: {case.params['pairs']} ] [ window size: {case.params['window']} ]"
    yield columns
    for row in group.sort_values("payload_bytes").itertuples():
        if not math.isnan(row.low_mode_s):
            yield f"# {row.payload_bytes}: launches split into two modes, {median_time(row)}"
            continue
        if mode in stats.LATENCY_MODES:
            numbers = [row.median_s * 1e6]
        else:
            numbers = [row.throughput_Bps / 1e6]
            if _HEADS[mode] is _MULTIPLE:
                numbers.append(row.throughput_Bps / row.payload_bytes)
        yield f"{row.payload_bytes:<10d}" + "".join(f"{number:>18.2f}" for number in numbers)

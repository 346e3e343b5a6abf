"""``make truth``: run trials with known answers, keep the outcomes, and write ``docs/truth.md``.

``results/truth/outcomes.jsonl`` has every outcome with commit and machine.
"""

import itertools
import math
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in (".", "stats", "truth")]

import outcomes  # noqa: E402
from outcomes import exact, rate  # noqa: E402
from test_comparison_rates import sequentially, verdict  # noqa: E402
from trials import BUDGET_S, SHARES, TRIALS, Outcome, is_precise  # noqa: E402

from commbench.model import Stopping  # noqa: E402
from commbench.stats.inference import MIN_LAUNCHES  # noqa: E402

N_RESAMPLED = 2000
FACTORS = (1.0, 0.9, 0.85)
FILE = ROOT / "results" / "truth" / "outcomes.jsonl"
PAGE = ROOT / "docs" / "truth.md"
ENDS = "the trial {} runs to its end"
SUPERSEDED = {
    "shares of tasks that wait for the GIL, within 5 points":
        "the trial counted the event loop's waits for the GIL between tasks as waits in tasks",
    "the share *blocked* of tasks that wait for sleep, within 5 points":
        "34 were right, the others of an hour in which a hypervisor took up to a tenth of the "
        "cores, which *blocked* then contained",
    "a stream of ucx_perftest is at most 10 % faster than one that is acknowledged":
        "the stream had a buffer for each message of a window, too many for the caches; "
        "ucx_perftest has one buffer",
}  # fmt: skip
"""Questions whose outcomes are kept and don't count, and why."""
HEAD = """\
# Truth: how often is commbench right?

{conclusion}

Each trial has a known answer. A question is *shown* if the 95 % interval
(Clopper and Pearson) of answers that are right, and name nothing false, reaches the goal, *missed*
if it is below, else *open*. *Right* has all right ones.
`make truth` adds trials for 40 minutes (`ARGS="--minutes 0"` only writes this page) to
`results/truth/outcomes.jsonl`.

"""


def main() -> None:
    """Run trials until the time is up, and write the page."""
    outcomes.add(FILE, TRIALS, SHARES, _failed, __doc__ or "")
    if rows := outcomes.read(FILE):
        PAGE.write_text(page(rows), encoding="utf-8")


def _failed(name: str, _: int) -> Outcome:
    return Outcome(question=ENDS.format(name), right=False)


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page: the conclusion, a row for each question, and what launches show together."""
    table = pd.DataFrame(rows)
    old = table["question"].isin(SUPERSEDED)
    not_counted = table["question"][old].value_counts().to_dict()
    table = table[~old]
    for name, group in table.groupby("trial"):
        question = ENDS.format(name)
        if (failures := group["question"] == question).any():
            ended = group[~failures].drop_duplicates("seed")
            fields = {**vars(_failed(name, 0)), "right": True}
            table = pd.concat([table, ended.assign(**fields)])
    lines = [
        "| question | right | goal | state | false positives | "
        "error (% or points): median (5 % to 95 %) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    questions: dict[str, list[str]] = {"missed": [], "shown": [], "open": []}
    for question, group in table.groupby("question", sort=False):
        wanted, is_false = group["wanted"].iloc[-1], group["false"].fillna(value=False)
        interval = exact(group["right"].astype(bool) & ~is_false.astype(bool))
        state = "open"
        if interval.high < wanted:
            state = "missed"
        elif interval.low >= wanted:
            state = "shown"
        questions[state].append(question)
        errors = group["error"].dropna()
        spread = ""
        if len(errors):
            low, middle, high = errors.quantile([0.05, 0.5, 0.95])
            spread = f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"
        can_be_false = group["false"].dropna()
        false = rate(can_be_false) if len(can_be_false) else ""
        lines.append(
            f"| {question} | {rate(group['right'])} | {wanted:.0%} | {state} | {false} | {spread} |"
        )
    lines.append("")
    if not_counted:
        reasons = (
            f'{n} outcomes of "{question}" ({SUPERSEDED[question]})'
            for question, n in not_counted.items()
        )
        lines.append(f"Not counted: {'; '.join(reasons)}.")
    lines.append(outcomes.origin(table))
    below, missed = resampled(table)
    head = HEAD.format(conclusion=conclusion(questions) + missed)
    parts = filled(head), "\n".join(lines), filled(below), filled(launches(table))
    return "\n\n".join(filter(None, parts)) + "\n"


def filled(text: str) -> str:
    """Return paragraphs with lines that are as long as in other pages."""
    fill = partial(textwrap.fill, width=120, break_on_hyphens=False)
    parts = text.strip().split("\n\n")
    return "\n\n".join(part if part.startswith("|") else fill(part) for part in parts)


def conclusion(questions: dict[str, list[str]]) -> str:
    """Return what the trials show."""
    n = {state: len(names) for state, names in questions.items()}
    missed = "; ".join(questions["missed"]) or "none"
    return (
        f"**Of {sum(n.values())} questions, {n['shown']} are shown to meet their goals; "
        f"{n['open']} are open: their intervals contain the goal; missed by trials: {missed}.**"
    )


def resampled(table: pd.DataFrame) -> tuple[str, str]:
    """Return how often verdicts are right on resampled runs, and which goals they miss."""
    table = table.reindex(columns=[*Outcome.__dataclass_fields__, "trial"])
    long = table[table["trial"] == "pool"].dropna(subset="designs")
    trials = table.loc[table["trial"] == "equal-backends", "medians_s"].dropna()
    if long.empty or len(trials) < 2:
        return "", ""
    last = long.iloc[-1]
    in_one_go, designs = np.array([*last["iterations_s"].values()]), last["designs"]
    blocks = [block for medians in trials for block in zip(*medians.values(), strict=False)]
    block_s = BUDGET_S / np.median([min(map(len, medians.values())) for medians in trials])
    pools = {
        "half an hour": (in_one_go, designs),
        "several days": (np.array(blocks).T[:, :, None], [(1, block_s)] * len(blocks)),
    }
    rows, missed = [], []
    # With make run's time for two backends, and with the default budget.
    for (name, pool), budget_s in itertools.product(pools.items(), (BUDGET_S, Stopping().budget_s)):
        dice = np.random.default_rng(0)
        runs = [_resample(dice, *pool, budget_s) for _ in range(N_RESAMPLED)]
        n = np.median([len(one) for one, _ in runs])
        shares = {}
        for factor in FACTORS:
            verdicts = {"faster"} if factor < 1 else {"faster", "slower"}
            compared = [
                sequentially(list(one[:, None]), list(factor * two[:, None])) for one, two in runs
            ]
            shares[factor] = np.mean([each.verdict in verdicts for each in compared])
            if factor == 1:
                same = pd.Series([each.verdict == "same" for each in compared if is_precise(each)])
        intervals = {
            factor: _interval(share, pool[0].shape[1] / n) for factor, share in shares.items()
        }
        cells = [
            f"{shares[factor]:.0%} ({low:.0%} to {high:.0%})"
            for factor, (low, high) in intervals.items()
        ]
        cells.append(f"{same.mean():.0%} of {len(same)}")
        rows.append(" | ".join([f"| {name} | {budget_s:.0f} s, {n:.0f} blocks", *cells]) + " |")
        # As of trials, a goal within the interval is open.
        goals = {
            f"call equal backends different in {cells[0]}, goal: ≤ 5 %": intervals[1.0][0] <= 0.05,
            f"detect 10 % less time in {cells[1]}, goal: 80 %": intervals[0.9][1] >= 0.8,
            f"detect 15 % less in {cells[2]}, goal: 95 %": intervals[0.85][1] >= 0.95,
            f"call precise equal backends the same in {cells[3]}, goal: half": 2 * same.sum()
            >= len(same),
        }
        if several := [goal for goal, is_met in goals.items() if not is_met]:
            missed.append(
                f" **Resampled runs of {n:.0f} launches, of {name}, miss goals**: they "
                f"{'; '.join(several)}."
            )
    runs = [[np.array([median]) for median in medians["tcp"]] for medians in trials]
    between = [verdict(*pair, paired=False).verdict for pair in itertools.pairwise(runs)]
    differ = pd.Series([name in ("faster", "slower") for name in between])
    resampled_rows = "\n".join(rows)
    block_s_now = np.median([seconds for _, seconds in designs])
    low, high = (extreme(n for n, _ in designs) for extreme in (min, max))
    text = f"""
## Resampled runs

Each row has {N_RESAMPLED:,} runs with five looks: successive blocks, a launch each of tcp under two
names, as many as the budget has time for. *Half an hour*: {in_one_go.shape[1]} blocks in one go,
of {block_s_now:.1f} s; of {in_one_go.shape[2]} iterations a run has {low} to {high}, as its design
chooses from ten launches. *Several days*: {len(blocks)} blocks, of {block_s:.1f} s in slower hours,
of {len(trials)} trials of equal backends. For *detected*, one backend's times are multiplied by 0.9
or 0.85. The intervals are for as many runs as don't overlap. *Precise*: the ratio's standard error
is at most 2 %. `commbench compare` without `--control` calls successive runs of tcp different in
{rate(differ)}.

| blocks from | `--budget` | false difference (goal: ≤ 5 %) | 10 % detected (≥ 80 %) | \
15 % detected (≥ 95 %) | precise: equal is `same` (≥ 50 %) |
| --- | --- | --- | --- | --- | --- |
{resampled_rows}
"""
    return text, "".join(missed)


def _interval(share: float, n: float) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a share, for `n` independent ones."""
    low = stats.beta.ppf(0.025, share * n, n - share * n + 1) if share else 0.0
    high = stats.beta.ppf(0.975, share * n + 1, n - share * n) if share < 1 else 1.0
    return low, high


def _resample(
    dice: np.random.Generator, times: Any, designs: list[tuple[int, float]], budget_s: float
) -> tuple[Any, Any]:
    """Return the medians of the launches of two backends, in a run that a pool contains."""
    n_blocks, n_iterations = times.shape[1:]
    block = length = n_blocks
    while block + length > n_blocks:
        block = dice.integers(len(designs))
        iterations, block_s = designs[block]
        length = max(MIN_LAUNCHES, int(budget_s / block_s))
    iterations = min(iterations, n_iterations)
    first = dice.integers(n_iterations - iterations + 1)
    part = times[dice.permutation(2), block : block + length, first : first + iterations]
    one, two = np.median(part, axis=2)
    return one, two


def launches(table: pd.DataFrame) -> str:
    """Return how much launches vary by the way in which their processes start."""
    trials = table[table["trial"] == "forked-launches"]["medians_s"].dropna()
    if trials.empty:
        return ""
    # The variances of the logarithms within trials, together.
    logs = {start: [np.log(medians[start]) for medians in trials] for start in trials.iloc[0]}
    free = {start: sum(len(group) - 1 for group in groups) for start, groups in logs.items()}
    sd = {
        start: math.sqrt(sum(((group - group.mean()) ** 2).sum() for group in groups) / free[start])
        for start, groups in logs.items()
    }
    ratio = sd["fork"] / sd["spawn"]
    low, high = (
        ratio / math.sqrt(stats.f.ppf(share, free["fork"], free["spawn"]))
        for share in (0.975, 0.025)
    )
    found = "No difference is shown"
    if not low <= 1 <= high:
        found = f"Forked launches vary {'less' if ratio < 1 else 'more'}"
    return f"""
## Forked and fresh processes

**{found}.** The local launcher forks its processes, so launches could vary less than those of
users do. {len(trials)} trials measured a merge with both in turns. The standard deviation between
launches was {sd["fork"]:.1%} with forked and {sd["spawn"]:.1%} with fresh ones: {ratio:.2f} times
as much, 95 % interval {low:.2f} to {high:.2f} (F, {free["fork"]} and {free["spawn"]} degrees of
freedom).
"""


if __name__ == "__main__":
    main()

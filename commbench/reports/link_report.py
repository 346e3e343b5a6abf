"""The output of ``commbench links``: whether every link of a cluster does what it should."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from commbench.analysis import warnings
from commbench.analysis.run import Run
from commbench.model import FETCHES, registry
from commbench.model.units import format_bandwidth, format_message_size, format_seconds
from commbench.reports import json, sentences, terminal
from commbench.reports.sections import Table, heading, plural, quantities
from commbench.reports.sections.pair_tables import opening
from commbench.stats.links import link_classes, moved_workers, n_hosts
from commbench.stats.stragglers import MIN_PAIRS, MIN_SLOWDOWN, MIN_TRANSFERS, quickest_round_trips

ALONE, _, ROUNDS = FETCHES
FINE, UNJUDGED, FAULTY = "fine", "not judged", "faulty"


_FEW = 0.15
"""The share of links that may be faster than most by chance."""
_MIN_CONGESTED = 4
"""The number of hosts from which two pairs exchange at a time."""


class LinkReport:
    """The judgement of a run of the workload ``links`` on the links between hosts, or workers."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def faults(self) -> list[Any]:
        """The findings about links, the slowest first."""
        rules = registry.loadable("rule")
        names = {name for name, rule in rules.items() if rule.concerns_links}
        return [each for each in self.run.findings if each.rule in names]

    @cached_property
    def links(self) -> pd.DataFrame:
        """The rows of ``run.pairs`` of rounds."""
        return self.run.pairs[self.run.pairs["channel"] == ROUNDS]

    @cached_property
    def classes(self) -> pd.DataFrame:
        """A row per backend and class of links.

        ``n`` links; in rounds, the median ``typical_Bps`` of the medians of those that are not
        slow, and the ``slowest_Bps`` and ``fastest_Bps`` of all; ``alone_Bps``, the median of those
        that are not slow and were measured alone, the ``expected_Bps`` and its ``share``;
        ``latency_s`` and ``longest_s``: the median and the maximum over the links of half the round
        trip of an empty request, the median over iterations of the quickest one.
        """
        trips = quickest_round_trips(self.run)
        trips = trips[trips["iteration"] >= 0]
        trips = trips.assign(link=link_classes(trips, self.run).astype("str"))
        key = ["backend", "link"]
        medians = trips.groupby([*key, "src", "dst"], observed=True)["seconds"].median() / 2
        latency = medians.groupby(level=key).agg(latency_s="median", longest_s="max")
        pair = [*key, "src", "dst"]
        pairs = self.run.pairs.astype(dict.fromkeys([*pair, "channel"], "str"))
        slow = self.run.slow_pairs.query("kind != 'all'")[pair].assign(slow=True)
        pairs = pairs.merge(slow, "left", pair)
        pairs["ordinary"] = pairs["q50_Bps"].where(pairs["slow"].isna())
        table = pairs[pairs["channel"] == ROUNDS].groupby(key, sort=False).agg(
            n=("q50_Bps", "size"), typical_Bps=("ordinary", "median"),
            slowest_Bps=("q50_Bps", "min"), fastest_Bps=("q50_Bps", "max"),
        )  # fmt: skip
        alone = pairs[pairs["channel"] == ALONE].groupby(key)["ordinary"].median()
        table = table.join(latency).join(alone.rename("alone_Bps")).reset_index()
        expected_Bps = table["link"].map(self.run.manifest.expected_Bps).astype(float)  # noqa: N806
        return table.assign(expected_Bps=expected_Bps, share=table["alone_Bps"] / expected_Bps)

    @cached_property
    def congestion(self) -> dict[str, pd.Series[float]]:
        """The rate in rounds as a share of that alone, of each pair with both, by variant.

        In rounds of fewer than four hosts there is only one pair, alone as well.
        """
        key = ["case_id", "src", "dst"]
        pairs = self.run.pairs.astype(dict.fromkeys([*key, "channel"], "str"))
        rates = pairs.pivot(index=key, columns="channel", values="q50_Bps")
        rates = rates.reindex(columns=[ALONE, ROUNDS])
        shares = dict(iter((rates[ROUNDS] / rates[ALONE]).dropna().groupby("case_id")))
        by_case = self.links.groupby("case_id", observed=True)
        n_ends = {case_id: _n_ends(links) for case_id, links in by_case}
        return {
            case.variant: shares[case.id]
            for case in self.run.suite.cases
            if case.id in shares and n_ends[case.id] >= _MIN_CONGESTED
        }

    @cached_property
    def not_judged(self) -> list[str]:
        """Why links could not be judged, a sentence per class."""
        if self.links.empty:
            return ["No link has a rate: every block was smaller than --min-transfer."]
        if moved_workers(self.run):
            return ["Workers were on other hosts in other launches: take --launches 1."]
        texts = [f"{each[0].upper()}{each[1:]}." for each in self.run.rule_problems]
        expected = self.run.manifest.expected_Bps
        known = {*self.links["link"].astype("str")}
        if expected and known.isdisjoint(expected):
            texts.append(
                f"No link is of the class {' or '.join(expected)} (--expect): they are "
                f"{' and '.join(sorted(known))}."
            )
        trips = quickest_round_trips(self.run)
        trips = trips[trips["iteration"] >= 0]
        n_trips = trips.groupby(["case_id", "src", "dst"], observed=True).size()
        n_pairs = n_trips.groupby("case_id", observed=True).size()
        if n_pairs.max() >= 2 * MIN_PAIRS and n_trips.min() < MIN_TRANSFERS:
            texts.append(f"Latencies: under {MIN_TRANSFERS} round trips; take more --iterations.")
        for (name, link), rows in self.links.groupby(["backend", "link"], observed=True):
            what = f"{plural(len(rows), 'link')} of the class {link} over {name}"
            expect = f"say what they should have: --expect '{link}=100Gb/s'"
            if rows["n"].min() < MIN_TRANSFERS:
                texts.append(f"{what}: under {MIN_TRANSFERS} transfers; take more --iterations.")
            elif len(rows) < MIN_PAIRS and link not in self.run.manifest.expected_Bps:
                texts.append(f"{what}: too few to know which is slow; {expect}.")
            elif link not in self.run.manifest.expected_Bps:
                # If most of them are slow, that is typical, and none is an exception.
                rates = np.sort(rows["q50_Bps"])
                n_fast = max(2, math.ceil(_FEW * len(rates)))
                if (ratio := rates[-n_fast] / np.median(rates)) >= MIN_SLOWDOWN:
                    texts.append(
                        f"{what}: {n_fast} of them are {ratio:.1f} times as fast as the median "
                        f"one or faster, and either may be usual; {expect}."
                    )
        return texts

    @property
    def outcome(self) -> str:
        """``faulty``, ``not judged`` or ``fine``."""
        return FAULTY if self.faults else UNJUDGED if self.not_judged else FINE

    def _lines(self) -> Iterator[str]:
        n_ends = _n_ends(self.links)
        ends = "hosts" if n_hosts(self.run) > 1 else "workers of one host"
        n_links = len(self.links[["src", "dst"]].drop_duplicates())
        every = f"{n_links} links between {n_ends} {ends}"
        match self.outcome:
            case "fine":
                backends = dict.fromkeys(case.variant for case in self.run.suite.cases)
                yield f"All {every} are fine over {' and '.join(backends)}."
            case "faulty":
                yield f"{plural(len(self.faults), 'fault')} in the {every}:"
        for each in self.faults:
            yield sentences.sentence(self.run, [each])
        yield from (f"Not judged: {text}" for text in self.not_judged)

    def _congestion(self) -> Iterator[str]:
        for variant, share in self.congestion.items():
            over = f" over {variant}" * (len(self.run.suite.cases) > 1)
            yield (
                f"While all others exchange, too, a link{over} has {share.median():.0%} of its "
                f"rate alone (median of {plural(len(share), 'link')}, least {share.min():.0%})."
            )

    def _table(self) -> Table:
        table = self.classes
        (size,) = {max(case.params["sizes"]) for case in self.run.suite.cases}
        shares = [f"{share:.0%}" if share == share else "—" for share in table["share"]]
        return Table.from_columns(
            f"Links, by blocks of {format_message_size(size)}",
            {
                "backend": table["backend"],
                "class": table["link"],
                "links": quantities(str, table["n"]),
                "alone": quantities(format_bandwidth, table["alone_Bps"]),
                **({"of ex-\npected": shares} if self.run.manifest.expected_Bps else {}),
                "in rounds": quantities(format_bandwidth, table["typical_Bps"]),
                "slowest": quantities(format_bandwidth, table["slowest_Bps"]),
                "latency": quantities(format_seconds, table["latency_s"]),
                "longest\nlatency": quantities(format_seconds, table["longest_s"]),
            },
            "Rates: medians of pairs that aren't slow, one at a time, and in rounds: all hosts at "
            "once, in pairs; slowest: of all. Latency: half of the quickest round trip of an empty "
            "request.",
            {"class"},
        )

    def text(self) -> str:
        """Return the conclusion and its numbers for a terminal."""
        disturbed = [text for text in self.run.warnings if isinstance(text, warnings.Disturbance)]
        more = [*self._congestion(), *map(str, opening(self.run))]
        more += [f"! {each.statement}" for each in disturbed if each.statement]
        parts: list[str | Table] = ["\n".join(self._lines()), self._table(), "\n".join(more)]
        return terminal.page(heading(self.run), [], parts)

    def document(self) -> str:
        """Return the conclusion and its numbers as JSON, in base units."""
        return json.dumps(
            {
                "run": str(self.run.path),
                "outcome": self.outcome,
                "faults": [asdict(each) for each in self.faults],
                "not_judged": self.not_judged,
                "slow_pairs": self.run.slow_pairs.to_dict("records"),
                "slow_latencies": self.run.slow_latencies.to_dict("records"),
                "classes": self.classes.to_dict("records"),
                "share_in_rounds": {name: s.median() for name, s in self.congestion.items()},
                "links": self.links.to_dict("records"),
            }
        )


def _n_ends(links: pd.DataFrame) -> int:
    return len({*links["src"], *links["dst"]})

"""brief: a line per backend, for a chat."""

from commbench import format_seconds


def render(run):
    lines = [f"⚠ {warning}" for warning in run.warnings]  # first, in every format
    for row in run.summaries.itertuples():
        task = run.case_labels[row.case_id]
        lines.append(
            f"{task} over {row.backend}: {format_seconds(row.median_s)}"
            f" ({row.n_launches} launches, {row.throughput_Bps / 1e9:.3g} GB/s)"
        )
    return "\n".join(lines) + "\n"

"""brief: a line per backend, for a chat."""

from commbench import format_bandwidth, format_message_size, format_seconds


def render(run):
    lines = [f"⚠ {warning}" for warning in run.warnings]  # first, in every format
    for row in run.summaries.itertuples():
        task, size = run.case_labels[row.case_id], row.payload_bytes
        task += "" if row.layer == "workload" else f" {row.layer} {format_message_size(size)}"
        rate = f", {format_bandwidth(row.throughput_Bps)}" if size else ""
        time = format_seconds(row.median_s)
        lines.append(f"{task} over {row.backend}: {time} ({row.n_launches} launches{rate})")
    return "\n".join(lines) + "\n"

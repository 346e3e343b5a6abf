"""receivers: how much each worker fetched."""

from commbench import Section, Table, format_bytes, stats


def tables(run):
    # Fetches of measured iterations, in launches that ended well.
    fetches = stats.counted(run.transfers, run)
    if fetches.empty:
        return
    received = fetches.groupby(["backend", "dst"], observed=True, sort=False)["nbytes"].sum()
    yield Table(
        "Bytes that each worker fetched",
        ("backend", "worker", "bytes"),
        tuple((backend, dst, format_bytes(nbytes)) for (backend, dst), nbytes in received.items()),
    )


# It stands between "Pairs of workers" (80) and "Failures" (90).
SECTION = Section(title="Receivers", position=81, tables=tables)

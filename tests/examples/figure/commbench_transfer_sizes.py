"""transfer-sizes: how large the fetches between workers are."""


def plot(run):
    from matplotlib.figure import Figure

    from commbench import stats

    # Fetches of measured iterations, in launches that ended well.
    fetches = stats.counted(run.transfers, run)
    if fetches.empty:
        return None
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for backend, rows in fetches.groupby("backend", observed=True, sort=False):
        axes.ecdf(rows["nbytes"], label=f"{backend} ({len(rows)} fetches)")
    axes.set_xscale("log")
    axes.set_xlabel("size of a fetch, in memory (B)")
    axes.set_ylabel("share of the fetches up to that size")
    axes.legend()
    return figure

"""Let processes draw only the figures that a test looks at, because others take seconds."""

import os

if (allowed := os.environ.get("COMMBENCH_TEST_FIGURES")) is not None:
    from importlib import metadata

    every = metadata.entry_points

    class Allowed:
        """Entry points without other figures."""

        def __init__(self, points):
            self._points = points

        def __getattr__(self, name):
            return getattr(self._points, name)

        def select(self, **given):
            found = self._points.select(**given)
            if given.get("group") == "commbench.plots":
                found = metadata.EntryPoints(p for p in found if p.name in allowed.split(","))
            return found

    metadata.entry_points = lambda **given: every(**given) if given else Allowed(every())

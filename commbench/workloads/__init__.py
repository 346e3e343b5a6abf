"""Workloads: what is measured; a plug-in, or the ``main(client)`` of a user's file."""

from __future__ import annotations

from typing import Any

from commbench.model import registry


def load(name: str) -> Any:
    """Return the class of a workload: that of a plug-in, or one for ``SCRIPT.py`` or ``a.b:main``.

    Raises
    ------
    UnknownNameError
        If there is no plug-in of that name.
    UsageError
        If the file has no function that can be a workload.
    """
    from commbench.workloads import user_code

    if name not in registry.names("workload") and user_code.is_named_by(name):
        return user_code.workload(name)
    return registry.load("workload", name)

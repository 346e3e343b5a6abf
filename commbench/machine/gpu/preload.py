"""Preloaded by the workers of a cluster with ``--device gpu``: to import it is to set them up.

Dask imports preloads before a worker listens. Their ``dask_setup`` it calls after that, which would
be too late for UCX, and would hide what goes wrong in the log.
"""

from __future__ import annotations

from commbench.machine.gpu import set_up

set_up()

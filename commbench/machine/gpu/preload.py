"""Set up the GPU of a worker when this module is imported, as a preload with ``--device gpu``.

Dask imports preloads before a worker listens, but calls their ``dask_setup`` afterwards. This would
be too late for UCX, and errors would only appear in the log.
"""

from __future__ import annotations

from commbench.machine.gpu import set_up

set_up()

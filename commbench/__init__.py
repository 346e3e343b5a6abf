"""commbench: benchmarks and profiles communication in Dask.

Everything public is an attribute of this package, imported when it is first used;
``docs/api.md`` documents it.
"""

import lazy_loader

__version__ = "0.1.0.dev0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

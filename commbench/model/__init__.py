"""The data model: suites and cases to measure, and the records of measurements.

Data flows one way::

    Suite → Plan → Launch (a child process) → Record … → store → summaries → report

Times are in seconds, sizes in bytes, and the name of every number ends in its unit. Points in time
(``*_at_s``, ``start_s``, ``stop_s``) are seconds since the epoch on the measuring host's clock.
Workers are identified by name, because their addresses differ between launches.

The kinds of records are in `commbench.model.observed`. The other classes are imported when they are
first used, because making them takes time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

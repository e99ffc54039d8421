"""Threads of one process where a container grants it less time than the machine has cores."""

import logging
import os
import sys

from paratune.hardware import core_quota

log = logging.getLogger(__name__)


def respect_quota() -> None:
    """Set OMP_NUM_THREADS to the container's quota of cores, unless it is set or the quota is no limit.

    Affinity is what OpenMP looks at by itself; of a quota it knows nothing, and threads beyond it take turns, each
    waiting for the others at every barrier. Must be called before torch is imported, which reads it once.
    """
    quota = core_quota()
    num_cores = os.cpu_count() or 1
    if quota is None or quota >= num_cores or "OMP_NUM_THREADS" in os.environ or "torch" in sys.modules:
        return
    num_threads = max(1, int(quota))
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    log.info("OMP_NUM_THREADS=%d: the container grants %.3g of %d cores", num_threads, quota, num_cores)

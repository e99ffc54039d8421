"""The number of threads of a process in a container with a CPU quota."""

import logging
import os
import sys

from paratune.hardware import core_quota

log = logging.getLogger(__name__)


def respect_quota() -> None:
    """Set OMP_NUM_THREADS to the CPU quota of the container, unless it is set or there is no quota.

    OpenMP respects the CPU affinity but not a quota: more threads than the quota wait for each other at every barrier.
    Must be called before torch is imported, which reads the variable once.
    """
    quota = core_quota()
    num_cores = os.cpu_count() or 1
    if quota is None or quota >= num_cores or "OMP_NUM_THREADS" in os.environ or "torch" in sys.modules:
        return
    num_threads = max(1, int(quota))
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    log.info("OMP_NUM_THREADS=%d: the container grants %.3g of %d cores", num_threads, quota, num_cores)

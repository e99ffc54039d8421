"""Samples how busy a rank's device is, its memory and its power, from a thread beside the training loop.

Only what happens between `resume` and `pause` is sampled: steps, not evaluations, checkpoints or what comes before the
first step. A sample covers the time since the one before, or since `resume`; `pause` takes the last of a stretch, so
that the energies of the samples add up to that of the steps. Samples wait in memory until the recorder writes them.
"""

import threading
import time
from typing import Any

from paratune.engine.probes import DeviceProbe, Reading

LEAST_S = 0.2
"""Shortest time that a sample says anything of: the kernel counts CPU time in hundredths of seconds."""


class Sampler:
    """One for each process; without a probe it does nothing."""

    def __init__(
        self,
        probe: DeviceProbe | None,
        *,
        name: str,
        interval_s: float | None,
        reason: str | None = None,
        step: int = 1,
        is_warmup: bool = True,
    ) -> None:
        """Start the thread, if there is something to sample.

        Args:
            probe: Reads the device.
            name: Of the device, for the record.
            interval_s: Seconds between samples; None takes none.
            reason: Why there is no probe.
            step: The first step to come, counted from 1.
            is_warmup: Whether that one is for warming up.
        """
        self._probe = probe if interval_s is not None else None
        self._name, self._interval_s, self._reason = name, interval_s, reason
        self._step, self._is_warmup = step, is_warmup
        self._is_profiled = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._samples: list[dict[str, Any]] = []
        self._began: float | None = None
        """When this stretch of steps did; None between stretches."""
        self._last: tuple[float, Reading] = (0.0, Reading())
        self.cost_s = 0.0
        """CPU seconds spent in here."""
        self._thread: threading.Thread | None = None
        if self._probe is not None:
            self._thread = threading.Thread(target=self._run, name="paratune-sampler", daemon=True)
            self._thread.start()

    def facts(self) -> dict[str, Any] | None:
        """Return what the event `sampler` says; None where sampling is switched off."""
        if self._interval_s is None:
            return None
        probe = self._probe
        reasons = [self._reason] if self._reason else []
        return {
            "kind": probe.kind if probe else None,
            "name": self._name,
            "interval_s": self._interval_s,
            "energy_source": probe.energy_source if probe else None,
            "is_energy_here": probe is None or probe.is_energy_here,
            "reason": "; ".join([*reasons, *(probe.reasons if probe else [])]) or None,
        }

    def resume(self, *, is_profiled: bool = False) -> None:
        """Begin a stretch of steps; `is_profiled` says whether they run under the profiler."""
        if self._probe is not None:
            with self._lock:
                self._is_profiled = is_profiled
                self._begin()

    def pause(self) -> None:
        """End it, if one is under way, behind the last step: what a checkpoint of that step brings back is kept."""
        if self._probe is not None:
            with self._lock:
                self._end(self._step - 1)

    def next_step(self, step: int, *, is_warmup: bool) -> None:
        """Note which step begins, counted from 1, and whether it is for warming up."""
        if self._probe is None:
            return
        if is_warmup != self._is_warmup:
            with self._lock:  # no sample has both
                is_running = self._began is not None
                self._end(self._step)
                self._step, self._is_warmup = step, is_warmup
                if is_running:
                    self._begin()
        self._step = step

    def take(self) -> list[dict[str, Any]]:
        """Return the samples since the last call."""
        with self._lock:
            samples, self._samples = self._samples, []
        return samples

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        assert self._interval_s is not None
        while not self._closed.wait(self._interval_s):
            with self._lock:
                if self._began is not None:
                    self._sample(self._step)

    def _begin(self) -> None:
        self._began = time.perf_counter()
        self._last = self._began, self._read()

    def _end(self, step: int) -> None:
        if self._began is not None:
            self._sample(step)
        self._began = None

    def _read(self) -> Reading:
        assert self._probe is not None
        begin = time.thread_time()
        reading = self._probe.read()
        self.cost_s += time.thread_time() - begin
        return reading

    def _sample(self, step: int) -> None:
        """Add the sample of the time since the last reading, which ends in a step or behind it."""
        assert self._began is not None
        assert self._probe is not None
        before, old = self._last
        reading = self._read()
        now = time.perf_counter()
        self._last = now, reading
        seconds = now - before
        utilisation = machine = None
        if seconds >= LEAST_S and now - self._began >= self._probe.window_s:
            utilisation = reading.utilisation
            if utilisation is None:
                utilisation = _share(old.busy_s, reading.busy_s, seconds)
            machine = _share(old.machine_busy_s, reading.machine_busy_s, seconds)
        energy_j, power_w = self._energy_j(old, reading, seconds), reading.power_w
        if power_w is None and energy_j is not None and seconds >= LEAST_S:
            power_w = energy_j / seconds
        if seconds < LEAST_S and energy_j is None:
            return
        known = {
            "utilisation": utilisation,
            "machine": machine,
            "memory_bytes": reading.memory_bytes,
            "power_w": power_w,
            "energy_j": energy_j,
        }
        head = {"step": step, "warmup": self._is_warmup, "seconds": round(seconds, 4)}
        head |= {"profiled": True} if self._is_profiled else {}
        self._samples.append({**head, **{key: round(value, 4) for key, value in known.items() if value is not None}})

    def _energy_j(self, old: Reading, new: Reading, seconds: float) -> float | None:
        """Return what the device took between two readings; without a counter power counts, as a straight line."""
        assert self._probe is not None
        if self._probe.energy_source == "nvml power":
            if old.power_w is None or new.power_w is None:
                return None
            return (old.power_w + new.power_w) / 2 * seconds
        return None if old.energy_j is None or new.energy_j is None else new.energy_j - old.energy_j


def _share(before: float | None, after: float | None, seconds: float) -> float | None:
    """Return the part of some time in which cores were busy, 1 at most.

    The kernel's clock is coarser than ours, and a rank may take more than its part of the machine's cores.
    """
    return None if before is None or after is None else min(1.0, max(0.0, after - before) / seconds)

"""Samples utilisation, memory and power of a rank's device, in a thread next to the training loop.

Samples cover only the time between `resume` and `pause`: steps, but not evaluations, checkpoints or the start. A sample
covers the time since the previous one or since `resume`; `pause` takes a last sample, so that the sum of the samples'
energies is the energy of the steps. Samples stay in memory until the recorder writes them.
"""

import threading
import time
from typing import Any

from paratune.engine.probes import DeviceProbe, Reading

MIN_SAMPLE_S = 0.2
"""Shortest time for a utilisation: the kernel counts CPU time in hundredths of a second."""


class Sampler:
    """Samples the device of a process; without a probe it does nothing."""

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
        """Start the thread, if there is a probe and an interval; `step` is the first step, counted from 1."""
        self._probe = probe if interval_s is not None else None
        self._name, self._interval_s, self._reason = name, interval_s, reason
        self._step, self._is_warmup = step, is_warmup
        self._is_profiled = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._samples: list[dict[str, Any]] = []
        self._begin_s: float | None = None
        """Time of the last `resume`; None after `pause`."""
        self._last: tuple[float, Reading] = (0.0, Reading())
        self.cost_s = 0.0
        """CPU seconds that reading the probe took."""
        self._thread: threading.Thread | None = None
        if self._probe is not None:
            self._thread = threading.Thread(target=self._run, name="paratune-sampler", daemon=True)
            self._thread.start()

    def facts(self) -> dict[str, Any] | None:
        """Return the fields of the event `sampler`; None if sampling is switched off."""
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
        """Start to sample: steps follow, under the profiler if `is_profiled`."""
        if self._probe is not None:
            with self._lock:
                self._is_profiled = is_profiled
                self._begin()

    def pause(self) -> None:
        """Take a last sample, which belongs to the last step: a run resumed from a checkpoint of that step keeps it."""
        if self._probe is not None:
            with self._lock:
                self._end(self._step - 1)

    def next_step(self, step: int, *, is_warmup: bool) -> None:
        """Set the current step, counted from 1, and whether it is a warm-up step."""
        if self._probe is None:
            return
        if is_warmup != self._is_warmup:
            with self._lock:  # a sample covers either warm-up steps or others
                is_running = self._begin_s is not None
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
                if self._begin_s is not None:
                    self._sample(self._step)

    def _begin(self) -> None:
        self._begin_s = time.perf_counter()
        self._last = self._begin_s, self._read()

    def _end(self, step: int) -> None:
        if self._begin_s is not None:
            self._sample(step)
        self._begin_s = None

    def _read(self) -> Reading:
        assert self._probe is not None
        begin = time.thread_time()
        reading = self._probe.read()
        self.cost_s += time.thread_time() - begin
        return reading

    def _sample(self, step: int) -> None:
        """Add a sample of the time since the last reading, which ends in or after this step."""
        assert self._begin_s is not None
        assert self._probe is not None
        before, old = self._last
        reading = self._read()
        now = time.perf_counter()
        self._last = now, reading
        seconds = now - before
        utilisation = machine = None
        if seconds >= MIN_SAMPLE_S and now - self._begin_s >= self._probe.window_s:
            utilisation = reading.utilisation
            if utilisation is None:
                utilisation = _share(old.busy_s, reading.busy_s, seconds)
            machine = _share(old.machine_busy_s, reading.machine_busy_s, seconds)
        energy_j, power_w = self._energy_j(old, reading, seconds), reading.power_w
        if power_w is None and energy_j is not None and seconds >= MIN_SAMPLE_S:
            power_w = energy_j / seconds
        if seconds < MIN_SAMPLE_S and energy_j is None:
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
        """Return the energy between two readings; without a counter it is the mean power times the seconds."""
        assert self._probe is not None
        if self._probe.energy_source == "nvml power":
            if old.power_w is None or new.power_w is None:
                return None
            return (old.power_w + new.power_w) / 2 * seconds
        return None if old.energy_j is None or new.energy_j is None else new.energy_j - old.energy_j


def _share(before: float | None, after: float | None, seconds: float) -> float | None:
    """Return the share of the time in which cores were busy, limited to 0 to 1.

    The kernel's clock is coarser than ours, and a rank may use more than its share of the machine's cores.
    """
    return None if before is None or after is None else min(1.0, max(0.0, after - before) / seconds)

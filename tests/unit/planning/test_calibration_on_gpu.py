"""The calibration of a GPU, on stand-ins of its tensors: they have a device and a shape and no numbers.

A CPU build of PyTorch cannot compute with fake CUDA tensors that need gradients. Tensors of the meta device stand for
them, a dispatch mode refuses what a GPU would refuse, and readings of a clock are given.
"""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import adam
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paratune.models.attention import masks, register
from paratune.planning import anchors, calibration, clock, probes, target
from paratune.planning.calibration import calibration_file, stored_constants
from paratune.planning.clock import EventClock, HostCallClock
from paratune.planning.machine import detect_machine
from paratune.planning.target import MeasuredDevice, Sizes, sizes_on_gpu

META = torch.device("meta")
SMALL = Sizes(
    products=((8, 8, 8), (16, 16, 16)),
    num_heads=2,
    lengths=(8, 16),
    numbers=(1 << 10, 1 << 12),
    num_ids=8,
    widths=(8, 16),
    cold=(8, 16, 16, 2),
    weights=(64, 64),
)
SMALL_ANCHORS = (anchors.Anchor(64, 1, (8, 3)), anchors.Anchor(64, 1, (8, 3), "padded"))


class OneDevice(TorchDispatchMode):
    """Raises where an operator gets tensors of two devices, as CUDA does; numbers of the host may be on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor) and tensor.dim() > 0]
        kinds = {tensor.device.type for tensor in tensors}
        if len(kinds) > 1 and "copy" not in str(func):
            raise RuntimeError(f"{func} got tensors on {sorted(kinds)}")
        return func(*args, **(kwargs or {}))


class GivenClock:
    """Makes each call once under `OneDevice`, and returns another value for each kind of time."""

    def __init__(self) -> None:
        self.num_read = {"device": 0, "host": 0, "wall": 0}

    def _read(self, kind: str, call: clock.Call, calls: int, seconds: float) -> float:
        with OneDevice():
            call()
        self.num_read[kind] += 1
        return seconds * calls

    def device_s(self, call: clock.Call, calls: int) -> float:
        return self._read("device", call, calls, 1e-3)

    def host_s(self, call: clock.Call, calls: int) -> float:
        return self._read("host", call, calls, 2e-3)

    def wall_s(self, call: clock.Call, calls: int) -> float:
        return self._read("wall", call, calls, 3e-3)

    def num_calls(self, call: clock.Call) -> int:
        return 1


def packed_on_gpu(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int, **_: Any) -> Tensor:
    """Replace the kernel, which reads the offsets of rows on the device."""
    if cu_seqlens.device != query.device:
        raise RuntimeError(f"cu_seqlens is on {cu_seqlens.device}, queries are on {query.device}")
    return query + key + value


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path))
    for module in (register, masks):
        monkeypatch.setattr(module, "ON_DEVICE", ("meta",))
    monkeypatch.setattr(register.cuda, "attend", packed_on_gpu)
    enable_packed_batches = anchors.enable_packed_batches
    monkeypatch.setattr(anchors, "enable_packed_batches", lambda model, device, dtype: enable_packed_batches(model))
    monkeypatch.setattr(anchors, "ANCHORS_ON_GPU", SMALL_ANCHORS)
    monkeypatch.setattr(anchors, "captured", lambda call: call)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.to(META))
    monkeypatch.setattr(
        probes, "cpu_target", lambda: MeasuredDevice(torch.device("cpu"), HostCallClock(1e-4), SMALL, False)
    )
    # The fused update checks that the device has kernels; tensors without numbers need none.
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda parameter, cuda_unsupported=False: None)


def on_gpu(given: GivenClock) -> MeasuredDevice:
    return MeasuredDevice(META, given, SMALL, is_cuda=True)


def test_the_whole_calibration_runs_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    given = GivenClock()
    constants = calibration.measure_process(on_gpu(given), ["fp32", "bf16"], {})
    measured = {name for name in constants if constants[name].source.startswith("measured")}
    kernels = {f"{family}.{arithmetic}" for family in ("product", "batched") for arithmetic in ("fp32", "bf16")}
    assert measured == kernels | {
        *("elementwise", "activation", "softmax", "norm", "dropout", "random", "gather", "scatter", "adamw"),
        *("adamw.tensor", "loader", "host_link", "adamw.host", "launch.forward", "launch.backward", "kernel"),
        *("factor.forward", "factor.backward"),
    }
    assert all(given.num_read.values())


def test_kernels_are_timed_by_the_device_and_launching_by_the_host() -> None:
    constants = calibration.measure_process(on_gpu(GivenClock()), ["fp32"], {})
    # Three products of 2 x 16^3 FLOP in 1 ms of the device; calling them is not taken off.
    assert constants["product.fp32"].value == pytest.approx(3 * 2 * 16**3 / 1e-3)
    # Sums of 256 kernels in 1 ms of the device.
    assert constants["kernel"].value == pytest.approx(1e-3 / 256)
    # 100 tensors in 2 ms of the host.
    assert constants["adamw.tensor"].value == pytest.approx(2e-5)
    # A pass in 2 ms of the host; the backward pass is what both take without that, a fifth at least.
    forward, backward = (constants[f"launch.{name}"].value for name in ("forward", "backward"))
    profile = anchors._make_passes(anchors.SMALLEST, on_gpu(GivenClock())).profile
    assert forward * profile.forward.num_kernels == pytest.approx(2e-3)
    assert backward * profile.backward.num_kernels == pytest.approx(0.2 * 2e-3)


def test_launch_times_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = anchors.launch_facts(on_gpu(GivenClock()))
    assert facts == {name: pytest.approx(value / 256) for name, value in
                     (("eager_host_s", 2e-3), ("eager_device_s", 1e-3), ("graph_device_s", 1e-3))}  # fmt: skip
    monkeypatch.setattr(target, "cuda_target", lambda: on_gpu(GivenClock()))
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    gpu = SimpleNamespace(**{**vars(detect_machine()), "is_cuda": True})
    monkeypatch.setattr(calibration, "detect_machine", lambda: gpu)
    monkeypatch.setattr(calibration, "with_measurements", lambda machine, figures: detect_machine())
    with_measurements = calibration.calibrate()
    assert set(with_measurements.launching) == {"eager_host_s", "eager_device_s", "graph_device_s"}
    assert {"product.fp32", "product.fp16", "kernel"} <= set(stored_constants(gpu.name)[1])
    assert '"graph_device_s"' in calibration_file(gpu.name).read_text()
    assert any("graph_device_s: 3.91 us" in line for line in with_measurements.lines())


def test_sizes_follow_the_device() -> None:
    # H100 SXM: 132 multiprocessors, 50 MB of L2, 80 GB.
    large = sizes_on_gpu(num_multiprocessors=132, l2_bytes=50 << 20, memory_bytes=80 << 30)
    tokens, wide, out = large.products[-1]
    assert (tokens, wide, out) == (17 * 1024, 1024, 4096)
    # Its peak in bf16, 989 TFLOP/s, takes 443 us for the three products.
    assert 3 * 2 * tokens * wide * out / 989.4e12 > 100e-6
    # 4 bytes a number; read once, 512 MiB take 160 us at 3.35 TB/s.
    assert 4 * large.numbers[-1] >= 8 * (50 << 20)
    assert 4 * large.numbers[-1] / 3.35e12 > 100e-6
    # T4: 40 multiprocessors, 4 MB, 15 GB.
    small = sizes_on_gpu(num_multiprocessors=40, l2_bytes=4 << 20, memory_bytes=15 << 30)
    assert small.products[-1][0] == 5 * 1024
    assert small.numbers[-1] == 1 << 26
    # A GPU of which 2 GiB are free gets tensors of 128 MiB.
    assert sizes_on_gpu(num_multiprocessors=40, l2_bytes=0, memory_bytes=2 << 30).numbers[-1] == 1 << 25
    for sizes in (small, large):
        assert sizes.numbers == tuple(sorted(sizes.numbers))
        assert all(numbers % 256 == 0 for numbers in sizes.numbers)
        flops = [a * b * c for a, b, c in sizes.products]
        assert flops == sorted(set(flops))


class Queue:
    """A CUDA device that computes what is queued in order; the host takes no time but where it waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.log: list[str] = []
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.log.append("wait"))
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))
        monkeypatch.setattr(clock, "_warm_up", lambda device: None)

    def sleep(self, cycles: int) -> None:
        self.log.append("sleep")
        self.now_s += cycles / 2e9  # 2 GHz

    def kernel(self) -> None:
        self.log.append("kernel")
        self.now_s += 1e-3


class Event:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.at_s = 0.0

    def record(self) -> None:
        self._queue.log.append("event")
        self.at_s = self._queue.now_s

    def synchronize(self) -> None:
        self._queue.log.append("wait for event")

    def elapsed_time(self, end: "Event") -> float:
        return 1000 * (end.at_s - self.at_s)


def test_events_enclose_the_calls_after_a_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    events = EventClock(torch.device("cuda", 0), align=lambda: queue.log.append("align"))
    queue.log.clear()
    begin_s = queue.now_s
    assert events.device_s(queue.kernel, 3) == pytest.approx(3e-3)
    assert queue.log == ["wait", "sleep", "align", "event", *["kernel"] * 3, "event", "wait for event"]
    # The cycles of the sleep were found by timing one: 20 ms at 2 GHz.
    assert queue.now_s - begin_s == pytest.approx(20e-3 + 3e-3)
    queue.log.clear()
    events.host_s(queue.kernel, 2)
    assert queue.log == ["wait", "kernel", "kernel", "wait"]
    # 15 ms of calls of 1 ms; of calls of 10 us no more than a queue takes.
    assert events.num_calls(queue.kernel) == 15
    assert events.num_calls(lambda: setattr(queue, "now_s", queue.now_s + 1e-5)) == 32


@pytest.mark.parametrize("reading", ["device_s", "host_s", "wall_s"])
def test_results_of_timed_calls_are_released(reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Queue(monkeypatch)
    events = EventClock(torch.device("cuda", 0))
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def call() -> Tensor:
        alive.append(sum(each() is not None for each in made))
        tensor = torch.empty(1)
        made.append(weakref.ref(tensor))
        return tensor

    getattr(events, reading)(call, 3)
    assert alive == [0, 0, 0]

"""Facts of the card: products, copies, launch costs, transfers, clocks."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from paratune import hardware

from .setting import Check, Figures, Setting, durations_ms, spread, timed_s, wait

NUM_LAUNCHES = 2000


def checks(setting: Setting) -> Iterator[Check]:
    """Yield the measurements of the device."""
    yield Check("device", partial(describe, setting), proves=False)
    for name in ("bf16", "fp16", "tf32", "fp32", "fp64"):
        yield Check(f"product {name}", partial(product, setting, name), "Matrix products", proves=False)
    yield Check("copy on the device", partial(copy, setting), "Copies", proves=False)
    for pinned in (True, False):
        name = f"copy to the device, {'page-locked' if pinned else 'pageable'}"
        yield Check(name, partial(transfer, setting, pinned), "Copies", proves=False)
    yield Check("eager launches", partial(launches, setting), "Launches", proves=False)
    yield Check("graph replay", partial(replays, setting), "Launches", proves=False)
    yield Check("waiting for a number", partial(one_wait, setting), "Launches", proves=False)
    yield Check("clocks after work", partial(clocks, setting), proves=False)


def describe(setting: Setting) -> Figures:
    """Return name, memory and versions."""
    versions = {name: version for name, version in hardware.package_versions().items() if version}
    if not setting.on_gpu:
        return {"name": hardware.describe_node()["cpu_model"], **versions}
    properties = torch.cuda.get_device_properties(setting.device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **_nvml(),
        **versions,
    }


def _nvml() -> dict[str, Any]:
    """Return driver and clocks as reported by NVML; None if it does not report them."""
    facts: dict[str, Any] = {"driver": None, "sm_clock_mhz": None, "memory_clock_mhz": None, "power_w": None}
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        facts["driver"] = pynvml.nvmlSystemGetDriverVersion()
        facts["sm_clock_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        facts["memory_clock_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        facts["power_w"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    except Exception as error:  # a driver without NVML, or a missing package
        facts["nvml"] = f"{type(error).__name__}: {error}"
    return facts


def product(setting: Setting, name: str) -> Figures:
    """Return the speed of square products in a precision."""
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
    dtype = dtypes.get(name, torch.float32)
    size = 128 if setting.tiny else 4096 if name == "fp64" else 8192
    a, b = (torch.randn(size, size, device=setting.device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        times = durations_ms(lambda: torch.mm(a, b, out=out), setting.device, repeats=2 if setting.tiny else 20)
    finally:
        torch.set_float32_matmul_precision(before)
    return {"size": size, "ms": spread(times), "tflop_per_s": 2e-9 * size**3 / spread(times)["median"]}


def copy(setting: Setting) -> Figures:
    """Return the speed of a copy larger than all caches; read and written bytes count."""
    num_bytes = 2**20 if setting.tiny else 2**31
    source = torch.ones(num_bytes, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    times = durations_ms(lambda: target.copy_(source), setting.device, repeats=3 if setting.tiny else 20)
    return {"bytes": num_bytes, "ms": spread(times), "gb_per_s": 2e-6 * num_bytes / spread(times)["median"]}


def transfer(setting: Setting, pinned: bool) -> Figures:
    """Return the speed of a copy from the host."""
    num_bytes = 2**20 if setting.tiny else 2**28
    source = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=pinned and setting.on_gpu)
    target = torch.empty(num_bytes, dtype=torch.uint8, device=setting.device)
    act = partial(target.copy_, source, non_blocking=True)
    times = durations_ms(act, setting.device, repeats=3 if setting.tiny else 10)
    return {"bytes": num_bytes, "ms": spread(times), "gb_per_s": 1e-6 * num_bytes / spread(times)["median"]}


def launches(setting: Setting) -> Figures:
    """Return the host time of one small operation, and the time until all operations are complete."""
    count, value = (20 if setting.tiny else NUM_LAUNCHES), torch.zeros(64, device=setting.device)
    _many(value, count)
    wait(setting.device)
    begin = time.perf_counter()
    _many(value, count)
    host_s = time.perf_counter() - begin
    wait(setting.device)
    return {"num": count, "host_us": 1e6 * host_s / count, "all_us": 1e6 * (time.perf_counter() - begin) / count}


def replays(setting: Setting) -> Figures:
    """Return the same for operations that are replayed by a CUDA graph."""
    setting.need_gpu("CUDA graphs")
    value = torch.zeros(64, device=setting.device)
    replay = captured(lambda: _many(value, NUM_LAUNCHES), setting.device)
    replay()
    wait(setting.device)
    begin = time.perf_counter()
    replay()
    host_s = time.perf_counter() - begin
    wait(setting.device)
    all_s = time.perf_counter() - begin
    return {"num": NUM_LAUNCHES, "host_us": 1e6 * host_s / NUM_LAUNCHES, "all_us": 1e6 * all_s / NUM_LAUNCHES}


def captured(act: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """Return a function that replays the operations of a call, which is called three times before it is captured."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            act()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    return graph.replay


def _many(value: torch.Tensor, count: int) -> None:
    for _ in range(count):
        value.add_(1.0)


def one_wait(setting: Setting) -> Figures:
    """Return the time to copy a number from an idle device to the host."""
    value = torch.zeros((), device=setting.device)
    times = [1e6 * timed_s(lambda: value.add_(1.0).item(), setting.device) for _ in range(20)]
    return {"us": spread(times)}


def clocks(setting: Setting) -> Figures:
    """Return the clocks while the device is busy."""
    setting.need_gpu("clocks come from NVML")
    a = torch.randn(8192, 8192, device=setting.device).to(torch.bfloat16)
    for _ in range(200):
        a @ a
    facts = _nvml()
    wait(setting.device)
    return facts

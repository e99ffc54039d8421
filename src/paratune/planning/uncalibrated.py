"""Constants before measurements: of an accelerator shares of its data sheet, of a CPU what one reached. No torch.

Each source text states the basis of a value. "published" values were chosen with the fitting half of
benchmarks/published.yaml; benchmarks/plan_published_202611.md has the accuracy on both halves. All other values are
assumptions.
"""

import statistics

from paratune.hardware.devices import ARITHMETICS, DEVICES, Device
from paratune.planning.constants import BoundedConstant, Constants

_PUBLISHED = "published (benchmarks/published.yaml)"
_NCCL = "published (NVIDIA/nccl, src/graph/tuning.cc of 2.7.5, baseLat and hwLat)"

_PRODUCT = {
    # Arithmetic units of GPUs without matrix units need much smaller matrices to be busy.
    "fp64": (0.75, 0.5, 0.95),
    "fp32": (0.8, 0.6, 0.95),
    "tf32": (0.52, 0.3, 0.75),
    "fp16": (0.5, 0.3, 0.75),
    "bf16": (0.5, 0.3, 0.75),
}
"""Share of the peak that matrix products of BERT's widths (768 to 4096) reach: value, low, high. See `_BASIS`."""
_BASIS = {
    "fp32": f"{_PUBLISHED}: NVIDIA, DeepSpeed and Lambda, V100",
    "tf32": f"{_PUBLISHED}: NVIDIA and Lambda, A100 and H100",
    "fp16": f"{_PUBLISHED}: NVIDIA, DeepSpeed and Lambda, V100, A100 and H100",
    "bf16": "assumed as for fp16",
}
_GEFORCE_PRODUCT = (0.8, 0.55, 0.95)
"""The same for matrix units of GeForce, which have half the rate for sums in float32: tables of Lambda for RTX 3090."""
_BATCHED_SHARE = 0.45
"""Of that, products within attention: 64 wide, with a softmax between them. Tables with 128, 384 and 512 tokens."""
_SHARES = {
    # A copy within the memory of an A100 reaches about nine tenths; kernels with reductions reach less.
    "elementwise": (0.8, 0.6, 0.92),
    "activation": (0.75, 0.5, 0.92),
    "softmax": (0.7, 0.4, 0.9),
    "norm": (0.6, 0.3, 0.85),
    "dropout": (0.6, 0.35, 0.85),
    "random": (0.6, 0.35, 0.85),
    "gather": (0.3, 0.1, 0.7),
    # Fused AdamW reads and writes many tensors in one kernel.
    "adamw": (0.7, 0.45, 0.9),
}
"""Share of the memory's bandwidth: assumed; the fitting half of the published times does not change them."""
_SECONDS = {
    # For each counted operation, with the views and modules between them. One CPU needed 48 and 27 us
    # (benchmarks/plan_time_cpu_202611.md); a part of this is work that a GPU does itself, such as masks of dropout.
    "launch.forward": (25e-6, 10e-6, 50e-6, "assumed: half of what one CPU took for an operation, Python included"),
    "launch.backward": (15e-6, 6e-6, 30e-6, "assumed: half of what one CPU took for an operation"),
    "kernel": (2.5e-6, 1.5e-6, 5e-6, "assumed: shortest time of a kernel on the device, with the gap to the next"),
    "step": (1e-3, 0.3e-3, 3e-3, "assumed: Python of the loop and its records"),
    "adamw.tensor": (3e-6, 1e-6, 8e-6, "assumed: the host's work for a tensor that a fused kernel takes with others"),
    "adamw.shard": (30e-6, 5e-6, 100e-6, "assumed: the host's work for a sharded tensor, whose operators are Python"),
    # Python of engines, which no operation shows. Compared with DDP, passes of a tiny BERT of 12 layers on a CPU needed
    # 27 ms more for 13 units of FSDP2, 9 and 12 ms for 201 parameters of DeepSpeed's stages 1 and 2, 105 ms of stage 3.
    "hooks.unit": (1e-3, 0.3e-3, 2.5e-3, "assumed: half of what one CPU took for a unit of FSDP2"),
    "hooks.tensor": (25e-6, 8e-6, 60e-6, "assumed: half of what one CPU took for a parameter of DeepSpeed 1 and 2"),
    "hooks.gather": (0.25e-3, 0.08e-3, 0.6e-3, "assumed: half of what one CPU took for a parameter of DeepSpeed 3"),
    # BERT-base of 201 parameters on 16 V100, seconds of a step: stage 1 1.283, stage 2 1.370, stage 3 1.536 (238 rows
    # instead of 235). This is 0.43 and 1.2 ms for each parameter; versions after 2021 should need somewhat less.
    "wait.reduce": (0.35e-3, 0.15e-3, 0.5e-3, f"{_PUBLISHED}: DeepSpeed's autotuning of BERT-base, stage 2"),
    "wait.gather": (0.9e-3, 0.4e-3, 1.3e-3, f"{_PUBLISHED}: DeepSpeed's autotuning of BERT-base, stage 3"),
    # With these NCCL itself chooses between rings and trees: its protocol Simple; the lower bounds are those of LL128.
    # From NCCL 2.23 on a step of a tree has 4 and 14 us, and one of a ring over the network 14 us.
    "link.latency": (3.4e-6, 1.9e-6, 15e-6, f"{_NCCL}: ring, NVLink; 5.7 us over PCIe"),
    "link.tree": (28e-6, 1.2e-6, 40e-6, f"{_NCCL}: tree, NVLink and PCIe"),
    "link.call": (8.4e-6, 3.6e-6, 30e-6, f"{_NCCL}: base of a ring; high: the host that launches it"),
    "network.latency": (9.6e-6, 4e-6, 60e-6, f"{_NCCL}: ring, network"),
    "network.tree": (50e-6, 8.5e-6, 100e-6, f"{_NCCL}: tree, network"),
    "loader.hiding": (1e-6, 0.1e-6, 3.5e-6, "assumed: 16,384 tokens in 17 to 53 ms (benchmarks/loader_cpu_202611.md)"),
    "loader": (15e-6, 5e-6, 60e-6, "assumed: 32 reviews of mapped tokens in 0.4 ms (benchmarks/loader_cpu_202611.md)"),
}
"""Value, low, high, source."""
_LINK_SHARE = (0.65, 0.45, 0.9)
"""Share of the links' rate on the sheet that a ring of NCCL reaches for large messages: tables of 8 V100, 8 A100."""
_PCIE_SHARE = (0.55, 0.25, 0.8)
"""Share of 16 lanes that is left when devices share them, or messages pass through the host: assumed."""
_COPY_SHARE = (0.75, 0.4, 0.85)
"""Of 16 lanes, a copy from or to pinned memory: assumed."""
_NETWORK_SHARE = (0.8, 0.4, 0.95)
_HOST_ADAM = (40e9, 10e9, 120e9, "assumed: the memory of a server, shared by its ranks")
_UNKNOWN_NETWORK = (12.5e9, 1.25e9, 100e9, "assumed: 100 Gbit/s, not known (network_gbit_per_s)")
"""bytes/s: 100 Gbit/s, between 10 Gbit/s Ethernet and four adapters of 200 Gbit/s."""
_OVERLAP = (0.85, 0.5, 1.0, "assumed: collectives use some of the device's own bandwidth")
_TOGETHER = (1.03, 1.0, 1.1, f"{_PUBLISHED}: devices of a machine share power")
"""NVIDIA's tables: 8 devices compute 7.4 to 8 times as much as one, also with hundreds of micro-batches in a step."""
_ONE_CPU = "assumed: one CPU (benchmarks/plan_time_cpu_202611.md)"
_OF_A_CPU = {
    "product.fp32": (90e9, 3.0),
    "batched.fp32": (70e9, 3.0),
    "elementwise": (20e9, 3.0),
    "activation": (8e9, 3.0),
    "softmax": (15e9, 3.0),
    "norm": (12e9, 3.0),
    "dropout": (2.5e9, 3.0),
    "random": (1e9, 3.0),
    "gather": (40e9, 4.0),
    # Zeros for the whole table come from the system where they are larger than 32 MiB.
    "scatter": (4e9, 3.0),
    "scores": (2.5e9, 3.0),
    "scores_backward": (10e9, 3.0),
    # An operation after one that fills the level 2 cache takes up to 300 us, because code is loaded again.
    "launch.forward": (60e-6, 2.5),
    "launch.backward": (30e-6, 2.5),
    "adamw": (25e9, 3.0),
    "adamw.host": (25e9, 3.0),
    "adamw.tensor": (10e-6, 3.0),
    "adamw.shard": (70e-6, 3.0),
    "hooks.unit": (2e-3, 2.5),
    "hooks.tensor": (50e-6, 2.5),
    "hooks.gather": (0.5e-3, 2.5),
    "link": (1e9, 2.5),
    "link.latency": (100e-6, 4.0),
    "network": (1e9, 10.0),
    "network.latency": (150e-6, 4.0),
}
"""Of one thread: value in SI units, and the factor to both of its bounds."""
_THREADS = (0.85, 0.5, 1.0, "assumed: memory is shared by the threads")
_RUN = (1.0, 0.9, 1.15, "assumed: differences between runs, equal in all phases")
_LEFT_OUT = (1.0, 0.8, 1.25, "assumed: what the prediction leaves out")


def assumed_constants(device: Device, network_bytes_per_s: float | None = None) -> Constants | None:
    """Return the assumed constants of a device without measurements; None if its sheet has no memory bandwidth.

    `network_bytes_per_s` is between machines, all adapters of a machine together; None assumes it with wide bounds.
    """
    memory = device.memory_bytes_per_s
    if memory is None:
        return None
    constants: dict[str, BoundedConstant] = {}
    for arithmetic in ARITHMETICS:
        shares, basis = _product(device, arithmetic)
        peak = device.peak_flops_per_s(arithmetic)
        if product := _share(shares, peak, f"peak in {arithmetic} ({device.source})", basis):
            constants[f"product.{arithmetic}"] = product
            constants[f"batched.{arithmetic}"] = product.times(_BATCHED_SHARE)
    source = f"memory bandwidth ({device.source})"
    network = _share(_NETWORK_SHARE, network_bytes_per_s, "network, by its owner")
    assumed = {
        **{name: _share(shares, memory, source) for name, shares in _SHARES.items()},
        **{name: BoundedConstant(*values) for name, values in _SECONDS.items()},
        "link": _link(device),
        "host_link": _share(_COPY_SHARE, device.pcie_bytes_per_s, f"PCIe ({device.source})"),
        "network": network or BoundedConstant(*_UNKNOWN_NETWORK),
        "adamw.host": BoundedConstant(*_HOST_ADAM),
        "overlap": BoundedConstant(*_OVERLAP),
        "together": BoundedConstant(*_TOGETHER),
    }
    constants |= {name: constant for name, constant in assumed.items() if constant is not None}
    return Constants({**common_constants(), **constants})


def assumed_cpu_constants() -> Constants:
    """Return the constants of a thread of any CPU, which are only useful after a fit to a run on it (`planning.refit`).

    What a run does not determine is the mix: how much of a step does not grow with the batch.
    """
    constants = {
        name: BoundedConstant(value, value / spread, value * spread, _ONE_CPU)
        for name, (value, spread) in _OF_A_CPU.items()
    }
    for arithmetic, factor in (("fp64", 0.5), ("bf16", 0.3), ("fp16", 0.1)):
        constants[f"product.{arithmetic}"] = constants["product.fp32"].times(factor)
        constants[f"batched.{arithmetic}"] = constants["batched.fp32"].times(factor)
    constants |= {"overlap": BoundedConstant(0.5, 0.05, 1.0, _ONE_CPU), "threads": BoundedConstant(*_THREADS)}
    constants["together"] = BoundedConstant(1.05, 1.0, 1.3, _ONE_CPU)
    for name, spread in (("communication", 1.6), ("sharding", 2.0)):  # over gloo: 0.7 to 1.9 of the prediction
        constants[f"factor.{name}"] = BoundedConstant(1.0, 1 / spread, spread, _ONE_CPU)
    return Constants({**common_constants(), **constants})


def assumed_gpu_constants() -> Constants:
    """Return the constants of a GPU that is not listed, which are only useful after a fit to a run on it.

    Each is the median of those of the listed devices; its bounds contain the bounds of all of them.
    """
    listed = [constants for device in DEVICES if (constants := assumed_constants(device)) is not None]
    bounded: dict[str, BoundedConstant] = {}
    for name in sorted(set().union(*listed)):
        values = [constants[name] for constants in listed if name in constants]
        low, high = min(each.low for each in values), max(each.high for each in values)
        value = statistics.median(each.value for each in values)
        bounded[name] = BoundedConstant(value, low, high, "assumed: as those of the listed devices")
    return Constants(bounded)


def common_constants() -> dict[str, BoundedConstant]:
    """Return the constants that are assumed for every machine until runs on it determine them."""
    constants = {name: BoundedConstant(*_SECONDS[name]) for name in ("step", "loader", "loader.hiding")}
    constants["factor.run"] = BoundedConstant(*_RUN)
    for phase in ("forward", "backward", "optimizer", "communication", "sharding", "pipeline"):
        constants[f"factor.{phase}"] = BoundedConstant(*_LEFT_OUT)
    return constants


def _product(device: Device, arithmetic: str) -> tuple[tuple[float, float, float], str]:
    """Return the share of the peak that matrix products reach, and its basis."""
    is_geforce = any(name.startswith("NVIDIA GeForce") for name in device.names)
    if is_geforce and arithmetic in ("tf32", "fp16", "bf16"):
        return _GEFORCE_PRODUCT, f"{_PUBLISHED}: Lambda, RTX 3090"
    return _PRODUCT[arithmetic], _BASIS.get(arithmetic, "assumed")


def _link(device: Device) -> BoundedConstant | None:
    """Return the link between the devices of a machine: their own links if they have any, else PCIe."""
    links, pcie = device.link_bytes_per_s, device.pcie_bytes_per_s
    source = f"{device.link_kind} ({device.source})"
    by_links = _share(_LINK_SHARE, links, source, f"{_PUBLISHED}: NVIDIA, 8 devices")
    by_pcie = _share(_PCIE_SHARE, pcie, f"PCIe ({device.source})")
    if by_links is None or by_pcie is None:
        return by_links or by_pcie
    if device.link_kind != "nvlink bridge":
        return by_links
    # A bridge connects two cards; whether there is one is not known.
    return BoundedConstant(by_pcie.value, by_pcie.low, by_links.high, f"{by_pcie.source}; high: with its bridge")


def _share(
    shares: tuple[float, float, float], sheet_value: float | None, quantity: str, basis: str = "assumed"
) -> BoundedConstant | None:
    """Return a share of a value of the data sheet; None if the sheet does not have it."""
    if sheet_value is None:
        return None
    value, low, high = (share * sheet_value for share in shares)
    source = f"{basis}: {shares[0]:g} ({shares[1]:g} to {shares[2]:g}) of the {quantity}"
    return BoundedConstant(value, low, high, source)

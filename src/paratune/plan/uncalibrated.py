"""What an accelerator is taken to do before anybody has measured it: shares of its sheet, with wide bounds. No torch.

The shares are judgements, not measurements of ours (no accelerator was at hand), and are said to be: each has in its
source why it is what it is. The bounds are what tuned code and careless code reach. None is fitted to a published
training time, so that those remain a test.
"""

from collections.abc import Mapping

from paratune.hardware.devices import ARITHMETICS, Device
from paratune.plan.constants import BoundedConstant, Constants

_PRODUCT = {
    # Sums in the plain units of a GPU are kept busy by much smaller matrices than matrix cores.
    "fp64": (0.75, 0.5, 0.95),
    "fp32": (0.75, 0.5, 0.95),
    "tf32": (0.5, 0.25, 0.75),
    "fp16": (0.5, 0.25, 0.75),
    "bf16": (0.5, 0.25, 0.75),
}
"""Share of the peak that products of BERT's widths (512 to 4096 tokens, 768 to 4096 wide) reach: value, low, high."""
_BATCHED_SHARE = 0.5
"""Of that, products within attention: 64 wide, with a softmax between them."""
_SHARES = {
    # The copy within an A100's memory is known to reach about nine tenths; kernels with reductions reach less.
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
"""Share of the memory's bandwidth."""
_SECONDS = {
    # For each operation that is counted, with the views and modules between them; one CPU took 48 and 27 us
    # (benchmarks/plan_time_cpu_202611.md), a part of it for what a GPU does itself, such as masks of dropout.
    "launch.forward": (25e-6, 10e-6, 50e-6, "assumed: half of what one CPU took for an operation, Python included"),
    "launch.backward": (15e-6, 6e-6, 30e-6, "assumed: half of what one CPU took for an operation"),
    "kernel": (2.5e-6, 1.5e-6, 5e-6, "assumed: shortest time of a kernel on the device, with the gap to the next"),
    "step": (1e-3, 0.3e-3, 3e-3, "assumed: Python of the loop and its records"),
    "adamw.tensor": (3e-6, 1e-6, 8e-6, "assumed: the host's work for a tensor that a fused kernel takes with others"),
    "adamw.shard": (30e-6, 5e-6, 100e-6, "assumed: the host's work for a sharded tensor, whose operators are Python"),
    # Python of engines, which no operation shows: beside DDP, passes of a tiny BERT of 12 layers on a CPU took 27 ms
    # more for 13 units of FSDP2, 9 and 12 ms for 201 parameters of DeepSpeed's stages 1 and 2, 105 ms of its stage 3.
    "hooks.unit": (1e-3, 0.3e-3, 2.5e-3, "assumed: half of what one CPU took for a unit of FSDP2"),
    "hooks.tensor": (25e-6, 8e-6, 60e-6, "assumed: half of what one CPU took for a parameter of DeepSpeed 1 and 2"),
    "hooks.gather": (0.25e-3, 0.08e-3, 0.6e-3, "assumed: half of what one CPU took for a parameter of DeepSpeed 3"),
    "link.latency": (5e-6, 2e-6, 15e-6, "assumed: a step of a ring of NCCL within a machine"),
    "network.latency": (15e-6, 5e-6, 60e-6, "assumed: a step of a ring of NCCL between machines"),
    "loader.hiding": (1e-6, 0.1e-6, 3.5e-6, "assumed: 16,384 tokens in 17 to 53 ms (benchmarks/loader_cpu_202611.md)"),
    "loader": (15e-6, 5e-6, 60e-6, "assumed: 32 reviews of mapped tokens in 0.4 ms (benchmarks/loader_cpu_202611.md)"),
}
"""Value, low, high, source."""
_LINK_SHARE = (0.75, 0.5, 0.9)
"""Of the links' rate by the sheet, what a ring of NCCL moves for large messages."""
_PCIE_SHARE = (0.55, 0.25, 0.8)
"""Of 16 lanes, what is left when devices share them, or messages pass through the host."""
_COPY_SHARE = (0.75, 0.4, 0.85)
"""Of 16 lanes, a copy from or to pinned memory."""
_NETWORK_SHARE = (0.8, 0.4, 0.95)
_HOST_ADAM = (40e9, 10e9, 120e9)
_UNKNOWN_NETWORK = (12.5e9, 1.25e9, 100e9)
"""bytes/s: 100 Gbit/s, between 10 Gbit/s Ethernet and four adapters of 200 Gbit/s."""
_OVERLAP = (0.85, 0.5, 1.0)
_RUN = (1.0, 0.9, 1.15)
_LEFT_OUT = (1.0, 0.8, 1.25)


def constants_of(device: Device, network_bytes_per_s: float | None = None) -> Constants | None:
    """Return the figures of a device that nobody has measured; None where its sheet leaves out its memory's bandwidth.

    Args:
        device: From the table, or described by its owner.
        network_bytes_per_s: Between machines, all adapters of one together; assumed with wide bounds when not given.
    """
    memory = device.memory_bytes_per_s
    if memory is None:
        return None
    found: dict[str, BoundedConstant] = {}
    for arithmetic in ARITHMETICS:
        peak = device.peak_flops_per_s(arithmetic)
        if peak is not None:
            product = _share(_PRODUCT[arithmetic], peak, f"peak in {arithmetic} ({device.source})")
            found[f"product.{arithmetic}"] = product
            found[f"batched.{arithmetic}"] = product.times(_BATCHED_SHARE)
    source = f"memory bandwidth ({device.source})"
    found |= {name: _share(shares, memory, source) for name, shares in _SHARES.items()}
    found |= {name: BoundedConstant(*values) for name, values in _SECONDS.items()}
    found |= _links(device, network_bytes_per_s)
    found["overlap"] = BoundedConstant(*_OVERLAP, source="assumed: collectives take some of the device's own bandwidth")
    found["together"] = BoundedConstant(
        1.0, 1.0, 1.1, source="assumed: devices share no memory; heat and power they do"
    )
    return Constants({**for_every_machine(), **found})


def for_every_machine() -> dict[str, BoundedConstant]:
    """Return the figures that are assumed of any machine until runs on it say otherwise."""
    found = {name: BoundedConstant(*_SECONDS[name]) for name in ("step", "loader", "loader.hiding")}
    found["factor.run"] = BoundedConstant(*_RUN, source="assumed: what differs from run to run, all phases alike")
    for phase in ("forward", "backward", "optimizer", "communication", "pipeline"):
        found[f"factor.{phase}"] = BoundedConstant(*_LEFT_OUT, source="assumed: what the prediction leaves out")
    return found


def _links(device: Device, network_bytes_per_s: float | None) -> Mapping[str, BoundedConstant]:
    found = {"link": _link(device)}
    if device.pcie_bytes_per_s is not None:
        found["host_link"] = _share(_COPY_SHARE, device.pcie_bytes_per_s, f"PCIe ({device.source})")
    if network_bytes_per_s is not None:
        found["network"] = _share(_NETWORK_SHARE, network_bytes_per_s, "network, by its owner")
    else:
        found["network"] = BoundedConstant(
            *_UNKNOWN_NETWORK, source="assumed: 100 Gbit/s, not known (network_gbit_per_s)"
        )
    found["adamw.host"] = BoundedConstant(*_HOST_ADAM, source="assumed: the memory of a server, shared by its ranks")
    return {name: constant for name, constant in found.items() if constant is not None}


def _link(device: Device) -> BoundedConstant | None:
    """Return what lies between the devices of a machine: links of their own where all have them, else PCIe."""
    links, pcie = device.link_bytes_per_s, device.pcie_bytes_per_s
    by_links = None if links is None else _share(_LINK_SHARE, links, f"{device.link_kind} ({device.source})")
    by_pcie = None if pcie is None else _share(_PCIE_SHARE, pcie, f"PCIe ({device.source})")
    if by_links is None or by_pcie is None:
        return by_links or by_pcie
    if device.link_kind != "nvlink bridge":
        return by_links
    # A bridge joins two cards, and whether one is fitted is not known.
    return BoundedConstant(by_pcie.value, by_pcie.low, by_links.high, f"{by_pcie.source}; high: with its bridge fitted")


def _share(shares: tuple[float, float, float], of: float, what: str) -> BoundedConstant:
    value, low, high = (share * of for share in shares)
    return BoundedConstant(value, low, high, f"assumed: {shares[0]:g} ({shares[1]:g} to {shares[2]:g}) of the {what}")

"""The constants of a machine for predictions of time (rates and durations), each with bounds.

No torch. Before measurements a constant is a share of the value on the data sheet of an accelerator, of a CPU what one
reached, or an assumption, with wide bounds; `paratune plan --measured` moves those that measured times determine
(`planning.time`). Comments state the basis of a value. "Published" values were chosen with the fitting half of
benchmarks/published.yaml; benchmarks/plan_published_202611.md has the accuracy on both halves.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from paratune.hardware.devices import ARITHMETICS, DEVICES, Device

KINDS: Mapping[str, str] = {
    **{f"product.{arithmetic}": f"FLOP/s of matrix products in {arithmetic}" for arithmetic in ARITHMETICS},
    **{
        f"batched.{arithmetic}": f"FLOP/s of the products within attention, in {arithmetic}"
        for arithmetic in ARITHMETICS
    },
    **{f"fused.{arithmetic}": f"FLOP/s of fused attention in {arithmetic}" for arithmetic in ("fp16", "bf16")},
    "units": "multiprocessors of the device, each of which computes a tile of a matrix product at a time",
    "depth": "inner dimension of a product at which it reaches half of its rate, on matrix units",
    "elementwise": "bytes/s of sums, products and copies, read and written",
    "activation": "bytes/s of GELU, tanh and the like, forward and backward",
    "softmax": "bytes/s of softmax, forward and backward",
    "norm": "bytes/s of layer normalisation, forward and backward",
    "dropout": "bytes/s of drawing and applying dropout, forward and backward",
    "random": "bytes/s of drawing random numbers of PyTorch's own dropout",
    "gather": "bytes/s of rows that an embedding reads and writes, forward",
    "scatter": "bytes/s of the gradient of an embedding: zeros for the whole table, and rows; as gather where unknown",
    "scores": "bytes/s of the scores of packed rows' attention on a CPU: exponentials, sums, dropout; forward",
    "scores_backward": "bytes/s of the same, backward",
    "launch.forward": "seconds of the host for an operation of the forward pass, Python included",
    "launch.backward": "seconds of the host for an operation of the backward pass",
    "kernel": "seconds that the smallest kernel takes on the device",
    "step": "seconds of a step's bookkeeping, by the host",
    "adamw": "bytes/s of the fused AdamW and the gradient's norm, read and written",
    "adamw.tensor": "seconds of the optimizer phase for each parameter tensor, independent of its size",
    "adamw.shard": "seconds of the same for each tensor that FSDP2 shards",
    "adamw.host": "bytes/s of AdamW on the host, for states that are offloaded",
    "hooks.unit": "seconds of the host for a unit that FSDP2 gathers, of a forward and backward pass",
    "hooks.tensor": "seconds of the host for a parameter whose gradient DeepSpeed reduces, of a backward pass",
    "hooks.gather": "seconds of the host for a parameter that DeepSpeed's stage 3 gathers, of both passes",
    "wait.reduce": "seconds that a device waits for each parameter whose gradient DeepSpeed's stage 2 reduces",
    "wait.gather": "seconds that a device waits for each parameter that DeepSpeed's stage 3 gathers, both passes",
    "link": "bytes/s of a collective between devices of a machine: of its slowest link, one direction",
    "link.latency": "seconds of a step of a ring between devices of a machine",
    "link.tree": "seconds of a step of a tree between devices of a machine",
    "link.call": "seconds of a collective besides its steps and bytes",
    "network": "bytes/s of a collective between machines, each with one ring through it",
    "network.latency": "seconds of a step of a ring between machines",
    "network.tree": "seconds of a step of a tree between machines",
    "host_link": "bytes/s between host and device, one direction",
    "loader": "seconds of one process to make a sample of a batch",
    "loader.hiding": "seconds of one process to hide words of a masked LM, for each token of a batch",
    "overlap": "share of a collective that runs at the same time as computing, where the schedule allows it",
    "together": "time of computing while all devices of the machine compute, over that of one alone",
    "threads": "exponent with which the rates of a CPU grow with the threads of a process; they are those of one",
    "factor.run": "time of a run's step over its prediction, equal in all phases: neighbours, heat, cold memory",
    "factor.forward": "measured over predicted time of the forward pass",
    "factor.backward": "measured over predicted time of the backward pass",
    "factor.optimizer": "measured over predicted time of the optimizer's phase",
    "factor.communication": "measured over predicted time of what collectives leave exposed",
    "factor.sharding": "the same for collectives of strategies that shard gradients",
    "factor.pipeline": "measured over predicted time of a pipeline's waiting",
}
"""Meaning of all constants by name."""


class UnknownConstant(KeyError):
    """A prediction needs a constant that is unknown on this machine."""


@dataclass(frozen=True)
class Bounded:
    """A constant in its SI unit, or a predicted figure, with bounds that should contain nine of ten true values."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Bounded":
        """Return value and bounds multiplied by a factor."""
        return Bounded(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Constants:
    """The constants of a machine. A missing one is unknown."""

    by_name: Mapping[str, Bounded] = field(default_factory=dict)
    joint: tuple[Mapping[str, float], ...] = ()
    """Directions in which constants vary together after a refit: for each name the logarithm of the factor at the end
    of the interval. The own bounds of these constants are not used in addition."""

    def __post_init__(self) -> None:
        assert not (strange := set(self.by_name) - set(KINDS)), f"unknown names of constants: {strange}"

    def __getitem__(self, name: str) -> Bounded:
        """Return a constant.

        Raises:
            UnknownConstant: It is unknown on this machine.
            KeyError: The name is not in `KINDS`, which is an error of the caller.
        """
        if name not in KINDS or name in self.by_name:
            return self.by_name[name]
        raise UnknownConstant(name)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def value(self, name: str, otherwise: float) -> float:
        """Return the value of a constant, or `otherwise` if it is unknown."""
        return self.by_name[name].value if name in self.by_name else otherwise

    def replaced(self, by_name: Mapping[str, Bounded]) -> "Constants":
        """Return the constants with some of them replaced."""
        return replace(self, by_name={**self.by_name, **by_name})

    def shifted(self, logs: Mapping[str, float], sign: float = 1.0) -> "Constants":
        """Return the constants with some of them and their bounds multiplied by exp(sign x log)."""
        return self.replaced({name: self.by_name[name].times(math.exp(sign * log)) for name, log in logs.items()})

    def variations(self, names: Set[str]) -> Iterator[tuple["Constants", "Constants"]]:
        """Yield the constants at both ends of each independent direction in which some of `names` vary."""
        together = {name for direction in self.joint for name in direction}
        for name in names - together:
            constant = self.by_name[name]
            low, high = (replace(constant, value=end) for end in (constant.low, constant.high))
            yield self.replaced({name: low}), self.replaced({name: high})
        for direction in self.joint:
            if names & direction.keys():
                yield self.shifted(direction, -1.0), self.shifted(direction)


_Bounds = tuple[float, float, float]
"""Value, low and high."""
_PRODUCT: dict[str, _Bounds] = {
    # Arithmetic units of GPUs without matrix units need much smaller matrices to be busy.
    "fp64": (0.75, 0.5, 0.95),
    "fp32": (0.8, 0.6, 0.95),  # published: NVIDIA, DeepSpeed and Lambda, V100; DeepBench, V100: 0.83 to 0.88
}
_PRODUCT_T4: _Bounds = (0.43, 0.3, 0.6)
"""Of fp32 on a T4, which has 70 W: DeepBench, 0.43 to 0.57 of the peak where V100 has 0.83 to 0.88; 0.92 of this."""
_MATRIX_UNITS: dict[str, _Bounds] = {
    # Lambda and NVIDIA's tables of BERT; DeepBench, V100: 0.93
    "volta": (0.67, 0.48, 0.93),
    # DeepBench, T4: 0.68. Training takes 0.82 of single products, as A100 and H100: 0.92 and 0.845 (MAMF).
    "turing": (0.56, 0.4, 0.75),
    # Lambda and NVIDIA's tables of BERT; Triton's tutorial, A100: 0.78
    "ampere": (0.75, 0.55, 0.95),
    "ada": (0.70, 0.45, 0.95),  # assumed: no table of a card for data centres
    # llm-foundry, H100, 760 million to 7 billion parameters; Lambda, H100 PCIe
    "hopper": (0.66, 0.48, 0.84),
    "blackwell": (0.69, 0.45, 0.88),  # 0.82 of 0.845: MAMF, B200
    "cdna": (0.46, 0.3, 0.7),  # 0.82 of 0.54 and 0.63: MAMF, MI300X and MI325X
}
"""Share of the peak that large matrix products reach on matrix units, by generation; `share_of_rate` has the rest.
Names are sources of benchmarks/published.yaml."""
_GEFORCE: _Bounds = (1.0, 0.72, 1.08)
"""The same for GeForce, whose matrix units have half the rate for sums in fp32: Lambda, RTX 3090."""
_ANY_GENERATION: _Bounds = (0.6, 0.3, 0.9)
"""The same, assumed, for a generation without a table."""
_DEPTH: _Bounds = (250, 120, 450)
"""Triton's tutorial, A100: 252; DeepBench: V100 271, T4 less. Half of it where units have half the rate (GeForce)."""
_BATCHED_SHARE, _BATCHED_SHARE_FP32 = 0.3, 0.45
"""Of products, those within attention: 64 wide, with a softmax between them. Tables with 128, 384 and 512 tokens."""
_FUSED_ATTENTION: dict[str, _Bounds] = {
    # FlashAttention 2, forward and backward with 64-wide heads and 512 to 8,192 tokens; gpu-mode/ring-attention#10, RTX
    # A5000: 59 to 79 of 111 TFLOP/s; Dao-AILab/flash-attention#1589, B200: 259 to 333 of 2,250.
    "ampere": (0.6, 0.4, 0.72),
    "ada": (0.6, 0.35, 0.72),  # assumed as Ampere
    "hopper": (0.25, 0.18, 0.45),  # Dao-AILab/flash-attention#2688: 204 to 302 TFLOP/s; H100 by its rates
    "blackwell": (0.135, 0.1, 0.3),
}
"""Share of the peak that fused attention reaches in 16 bits, by generation; as `batched` for others."""
_SHARES: dict[str, _Bounds] = {
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
_SECONDS: dict[str, _Bounds] = {
    # For each counted operation, with the views and modules between them: half of the 48 and 27 us that one CPU needed
    # (benchmarks/plan_time_cpu_202611.md); a part of this is work that a GPU does itself, such as masks of dropout.
    "launch.forward": (25e-6, 10e-6, 50e-6),
    "launch.backward": (15e-6, 6e-6, 30e-6),
    # Assumed: the shortest time of a kernel on the device, with the gap to the next.
    "kernel": (2.5e-6, 1.5e-6, 5e-6),
    # Assumed: Python of the loop and its records.
    "step": (1e-3, 0.3e-3, 3e-3),
    # Assumed: the host's work for a tensor that a fused kernel takes with others, and for a sharded one, whose
    # operators are Python.
    "adamw.tensor": (3e-6, 1e-6, 8e-6),
    "adamw.shard": (30e-6, 5e-6, 100e-6),
    # Python of engines, which no operation shows: half of what one CPU took. Compared with DDP, passes of a tiny BERT
    # of 12 layers needed 27 ms more for 13 units of FSDP2, 9 and 12 ms for 201 parameters of DeepSpeed's stages 1 and
    # 2, 105 ms of stage 3.
    "hooks.unit": (1e-3, 0.3e-3, 2.5e-3),
    "hooks.tensor": (25e-6, 8e-6, 60e-6),
    "hooks.gather": (0.25e-3, 0.08e-3, 0.6e-3),
    # Published: DeepSpeed's autotuning. BERT-base of 201 parameters on 16 V100, seconds of a step: stage 1 1.283, stage
    # 2 1.370, stage 3 1.536 (238 rows instead of 235). This is 0.43 and 1.2 ms for each parameter; versions after 2021
    # should need somewhat less.
    "wait.reduce": (0.35e-3, 0.15e-3, 0.5e-3),
    "wait.gather": (0.9e-3, 0.4e-3, 1.3e-3),
    # NVIDIA/nccl, src/graph/tuning.cc of 2.7.5, baseLat and hwLat: with these NCCL itself chooses between rings and
    # trees. Its protocol is Simple; the lower bounds are those of LL128. From NCCL 2.23 on a step of a tree has 4 and
    # 14 us, and one of a ring over the network 14 us; a ring over PCIe has 5.7 us.
    "link.latency": (3.4e-6, 1.9e-6, 15e-6),
    "link.tree": (28e-6, 1.2e-6, 40e-6),
    "link.call": (8.4e-6, 3.6e-6, 30e-6),  # high: the host that launches it
    "network.latency": (9.6e-6, 4e-6, 60e-6),
    "network.tree": (50e-6, 8.5e-6, 100e-6),
    # benchmarks/loader_cpu_202611.md: words of 16,384 tokens in 17 to 53 ms; 32 reviews of mapped tokens in 0.4 ms.
    "loader.hiding": (1e-6, 0.1e-6, 3.5e-6),
    "loader": (15e-6, 5e-6, 60e-6),
}
_LINK_SHARE = (0.65, 0.45, 0.9)
"""Share of the links' rate on the sheet that a ring of NCCL reaches for large messages: tables of 8 V100, 8 A100."""
_PCIE_SHARE = (0.55, 0.25, 0.8)
"""Share of 16 lanes that is left when devices share them, or messages pass through the host: assumed."""
_COPY_SHARE = (0.75, 0.4, 0.85)
"""Of 16 lanes, a copy from or to pinned memory: assumed."""
NETWORK_SHARE = (0.8, 0.4, 0.95)
"""Share of the rate between machines that the owner gives, all adapters of a machine together (--network): assumed."""
_OTHERS: dict[str, _Bounds] = {
    # Without a rate of the owner: 100 Gbit/s, between 10 Gbit/s Ethernet and four adapters of 200 Gbit/s.
    "network": (12.5e9, 1.25e9, 100e9),
    # Assumed: the memory of a server, shared by its ranks.
    "adamw.host": (40e9, 10e9, 120e9),
    # Assumed: collectives use some of the device's own bandwidth.
    "overlap": (0.85, 0.5, 1.0),
    # Devices of a machine share power. Published, NVIDIA's tables: 8 devices compute 7.4 to 8 times as much as one,
    # also with hundreds of micro-batches in a step.
    "together": (1.03, 1.0, 1.1),
}
_FACTORS: dict[str, _Bounds] = {
    "factor.run": (1.0, 0.9, 1.15),
    **dict.fromkeys(
        [f"factor.{name}" for name in ("forward", "backward", "optimizer", "communication", "sharding", "pipeline")],
        (1.0, 0.8, 1.25),
    ),
}
"""Differences between runs, equal in all phases; and what the prediction of a phase leaves out."""
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
    "factor.communication": (1.0, 1.6),  # over gloo: 0.7 to 1.9 of the prediction
    "factor.sharding": (1.0, 2.0),
}
"""Of one thread of one CPU (benchmarks/plan_time_cpu_202611.md): value, and the factor to both of its bounds."""


def assumed_constants(device: Device) -> Constants | None:
    """Return the assumed constants of a device without measurements; None if its sheet has no memory bandwidth."""
    memory = device.memory_bytes_per_s
    if memory is None:
        return None
    constants = {name: Bounded(*values) for name, values in {**_FACTORS, **_SECONDS, **_OTHERS}.items()}
    constants |= {name: Bounded(*shares).times(memory) for name, shares in _SHARES.items()}
    is_geforce = any(name.startswith("NVIDIA GeForce") for name in device.names)
    for arithmetic in ARITHMETICS:
        if (peak := device.peak_flops_per_s(arithmetic)) is not None:
            shares, batched = _MATRIX_UNITS.get(device.generation or "", _ANY_GENERATION), _BATCHED_SHARE
            shares = _GEFORCE if is_geforce else shares
            if arithmetic in _PRODUCT:
                shares, batched = _PRODUCT_T4 if device.key == "t4" else _PRODUCT[arithmetic], _BATCHED_SHARE_FP32
            product = Bounded(*shares).times(peak)
            constants |= {f"product.{arithmetic}": product, f"batched.{arithmetic}": product.times(batched)}
            if (fused := _FUSED_ATTENTION.get(device.generation or "")) and f"fused.{arithmetic}" in KINDS:
                constants |= {f"fused.{arithmetic}": Bounded(*fused).times(peak)}
    if (units := device.num_multiprocessors) is not None:
        constants |= {"units": Bounded(units, units, units)}
        constants |= {"depth": Bounded(*_DEPTH).times(0.5 if is_geforce else 1.0)}
    rates = ((_LINK_SHARE, device.link_bytes_per_s), (_PCIE_SHARE, device.pcie_bytes_per_s))
    by_links, by_pcie = (None if rate is None else Bounded(*shares).times(rate) for shares, rate in rates)
    if (link := by_links or by_pcie) is not None:
        constants["link"] = link
    if by_links is not None and by_pcie is not None and device.link_kind == "nvlink bridge":
        # A bridge connects two cards; whether there is one is not known.
        constants["link"] = replace(by_pcie, high=by_links.high)
    if device.pcie_bytes_per_s is not None:
        constants["host_link"] = Bounded(*_COPY_SHARE).times(device.pcie_bytes_per_s)
    return Constants(constants)


def assumed_cpu_constants() -> Constants:
    """Return the constants of a thread of any CPU, which are only useful after a fit to a run on it (`planning.time`).

    What a run does not determine is the mix: how much of a step does not grow with the batch.
    """
    any_machine = {**_FACTORS, **{name: _SECONDS[name] for name in ("step", "loader", "loader.hiding")}}
    constants = {name: Bounded(*values) for name, values in any_machine.items()}
    for name, (value, spread) in _OF_A_CPU.items():
        constants[name] = Bounded(value, value / spread, value * spread)
    for arithmetic, factor in (("fp64", 0.5), ("bf16", 0.3), ("fp16", 0.1)):
        constants[f"product.{arithmetic}"] = constants["product.fp32"].times(factor)
        constants[f"batched.{arithmetic}"] = constants["batched.fp32"].times(factor)
    constants["overlap"] = Bounded(0.5, 0.05, 1.0)
    constants["threads"] = Bounded(0.85, 0.5, 1.0)  # memory is shared by the threads
    constants["together"] = Bounded(1.05, 1.0, 1.3)
    return Constants(constants)


def assumed_gpu_constants() -> Constants:
    """Return the constants of a GPU that is not listed, which are only useful after a fit to a run on it.

    Each is the median of those of the listed devices; its bounds contain the bounds of all of them, except `units`.
    """
    listed = [constants.by_name for device in DEVICES if (constants := assumed_constants(device)) is not None]
    bounded: dict[str, Bounded] = {}
    for name in sorted(set().union(*listed)):
        values = [by_name[name] for by_name in listed if name in by_name]
        low, high = min(each.low for each in values), max(each.high for each in values)
        median = statistics.median(each.value for each in values)
        # A number of multiprocessors is not fitted: the time of a product jumps where one more wave of tiles begins.
        bounded[name] = Bounded(median, median, median) if name == "units" else Bounded(median, low, high)
    return Constants(bounded)

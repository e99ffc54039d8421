"""Accuracy of plans for published times and memory of BERT-family training (benchmarks/published.yaml).

    OMP_NUM_THREADS=1 python benchmarks/plan_published.py            # no network, no GPU, no data, no weights

Each cell is planned only from its configuration: the published shape of the model, rows of one length, eager
attention, padded batches. Cells with `use: fit` may be used to choose assumed constants; cells with `use: score` may
not.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from machine import machine_lines
from published_memory import passes_memory, planned_memory

from paratune.api.plan_inputs import make_job
from paratune.config.load import LoadedConfig, load_config
from paratune.planning.constants import Constants
from paratune.planning.enumerate import JobOption, PlanRequest, list_options
from paratune.planning.machine import Machine, find_machine
from paratune.planning.predict import JobPredictor, Profiles
from paratune.planning.profile import Profile, Shape
from paratune.planning.states import PredictionSetup
from paratune.planning.time import MeasuredStep, refit, step_time
from paratune.planning.trace import Operation, Phase
from paratune.planning.work import StepCase

FILE = Path(__file__).with_name("published.yaml")
CONFIGS = Path(__file__).parent.parent / "configs"
CONFIG_FILES = {
    "mlm": "pretrain/bert_base.yaml",
    "qa": "finetune/squad_v2.yaml",
    "classification": "finetune/imdb.yaml",
    "ner": "finetune/ner.yaml",
}
ALL_TOKENS = 0.999
"""Share of hidden tokens with which the head computes as many as that of a decoder; 1 is not allowed."""
CLOSE = 0.35
"""Target of a plan without measured figures, as a share of the measured time."""
CLOSE_WITH_ANCHOR = 0.15
CLOSE_MEMORY = 0.05
MIB = 2**20
TIMED_BY_AUTOTUNER = ("forward", "backward", "optimizer", "communication_exposed", "offload")


@dataclass(frozen=True)
class Planned:
    """A published cell and its plan."""

    cell: Mapping[str, Any]
    machine: Machine | None
    """None for cells without a time."""
    case: StepCase | None
    num_samples: int
    """Samples of one optimizer step, on all devices."""
    memory_bytes: int
    memory_high: int
    why_unknown: str | None = None
    """Reason why the definition of its memory is unknown."""

    @property
    def is_timed(self) -> bool:
        return "samples_per_s" in self.cell

    @property
    def measured_s(self) -> float:
        """Return the measured seconds of a step."""
        return self.num_samples / float(self.cell["samples_per_s"])

    def times(self, constants: Constants | None = None) -> tuple[float, float, float]:
        """Return the planned seconds of a step with their lower and upper bound."""
        assert self.machine is not None
        assert self.case is not None
        machine = self.machine if constants is None else replace(self.machine, constants=constants)
        time, why_not = step_time(replace(self.case, machine=machine))
        assert time is not None, f"{self.name}: {why_not}"
        step, share = time.total, 1.0
        if "autotuner" in self.cell:
            share = sum(time.terms[term] for term in TIMED_BY_AUTOTUNER) / step.value
        return step.value * share, step.low * share, step.high * share

    @property
    def name(self) -> str:
        cell = self.cell
        nodes = f" of {cell['nodes']} nodes" if cell.get("nodes", 1) > 1 else ""
        more = [name for name in ("autotuner", "checkpointing") if name in cell]
        more += [cell[name] for name in ("attention", "engine") if name in cell]
        steps = f" x {cell['accumulation']}" if "accumulation" in cell else ""
        model = cell["model"].rsplit("/", 1)[-1]
        parts = [f"{model} {cell['task']} {cell['length']}", f"{cell['devices']} x {cell['device']}{nodes}"]
        return ", ".join([*parts, cell.get("strategy", ""), cell["precision"], f"{cell['micro_batch']}{steps}", *more])


def write_shapes(shapes: Mapping[str, Mapping[str, int]], folder: Path) -> None:
    """Write config.json of each shape into a folder of its name."""
    for name, sizes in shapes.items():
        config = {
            **sizes,
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "max_position_embeddings": 4096,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")


def causal(profiles: Profiles) -> Callable[[Shape, PredictionSetup], Profile]:
    """Return a function for the profile of a decoder: flash attention, without a mask and with half of the products."""

    def half(phase: Phase) -> Phase:
        return Phase([fused(each) if "efficient_attention" in each.name else each for each in phase.kernels])

    def fused(each: Operation) -> Operation:
        return each._replace(flops=each.flops // 2, name=each.name.replace("efficient", "flash"))

    def profile_of(shape: Shape, setup: PredictionSetup) -> Profile:
        profile = profiles.of(shape, setup)
        return replace(profile, forward=half(profile.forward), backward=half(profile.backward))

    return profile_of


def plan_cells(cells: Sequence[Mapping[str, Any]], sources: Mapping[str, Any], shapes: Path) -> Iterator[Planned]:
    """Plan each cell; models and micro-batches that several cells share are traced once.

    `shapes` is the folder of `write_shapes`.
    """
    jobs: dict[str, tuple[LoadedConfig, Any, Profiles]] = {}
    for number, cell in enumerate(cells, start=1):
        print(f"\r{number} of {len(cells)}", end="", file=sys.stderr, flush=True)
        why_unknown = sources[cell["source"]].get("memory_unknown")
        if cell.get("engine") == "passes":
            yield Planned(cell, None, None, cell["micro_batch"], *passes_memory(cell), why_unknown)
            continue
        settings = {
            "model.name": cell["model"],
            "batch.layout": "padded",
            # Cells of LAMB are planned with AdamW, whose update reads and writes the weights 9 instead of 32 times.
            "train.optimizer": "adamw",
            "train.activation_checkpointing": cell.get("checkpointing"),
        }
        if (shape := shapes / cell["model"]).is_dir():
            settings |= {"model.name": str(shape), "model.tokenizer": None, "model.from_scratch": False}
            settings |= {"task.mask_probability": ALL_TOKENS}
        config = CONFIGS / CONFIG_FILES[cell["task"]]
        key = f"{config} {cell['length']} {settings}"
        overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        loaded = load_config(config, overrides)
        if key not in jobs:
            job = make_job(loaded, max_length=cell["length"])
            jobs[key] = loaded, job, Profiles(job, is_cuda=True)
        loaded, job, profiles = jobs[key]
        machine = find_machine(cell.get("planned_as", cell["device"]))
        num_samples = cell["micro_batch"] * cell.get("accumulation", 1) * cell["devices"]
        request = PlanRequest(
            num_ranks=(cell["devices"],),
            strategies=(cell.get("strategy", "ddp" if cell["devices"] > 1 else "single"),),
            precisions=(cell["precision"],),
            nodes=(cell.get("nodes", 1),),
        )
        batch = (f"batch.global={num_samples}", f"batch.micro_batch_size={cell['micro_batch']}")
        loaded = load_config(config, [*overrides, *batch])
        job = replace(job, config=loaded.config)
        options, impossible = list_options(job, loaded, machine, request)
        assert options, (cell, [reason.reason for reason in impossible])
        setup = replace(options[0].setup, attention=cell.get("attention", "eager"))
        option: JobOption = replace(options[0], setup=setup)
        predictor = JobPredictor(job, machine, searches=False)
        predictor.profile_of = causal(profiles) if shape.is_dir() else profiles.of
        total, high = planned_memory(job, option, cell) if "memory_mib" in cell else (0, 0)
        yield Planned(
            cell,
            machine,
            predictor.step_case(option),
            num_samples,
            total,
            high,
            why_unknown,
        )
    print(file=sys.stderr)


def main() -> None:
    """Plan all cells and print tables and medians as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="sources whose cells are planned; default: all")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    published = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    cells = [cell for cell in published["cells"] if not options.only or cell["source"] in options.only]
    with tempfile.TemporaryDirectory() as folder:
        write_shapes(published["shapes"], Path(folder))
        planned = list(plan_cells(cells, published["sources"], Path(folder)))
    timed = [planned_cell for planned_cell in planned if planned_cell.is_timed]
    print("\n".join([*machine_lines(), "", *summary_lines(timed), "", *anchor_lines(timed), "", *time_table(timed)]))
    print(
        "\n".join(["", *memory_table([planned_cell for planned_cell in planned if "memory_mib" in planned_cell.cell])])
    )


def summary_lines(timed: Sequence[Planned]) -> list[str]:
    """Return the accuracy of times without measured figures: of all cells, of each half, and of each source."""
    lines = [
        "| cells | number | median planned / measured time | median error | within 35% | in the interval | "
        "high / low, median (largest on one node) |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = {f"use: {use}": [one for one in timed if one.cell["use"] == use] for use in ("fit", "score")}
    for source in dict.fromkeys(one.cell["source"] for one in timed):
        for use in ("fit", "score"):
            both = [one for one in timed if (one.cell["source"], one.cell["use"]) == (source, use)]
            groups[f"{source}, {use}"] = both
    for name, group in groups.items():
        if group:
            lines.append(f"| {name} | {_accuracy(group)} |")
    return lines


def _accuracy(group: Sequence[Planned]) -> str:
    times = [planned.times() for planned in group]
    ratios = [value / planned.measured_s for planned, (value, _, _) in zip(group, times, strict=True)]
    inside = [low <= planned.measured_s <= high for planned, (_, low, high) in zip(group, times, strict=True)]
    widths = [high / low for _, low, high in times]
    on_one = [width for planned, width in zip(group, widths, strict=True) if planned.cell.get("nodes", 1) == 1]
    close = statistics.fmean(abs(ratio - 1) <= CLOSE for ratio in ratios)
    return " | ".join(
        [
            str(len(group)),
            f"{statistics.median(ratios):.2f}",
            f"{statistics.median(abs(ratio - 1) for ratio in ratios):.0%}",
            f"{close:.0%}",
            f"{statistics.fmean(inside):.0%}",
            f"{statistics.median(widths):.2f} ({max(on_one, default=float('nan')):.2f})",
        ]
    )


def anchor_lines(timed: Sequence[Planned]) -> list[str]:
    """Return the accuracy of times with one anchor: the other cells of a table are planned from its first cell."""
    errors: dict[str, list[tuple[float, bool, float]]] = {"fit": [], "score": []}
    by_table: dict[tuple[str, ...], list[Planned]] = {}
    for planned in timed:
        cell = planned.cell
        key = cell["source"], cell.get("table", ""), cell["device"], cell["use"]
        by_table.setdefault(key, []).append(planned)
    for (*_, use), (anchor, *others) in by_table.items():
        assert anchor.case is not None
        assert anchor.machine is not None
        assert anchor.machine.constants is not None
        step = MeasuredStep(anchor.case, anchor.measured_s)
        if not others or "autotuner" in anchor.cell:
            continue
        constants, _, _ = refit(anchor.machine.constants, [step])
        for planned in others:
            value, low, high = planned.times(constants)
            errors[use].append((value / planned.measured_s - 1, low <= planned.measured_s <= high, high / low))
    lines = [
        "| with one anchor | number | median error | within 15% | in the interval | high / low, median |",
        "|---|---|---|---|---|---|",
    ]
    for use, group in errors.items():
        if group:
            close = statistics.fmean(abs(error) <= CLOSE_WITH_ANCHOR for error, _, _ in group)
            middle = statistics.median(abs(error) for error, _, _ in group)
            inside = statistics.fmean(is_inside for _, is_inside, _ in group)
            width = statistics.median(width for _, _, width in group)
            lines.append(f"| use: {use} | {len(group)} | {middle:.0%} | {close:.0%} | {inside:.0%} | {width:.2f} |")
    return lines


def time_table(timed: Sequence[Planned]) -> list[str]:
    """Return one line for each cell with a rate."""
    lines = [
        "| source, use | job | measured samples/s | planned (interval) | inside | planned / measured time |",
        "|---|---|---|---|---|---|",
    ]
    for planned in timed:
        value, low, high = planned.times()
        rates = [planned.num_samples / seconds for seconds in (value, high, low)]
        inside = "yes" if low <= planned.measured_s <= high else "**no**"
        lines.append(
            f"| {planned.cell['source']}, {planned.cell['use']} | {planned.name} | {planned.cell['samples_per_s']:g} | "
            f"{rates[0]:.4g} ({rates[1]:.4g} to {rates[2]:.4g}) | {inside} | {value / planned.measured_s:.2f} |"
        )
    return lines


def memory_table(planned_cells: Sequence[Planned]) -> list[str]:
    """Return one line for each cell with an amount of memory."""
    lines = [
        "| source, use | job | definition | measured MiB | planned (upper bound) | planned / measured |",
        "|---|---|---|---|---|---|",
    ]
    for planned in planned_cells:
        measured = planned.cell["memory_mib"]
        lines.append(
            f"| {planned.cell['source']}, {planned.cell['use']} | {planned.name} | "
            f"{'not known' if planned.why_unknown else 'known'} | {measured} | "
            f"{planned.memory_bytes / MIB:.0f} ({planned.memory_high / MIB:.0f}) | "
            f"{planned.memory_bytes / MIB / measured:.2f} |"
        )
    known = [cell for cell in planned_cells if cell.why_unknown is None]
    errors = [cell.memory_bytes / MIB / cell.cell["memory_mib"] - 1 for cell in known]
    close = sum(abs(error) <= CLOSE_MEMORY for error in errors)
    return [*lines, "", f"Cells with a known definition: {close} of {len(known)} within {CLOSE_MEMORY:.0%}."]


if __name__ == "__main__":
    main()

"""The lines that `speed.py` writes, and the Markdown tables made of them: medians and ranges over rounds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine_lines

Row = dict[str, Any]
SHOWN = {
    "paratune": "paratune",
    "padded": "Trainer (a) padded to the maximum",
    "padded bf16": "Trainer (a) padded to the maximum, bf16",
    "grouped": "Trainer (b) grouped, fused AdamW",
    "padding-free": "Trainer (c) without padding, FlashAttention, fused AdamW",
}
AIMS = {
    ("imdb", "minilm"): {"padded": ("3.2", "4.0"), "grouped": ("1.5", "1.9")},
    ("mrpc", "minilm"): {"padded": ("2.5", "2.8"), "grouped": ("1.08", "1.25")},
    ("squad", "minilm"): {"padded": ("3.5", "4.5"), "grouped": ("1.25", "1.5")},
    ("mlm", "minilm"): {"padded": ("1.6", "2.0"), "grouped": ("1.6", "2.0")},
    ("eval", "minilm"): {"padded": ("2.1", "2.3"), "grouped": ("1.15", "1.2")},
    ("imdb", "base"): {"padded": ("2.2", "2.6"), "grouped": ("1.28", "1.45")},
}
"""On one core: the minimum ratio of speed to each side, and the target."""
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "L40S": 362e12, "B200": 2250e12}
"""Dense bf16 operations per second, by a part of the device's name. Source: NVIDIA's data sheets (SXM if two exist).

Every precision is divided by it, so that shares can be compared; devices that are not listed have no share.
"""


def read_lines(path: Path) -> list[Row]:
    """Return earlier measurements; empty if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append_line(path: Path, row: Row) -> None:
    """Keep a measurement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def table(rows: list[Row]) -> list[str]:
    """Return the machine, and for each case and setting the figures of all sides and the ratios."""
    lines = machine_lines()
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "case", "batch_size", "num_steps", "max_length"))
        groups.setdefault(key, []).append(row)
    ratios: list[str] = []
    for (model, case, batch_size, num_steps, max_length), group in groups.items():
        sides = _by_side(group)
        ceilings = sides.pop("ceiling", {})
        if not sides:
            continue
        measured = "batches" if case == "eval" else "steps"
        lines += [
            *("", f"### {case}, {model}", ""),
            f"{num_steps} {measured} of {batch_size} rows, at most {max_length} tokens; "
            f"{_real_tokens(group)} real tokens a row.{_ceiling(ceilings)}",
            "",
        ]
        on_gpu = any(row.get("device") for row in group)
        lines += _gpu_table(sides) if on_gpu else _cpu_table(sides, ceilings)
        ratios += _ratios(case, model, sides, by="wall_s" if on_gpu else "cpu_s", with_aims=not on_gpu)
    head = ["| case | ours | beside | times as fast: median (range) | by the wall | at least | reach for |"]
    return [*lines, "", "### Ratios", "", *head, "|" + " --- |" * 7, *ratios] if ratios else lines


def _by_side(group: list[Row]) -> dict[str, dict[int, Row]]:
    """Return the rows of each side by round; for paratune, one side per layout."""
    sides: dict[str, dict[int, Row]] = {}
    for row in group:
        chosen = row.get("batch", {}).get("layout")
        layout = row.get("layout") or (f"auto: {chosen}" if chosen else None)
        sides.setdefault(f"{row['side']}, {layout}" if layout else row["side"], {})[row["round"]] = row
    return sides


def _real_tokens(group: list[Row]) -> str:
    return f"{np.mean([row['num_set_tokens'] / row['num_samples'] for row in group]):.1f}"


def _ceiling(ceilings: dict[int, Row]) -> str:
    if not ceilings:
        return ""
    return f" Matrix products reach {spread([row['gflop_per_s'] for row in ceilings.values()], 1)} GFLOP/s."


def _cpu_table(sides: dict[str, dict[int, Row]], ceilings: dict[int, Row]) -> list[str]:
    lines = [
        "| side | rounds | CPU s for 1,000 rows | wall s for 1,000 rows | CPU s of the process | model GFLOP/s "
        "| of the ceiling |",
        "|" + " --- |" * 7,
    ]
    for name, rows in sides.items():
        measurements = list(rows.values())
        speeds = [1e-9 * row["model_flops"] / row["cpu_s"] for row in measurements]
        # From the same round if possible: then other load of the machine affects both.
        shares = [
            100e-9 * row["model_flops"] / row["cpu_s"] / ceilings[number]["gflop_per_s"]
            for number, row in rows.items()
            if number in ceilings
        ]
        cells = [
            _shown(name),
            str(len(measurements)),
            *(spread([1000 * row[key] / row["num_samples"] for row in measurements], 1) for key in ("cpu_s", "wall_s")),
            spread([row["process_cpu_s"] for row in measurements], 1),
            spread(speeds, 1),
            f"{spread(shares, 0)}%" if shares else "n/a",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _gpu_table(sides: dict[str, dict[int, Row]]) -> list[str]:
    lines = [
        "| side | precision | rounds | samples/s | model TFLOP/s | MFU (of dense bf16) | GPU idle |",
        "|" + " --- |" * 7,
    ]
    for name, rows in sides.items():
        measurements = list(rows.values())
        speeds = [row["model_flops"] / row["wall_s"] for row in measurements]
        peak = next((value for part, value in PEAK_FLOPS.items() if part in (measurements[0]["device"] or "")), None)
        idle = [100 * row["gpu_idle_share"] for row in measurements if row.get("gpu_idle_share") is not None]
        cells = [
            _shown(name),
            measurements[0]["precision"],
            str(len(measurements)),
            spread([row["num_samples"] / row["wall_s"] for row in measurements], 0),
            spread([1e-12 * speed for speed in speeds], 1),
            f"{spread([100 * speed / peak for speed in speeds], 1)}%" if peak else "n/a",
            f"{spread(idle, 0)}%" if idle else "n/a",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ratios(case: str, model: str, sides: dict[str, dict[int, Row]], *, by: str, with_aims: bool) -> list[str]:
    aims = AIMS.get((case, model), {}) if with_aims else {}
    lines = []
    for ours in [name for name in sides if name.startswith("paratune")]:
        for other in sides:
            if other == ours or (other.startswith("paratune") and not ours.startswith("paratune bf16")):
                continue
            both = sorted(sides[ours].keys() & sides[other].keys())
            if not both:
                continue
            times = {key: [sides[other][n][key] / sides[ours][n][key] for n in both] for key in (by, "wall_s")}
            cells = [f"{case}, {model}", ours, _shown(other), spread(times[by], 2), spread(times["wall_s"], 2)]
            lines.append(f"| {' | '.join([*cells, *aims.get(other, ('', ''))])} |")
    return lines


def _shown(name: str) -> str:
    return SHOWN.get(name, name)


def spread(values: list[float], digits: int) -> str:
    """Return the median, and the range in brackets when there are several values."""
    middle = f"{np.median(values):.{digits}f}"
    return middle if len(values) < 2 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"

"""Texts and files of measured figures: what they mean, and which are refused."""

from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.planning.measured import MeasuredFigure, divide_measured, parse_figure


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("310 s an epoch on 1 x a100-40gb", ("epoch", 310.0, "a100-40gb", 1, 1, None, None, None)),
        ("5 min 10 s per epoch on 8 x A100-40GB, 2 nodes", ("epoch", 310.0, "a100-40gb", 8, 2, None, None, None)),
        ("1.5h a run on 4xh100-80gb, zero3, bf16", ("run", 5400.0, "h100-80gb", 4, 1, "zero3", "bf16", None)),
        ("410 ms/step on 2 x t4, micro-batch 16", ("step", 0.41, "t4", 2, 1, None, None, 16)),
        ("152 samples/s on 1 x t4, FP16", ("samples_per_s", 152.0, "t4", 1, 1, None, "fp16", None)),
        ("31.5 GiB on 1 x a100-40gb", ("memory", 31.5 * 2**30, "a100-40gb", 1, 1, None, None, None)),
        ("2000 MB allocated on 1 x t4, ddp", ("allocated", 2e9, "t4", 1, 1, "ddp", None, None)),
        (
            "1 s a step on 2 x t4, deepspeed:2:offload_optimizer=true",
            ("step", 1.0, "t4", 2, 1, "deepspeed:2:offload_optimizer=true", None, None),
        ),
    ],
)
def test_figure_is_parsed(text: str, expected: tuple[Any, ...]) -> None:
    quantity, value, *rest = expected
    assert parse_figure(text) == MeasuredFigure(text, quantity, pytest.approx(value), *rest)


@pytest.mark.parametrize(
    "text",
    [
        "310 s",
        "310 s an epoch",
        "310 an epoch on 1 x t4",
        "310 s an epoch on t4",
        "0 s an epoch on 1 x t4",
        "310 s an epoch on 0 x t4",
        "310 s an epoch on 3 x t4, 2 nodes",
        "310 s an epoch on 2 x t4, 2 nodes, 1 node",
        "310 s an epoch on 2 x t4, micro-batch 0",
        "310 s an epoch on 2 x t4, ddp, zero3",
    ],
)
def test_invalid_figure_is_refused(text: str) -> None:
    with raises_code("plan.measured_syntax", text, option="--measured"):
        parse_figure(text)


def test_arguments_are_folders_and_figures(tmp_path: Path) -> None:
    figures, folders = divide_measured([str(tmp_path), "2 s a step on 1 x t4"])
    assert ([figure.value for figure in figures], folders) == ([2.0], [tmp_path])

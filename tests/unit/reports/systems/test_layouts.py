"""Tables in the layout of published studies; expected values are written out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import STRATEGY, Made, make_matrix
from raised import raises_code

from paratune.reports.matrix import make_sweep
from paratune.reports.systems.layouts import LAYOUTS, LayoutFigure, figure_text, layout_table
from paratune.reports.systems.measures import EPOCH_S, TRAIN_S
from paratune.reports.systems.model import Systems


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Systems:
    """ddp: 754 s, 400 samples/s, 11,500 MB; zero3: 377 s, 800 samples/s, 9,000 MB on each device."""

    def tell(values: Mapping[str, str]) -> Made:
        is_ddp = values["strategy"] == "ddp"
        memory = {"largest_bytes": 11.5e9 if is_ddp else 9e9, "sum_bytes": 23e9 if is_ddp else 18e9}
        summary = {"time.train_s": 754.0 if is_ddp else 377.0, "utilisation": {"kind": "nvml", "mean": 0.5}}
        summary |= {f"memory.{key}": value for key, value in memory.items()}
        return Made(kind=values["strategy"], step_ms=80.0 if is_ddp else 40.0, summary=summary)

    folder = make_matrix(tmp_path_factory.mktemp("m") / "m", (STRATEGY,), tell)
    found = make_sweep(folder, None).systems
    assert found is not None
    return found


def texts(systems: Systems, name: str) -> list[list[str]]:
    table = layout_table(systems, name)
    return [list(table.header), *([cell.text for cell in line] for line in table.lines)]


def test_evora_has_configurations_in_columns_times_in_minutes_and_memory_in_mb(systems: Systems):
    header, time, memory, total, *scores = texts(systems, "evora")
    assert header == ["", "ddp", "zero3"]
    assert time == ["Time (mm:ss)", "12:34", "06:17"]  # 754 s, 377 s
    assert memory[1:] == ["11,500", "9,000"]
    assert total[1:] == ["23,000", "18,000"]
    assert [score[0] for score in scores] == ["Test Accuracy", "Test F1"]


def test_imdb_has_the_speed_up_over_the_baseline(systems: Systems):
    header, base, other = texts(systems, "imdb")
    assert header[:3] == ["Configuration", "Time (mm:ss)", "Speed-up"]
    assert (base[1:3], other[1:3]) == (["12:34", "1.00"], ["06:17", "2.00"])


def test_chasing_efficiency_has_each_change_in_brackets(systems: Systems):
    _, base, other = texts(systems, "squad")
    assert base[1:3] == ["12:34", "400.0"]
    assert other[1:3] == ["06:17 (−50.0% ↓)", "800.0 (+100.0% ↑)"]
    assert other[4] == "50.0 (0.0%)"


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_all_configurations(systems: Systems, name: str):
    table = layout_table(systems, name)
    assert {"ddp", "zero3"} <= {*table.header, *(line[0].text for line in table.lines)}
    assert all(len(line) == len(table.columns) for line in table.lines)


@pytest.mark.parametrize(("seconds", "text"), [(59.6, "01:00"), (3725.0, "62:05"), (None, "n/a")])
def test_a_time_is_in_minutes_and_seconds(seconds: float | None, text: str):
    assert figure_text(seconds, LayoutFigure("t", TRAIN_S, "clock")) == text


def test_a_report_has_the_table_of_its_layout_and_refuses_others(tmp_path: Path):
    make_matrix(tmp_path / "m", (replace(STRATEGY, values={"ddp": "ddp"}),), lambda values: Made())
    report = make_sweep(tmp_path / "m", None, layout="ielts")
    (table,) = (table for section in report.sections for table in section.tables if table.key == "layout")
    assert table.lines[0][0].text == f"{EPOCH_S.label} (mm:ss)"
    with raises_code("cli.unknown_name", option="--layout"):
        make_sweep(tmp_path / "m", None, layout="imbd")

"""Tables in the layout of published studies; expected values are written out."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from make_matrix import STRATEGY, Made, make_matrix
from make_study import grid, study_tables
from raised import raises_code

from paratune.reports.matrix import make_sweep
from paratune.reports.published import LAYOUTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ddp: 754 s, 400 samples/s, 11,500 MB; zero3: 377 s, 800 samples/s, 9,000 MB on each device."""

    def tell(values: Mapping[str, str]) -> Made:
        is_ddp = values["strategy"] == "ddp"
        memory = {"largest_bytes": 11.5e9 if is_ddp else 9e9, "sum_bytes": 23e9 if is_ddp else 18e9}
        summary = {"time.train_s": 754.0 if is_ddp else 377.0, "utilisation": {"kind": "nvml", "mean": 0.5}}
        summary |= {f"memory.{key}": value for key, value in memory.items()}
        return Made(kind=values["strategy"], step_ms=80.0 if is_ddp else 40.0, summary=summary)

    return make_matrix(tmp_path_factory.mktemp("m") / "m", (STRATEGY,), tell)


def texts(folder: Path, name: str) -> list[list[str]]:
    return grid(study_tables(folder, name)["layout"])


def test_evora_has_configurations_in_columns_times_in_minutes_and_memory_in_mb(folder: Path):
    header, time, memory, total, *scores, runs = texts(folder, "evora")
    assert header == ["", "ddp", "zero3"]
    assert time == ["Time (mm:ss)", "12:34", "06:17"]  # 754 s, 377 s
    assert memory[1:] == ["11,500", "9,000"]
    assert total[1:] == ["23,000", "18,000"]
    assert [score[0] for score in scores] == ["Test accuracy ↑", "Test F1 ↑"]
    assert runs == ["Runs", "1", "1"]


def test_imdb_has_the_speed_up_over_the_baseline(folder: Path):
    header, base, other = texts(folder, "imdb")
    assert header[:3] == ["Configuration", "Time (mm:ss)", "Speed-up (×)"]
    assert (base[1:3], other[1:3]) == (["12:34", "1.00"], ["06:17", "2.00"])


def test_chasing_efficiency_has_each_change_in_brackets(folder: Path):
    _, base, other = texts(folder, "squad")
    assert base[1:3] == ["12:34", "400.0"]
    assert other[1:3] == ["06:17 (−50.0% ↓)", "800.0 (+100.0% ↑)"]
    assert other[4] == "50.0 (0.0%)"


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_all_configurations(folder: Path, name: str):
    table = study_tables(folder, name)["layout"]
    assert {"ddp", "zero3"} <= {*table.header, *(line[0].text for line in table.lines)}
    assert all(len(line) == len(table.columns) for line in table.lines)


@pytest.mark.parametrize(("seconds", "text"), [(59.6, "01:00"), (3725.0, "62:05"), (None, "n/a")])
def test_a_time_is_in_minutes_and_seconds(tmp_path: Path, seconds: float | None, text: str):
    folder = make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(summary={"time.train_s": seconds}))
    assert texts(folder, "evora")[1][1] == text


def test_other_layouts_are_refused(folder: Path):
    with raises_code("cli.invalid_value", option="--layout"):
        make_sweep(folder, None, layout="imbd")

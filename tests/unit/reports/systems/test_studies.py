"""The tables of the five published studies, from records of 1 to 8 devices and two nodes; values are written out."""

from pathlib import Path

from make_study import Told, make_study, study_tables, texts

from paratune.sweeps.cell import Cell

TIMES_S = {1: 100.0, 2: 52.0, 4: 27.0, 8: 14.0}
SPEED_UPS = {"1": "1.00", "2": "1.92", "4": "3.70", "8": "7.14"}
"""100 / 52 = 1.923, 100 / 27 = 3.704, 100 / 14 = 7.143."""


def by_devices(cell: Cell) -> Told:
    """16 GB on one device, shared by all."""
    return Told(TIMES_S[cell.num_processes], 16e9 / cell.num_processes, {"accuracy": 0.85, "f1": 0.9})


def test_evora_tables_1_and_3_begin_with_one_device(tmp_path: Path):
    tables = study_tables(make_study(tmp_path / "m", "studies/evora/scaling", by_devices))
    for key, batches in (("scaling-strong", ["64"] * 4), ("scaling-weak", ["64", "128", "256", "512"])):
        table = tables[key]
        assert texts(table, "global_batch_size") == batches
        assert dict(zip(texts(table, "num_devices"), texts(table, "speed_up"), strict=True)) == SPEED_UPS
        # 1.923 / 2, 3.704 / 4 and 7.143 / 8.
        assert texts(table, "scaling_efficiency") == ["100.0", "96.2", "92.6", "89.3"]


def test_evora_table_4_has_a_line_for_each_precision(tmp_path: Path):
    times = {"fp32": 100.0, "fp16": 50.0, "bf16": 40.0}
    folder = make_study(tmp_path / "m", "studies/evora/precision", lambda cell: Told(times[cell.values["precision"]]))
    table = study_tables(folder)["precision"]
    assert dict(zip(texts(table, "precision"), texts(table, "speed_up"), strict=True)) == {
        "fp32": "1.00", "fp16": "2.00", "bf16": "2.50"
    }  # fmt: skip

"""The tables of the five published studies, from records of 1 to 8 devices and two nodes; values are written out."""

import json
import math
from pathlib import Path

import pytest
from make_run import edit_json
from make_study import NUM_ROWS, Told, column, grid, make_study, study_tables, tables_of, texts
from scipy import stats

from paratune.reports.matrix import make_sweep
from paratune.sweeps.cell import Cell

TIMES_S = {1: 100.0, 2: 52.0, 4: 27.0, 8: 14.0}
SPEED_UPS = {"1": "1.00", "2": "1.92", "4": "3.70", "8": "7.14"}
"""100 / 52 = 1.923, 100 / 27 = 3.704, 100 / 14 = 7.143."""
CLOCKS = ["01:40", "00:52", "00:27", "00:14"]


def by_devices(cell: Cell) -> Told:
    """16 GB on one device, shared by all."""
    return Told(TIMES_S[cell.record.num_processes], 16e9 / cell.record.num_processes, {"accuracy": 0.85, "f1": 0.9})


def values_of(table, name):
    return [cell.value for cell in column(table, name)]


def heads(table):
    """Return the headings of a table with configurations in columns, without marks."""
    return [text.partition(" [")[0] for text in table.header[1:]]


def test_evora_tables_1_and_3_begin_with_one_device(tmp_path: Path):
    tables = study_tables(make_study(tmp_path / "m", "studies/evora/scaling", by_devices), "evora")
    for key, batches in (("scaling-strong", ["64"] * 4), ("scaling-weak", ["64", "128", "256", "512"])):
        table = tables[key]
        assert texts(table, "global_batch_size") == batches
        assert {
            devices: text[:4]
            for devices, text in zip(texts(table, "num_devices"), texts(table, "speed_up"), strict=True)
        } == SPEED_UPS
        # 1.923 / 2, 3.704 / 4 and 7.143 / 8.
        assert [text[:5].strip() for text in texts(table, "scaling_efficiency")] == ["100.0", "96.2", "92.6", "89.3"]
    first, second = tables["layout"], tables["layout-2"]
    assert ("64 samples a step" in first.title, "64 samples a device" in second.title) == (True, True)
    for table in (first, second):
        assert heads(table) == ["1 device", "2 devices", "4 devices", "8 devices"]
        rows = {line[0].text: [cell.text.split(" ")[0] for cell in line[1:]] for line in table.lines}
        assert rows["Time (mm:ss)"] == CLOCKS
        assert rows["Peak memory allocated per GPU (MB)"] == ["16,000", "8,000", "4,000", "2,000"]
        assert rows["Total memory (MB)"] == ["16,000"] * 4
        assert (rows["Validation accuracy ↑"], rows["Validation F1 ↑"]) == (["0.8500"] * 4, ["0.9000"] * 4)
    assert "layout-others" not in tables


def test_evora_table_4_has_a_line_for_each_precision(tmp_path: Path):
    times = {"fp32": 100.0, "fp16": 50.0, "bf16": 40.0}

    def tell(cell: Cell) -> Told:
        precision = cell.values["precision"]
        return Told(times[precision], 8e9 if precision == "fp32" else 4e9, {"f1": 0.9})

    tables = study_tables(make_study(tmp_path / "m", "studies/evora/precision", tell), "evora")
    _, time, memory, *_ = grid(tables["layout"])
    assert heads(tables["layout"]) == ["fp32", "fp16", "bf16"]
    assert [text.split(" ")[0] for text in time[1:]] == ["01:40", "00:50", "00:40"]
    assert [text.split(" ")[0] for text in memory[1:]] == ["8,000", "4,000", "4,000"]


def test_evora_table_5_has_offload_and_none(tmp_path: Path):
    def tell(cell: Cell) -> Told:
        return Told(100.0, 16e9) if cell.values["offload"] == "none" else Told(250.0, 4e9)

    tables = study_tables(make_study(tmp_path / "m", "studies/evora/offload", tell), "evora")
    assert [line[1].value for line in tables["layout"].lines[:2]] == [100.0, 16e9]
    assert [line[2].value for line in tables["layout"].lines[:2]] == [250.0, 4e9]


def test_evora_figure_1_has_its_five_ways(tmp_path: Path):
    times = {"fp32": 100.0, "fp16": 50.0, "bf16": 40.0, "batch-128": 45.0, "offload": 250.0}
    folder = make_study(tmp_path / "m", "studies/evora/figure1", lambda cell: Told(times[cell.values["way"]]))
    tables = study_tables(folder, "evora")
    assert heads(tables["layout"]) == [*times]


def test_oak_ridge_has_the_seconds_of_four_operations(tmp_path: Path):
    phases = {"get_batch": 1.0, "forward": 20.0, "backward": 40.0, "optimizer": 8.0, "other": 1.0}

    def tell(cell: Cell) -> Told:
        return Told(
            70.0 / cell.record.num_processes,
            phases_s={key: value / cell.record.num_processes for key, value in phases.items()},
        )

    tables = study_tables(make_study(tmp_path / "m", "studies/oakridge/phases", tell), "oakridge")
    rows = [[cell.value for cell in line[1:5]] for line in tables["layout"].lines]
    assert rows == [[1.0, 20.0, 40.0, 8.0], [0.5, 10.0, 20.0, 4.0], [0.25, 5.0, 10.0, 2.0]]
    assert values_of(tables["scaling-weak"], "speed_up") == pytest.approx([1.0, 2.0, 4.0])


@pytest.mark.parametrize(("study", "num_lines"), [("workers", 12), ("nccl", 9)])
def test_oak_ridge_has_loader_workers_and_variables(tmp_path: Path, study: str, num_lines: int):
    tables = study_tables(make_study(tmp_path / "m", f"studies/oakridge/{study}", by_devices), "oakridge")
    assert len(tables["layout"].lines) == num_lines


def test_imdb_has_time_speed_up_and_accuracy(tmp_path: Path):
    times = {"one": 100.0, "ddp2": 52.0, "ddp4": 27.0, "fp16": 50.0}
    folder = make_study(
        tmp_path / "m", "studies/imdb/matrix", lambda cell: Told(times[cell.values["way"]], scores={"accuracy": 0.93})
    )
    tables = study_tables(folder, "imdb")
    layout = tables["layout"]
    assert texts(layout, "configuration") == [*times]
    assert [text.split(" ")[0] for text in texts(layout, "train_s")] == ["01:40", "00:52", "00:27", "00:50"]
    assert values_of(layout, "speed_up") == pytest.approx([1.0, 100 / 52, 100 / 27, 2.0])
    assert values_of(layout, "validation_accuracy") == pytest.approx([0.93] * 4)
    # Each device has 16 samples: the same epochs in 100, 52 and 27 s.
    assert values_of(tables["scaling-weak"], "speed_up") == pytest.approx([1.0, 100 / 52, 100 / 27])


def test_squad_has_each_change_against_data_parallel(tmp_path: Path):
    times = {"data-parallel-4": 100.0, "pipeline-2": 160.0, "pipeline-4": 125.0}

    def tell(cell: Cell) -> Told:
        use = {"utilisation": {"kind": "nvml", "mean": 0.8 if cell.record.num_processes == 4 else 0.6}}
        return Told(times[cell.values["way"]], scores={"loss": 1.2}, summary=use)

    layout = study_tables(make_study(tmp_path / "m", "studies/squad/matrix", tell), "squad")["layout"]
    assert [cell.change_percent for cell in column(layout, "train_s")] == pytest.approx([None, 60.0, 25.0])
    # Five epochs in 100, 160 and 125 s: 37.5% and 20% fewer questions a second.
    assert values_of(layout, "samples_per_s") == pytest.approx([NUM_ROWS * 5 / time for time in times.values()])
    assert [cell.change_percent for cell in column(layout, "samples_per_s")] == pytest.approx([None, -37.5, -20.0])
    # One global batch: the efficiency is 1 by its definition, and goodput is the throughput.
    assert values_of(layout, "statistical_efficiency") == [1.0, 1.0, 1.0]
    assert values_of(layout, "goodput_samples_per_s") == values_of(layout, "samples_per_s")
    assert values_of(layout, "utilisation") == pytest.approx([0.8, 0.6, 0.8])
    assert values_of(layout, "validation_loss") == pytest.approx([1.2, 1.2, 1.2])


def test_ielts_has_time_per_epoch_and_reductions_against_the_untuned_encoder(tmp_path: Path):
    rmse = {"untuned": 1.0, "tfidf_ridge": 0.9, "tfidf_svm": 0.95, "one": 0.6, "two": 0.6}

    def tell(cell: Cell) -> Told:
        system = cell.values["system"]
        return Told(180.0 if system != "two" else 93.0, scores={"rmse": rmse[system], "mae": 0.5, "r2": 0.4})

    tables = study_tables(make_study(tmp_path / "m", "studies/ielts/matrix", tell), "ielts")
    layout = tables["layout"]
    lines = {line[0].text: line[1:] for line in layout.lines}
    # Three epochs: 60 s and 31 s each.
    assert [cell.value for cell in lines["Time per epoch (mm:ss) ↓"]] == pytest.approx([60.0] * 4 + [31.0])
    for split in ("Validation", "Test"):
        cells = lines[f"{split} RMSE ↓"]
        assert [cell.value for cell in cells] == pytest.approx([*rmse.values()])
        assert [cell.change_percent for cell in cells] == pytest.approx([None, -10.0, -5.0, -40.0, -40.0])
    assert values_of(tables["scaling-strong"], "speed_up") == pytest.approx([1.0, 180 / 93])


def test_evora_tables_1_and_2_are_beside_each_other(tmp_path: Path):
    one, two = {1: 100.0, 2: 52.0, 4: 27.0, 8: 14.0}, {2: 65.0, 4: 36.0, 8: 20.0}

    def tell(cell: Cell) -> Told:
        time_s = (one if cell.record.num_nodes == 1 else two)[cell.record.num_processes]
        return Told(time_s * {1: 0.99, 2: 1.0, 3: 1.01}[cell.record.repeat], 16e9 / cell.record.num_processes)

    report = make_sweep(make_study(tmp_path / "m", "studies/evora/two_nodes", tell), None, layout="evora")
    tables = tables_of(report)
    lines = ["nproc 1, nodes 1", *(f"nproc {size}, nodes {nodes}" for size in (2, 4, 8) for nodes in (1, 2))]
    times = [100.0, 52.0, 65.0, 27.0, 36.0, 14.0, 20.0]
    # 65 / 52 = 1.25, 36 / 27 = 1.333, 20 / 14 = 1.429.
    changes = [None, None, 25.0, None, 100 / 3, None, 300 / 7]
    table = tables["layout"]
    assert texts(table, "configuration") == lines
    assert [cell.value for cell in column(table, "train_s")] == pytest.approx(times)
    assert [cell.change_percent for cell in column(table, "train_s")] == pytest.approx(changes)
    sizes = [1, 2, 2, 4, 4, 8, 8]
    assert values_of(table, "peak_memory_largest_bytes") == pytest.approx([16e9 / size for size in sizes])
    assert values_of(table, "peak_memory_sum_bytes") == pytest.approx([16e9] * 7)
    assert texts(tables["scaling-strong"], "of") == ["nodes 1"] * 4 + ["nodes 2"] * 4  # one device begins both
    assert values_of(tables["scaling-strong"], "speed_up")[4:] == pytest.approx([1.0, 100 / 65, 100 / 36, 5.0])
    # One number: (1.25 * 1.333 * 1.429) ** (1 / 3) = 1.335; six means of three runs, of which each log has the
    # standard deviation 0.01: the error of the mean of three differences is 0.01 * sqrt(2 / 9) = 0.0047, times the t
    # quantile 2.14 to 2.18 of 12 to 14 degrees of freedom, so 1.335 * exp(+-0.0102).
    (sentence,) = [
        one for box in report.sections[0].parts for one in box.statements if one.label.startswith("nodes 2 against")
    ]
    assert (sentence.is_good, "1.34× " in sentence.text, "(1.32–1.35×)" in sentence.text) == (False, True, True)


@pytest.mark.parametrize(("factor", "is_good"), [(1.0, True), (0.5, True), (2.0, False)])
def test_nodes_that_take_as_long_are_equal(tmp_path: Path, factor: float, is_good: bool):
    def tell(cell: Cell) -> Told:
        time_s = TIMES_S[cell.record.num_processes] * {1: 0.999, 2: 1.0, 3: 1.001}[cell.record.repeat]
        return Told(time_s * (factor if cell.record.num_nodes == 2 else 1.0))

    report = make_sweep(make_study(tmp_path / "m", "studies/evora/two_nodes", tell), None)
    (sentence,) = [
        one for box in report.sections[0].parts for one in box.statements if one.label.startswith("nodes 2 against")
    ]
    assert (sentence.is_good, f"{factor:.2f}×" in sentence.text) == (is_good, True)


def test_speed_up_and_efficiency_have_the_interval_of_welch(tmp_path: Path):
    # Each configuration has three seeds, 2% apart.
    def tell(cell: Cell) -> Told:
        return Told(TIMES_S[cell.record.num_processes] * {41: 0.98, 42: 1.0, 43: 1.02}[cell.config.run.seed])

    table = study_tables(make_study(tmp_path / "m", "studies/evora/scaling", tell))["scaling-strong"]
    logs = [[math.log(size * factor) for factor in (0.98, 1.0, 1.02)] for size in (100.0, 52.0)]
    welch = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    speed_ups, shares = column(table, "speed_up"), column(table, "scaling_efficiency")
    assert speed_ups[1].interval == pytest.approx((math.exp(welch.low), math.exp(welch.high)))
    assert shares[1].interval == pytest.approx((math.exp(welch.low) / 2, math.exp(welch.high) / 2))
    assert speed_ups[1].text == "1.92 [1.84, 2.01]"
    assert speed_ups[0].interval is None


def test_oak_ridge_on_three_systems_has_their_names_and_costs(tmp_path: Path):
    # NVLink and PCIe servers with one kind of GPU, and a virtual machine with three others.
    systems = (
        ("nvlink", "V100", "NV2", 1.0, 3.0),
        ("cloud", "V100", "PHB", 2.0, 2.0),
        ("vm", "V100S", "PHB", 1.5, None),
    )
    folders = [
        make_study(
            tmp_path / name / "oakridge", "studies/oakridge/phases",
            lambda cell, factor=factor: Told(factor * TIMES_S[cell.record.num_processes]),
            host=name, gpu=gpu, link=link,
            keep=lambda cell: cell.record.repeat == 1, price_per_device_hour=price,
        )
        for name, gpu, link, factor, price in systems
    ]  # fmt: skip
    tables = study_tables(folders, "oakridge")
    names = ["nvlink/oakridge", "cloud/oakridge", "vm/oakridge"]
    assert tables["systems"].header == ("", *names)
    assert [cell.text for cell in tables["systems"].lines[0][1:]] == ["V100", "V100", "V100S"]
    # Each system has its own one device.
    scaling = tables["scaling-weak"]
    assert texts(scaling, "of") == [name for name in names for _ in range(3)]
    assert values_of(scaling, "speed_up") == pytest.approx([1.0, 100 / 52, 100 / 27] * 3)
    # 120 s on one device at 3 an hour, and 220 s at 2; the third has no price.
    costs = values_of(tables["resources"], "cost")
    assert (costs[0], costs[3], costs[6]) == (pytest.approx(0.1), pytest.approx(220 * 2 / 3600), None)
    # A third of the training: 100 s on one device at 3, and 54 s (twice 27) on four at 2.
    costs = values_of(tables["resources"], "epoch_cost")
    assert (costs[0], costs[5], costs[6]) == (
        pytest.approx(100 / 3 * 3 / 3600), pytest.approx(54 / 3 * 4 * 2 / 3600), None
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "gpus", "names"),
    [
        (("a", "b"), ("V100", "A100"), ["V100", "A100"]),
        (("a", "b"), ("V100", "V100"), ["System A", "System B"]),
    ],
)
def test_systems_of_one_matrix_are_named_by_gpu_or_by_letter(
    tmp_path: Path, hosts: tuple[str, str], gpus: tuple[str, str], names: list[str]
):
    folder = make_study(tmp_path / "m", "studies/evora/offload", by_devices)
    for run in (folder / "runs").iterdir():
        record = json.loads((run / "run.json").read_text())
        second = "none" in run.name
        node = record["hardware"][0] | {"hostname": f"{hosts[second]}-1", "ram_bytes": 2**40 if second else 2**41}
        edit_json(run / "run.json", hardware=[node | {"gpus": [{"name": gpus[second], "memory_bytes": 4 * 10**10}]}])
    assert sorted(study_tables(folder)["systems"].header[1:]) == sorted(names)


@pytest.mark.slow  # reads 480 configurations
def test_evora_table_6_has_a_row_for_each_model_and_the_metrics_of_each_task(tmp_path: Path):
    # The learning rate 1e-5 is better by 0.1, on each of three seeds 0.01 apart.
    def tell(cell: Cell) -> Told:
        seed = 0.01 * (cell.config.run.seed - 42)
        value = 0.6 + 0.1 * (cell.config.train.learning_rate < 5e-5) + 0.05 * (cell.values["model"] == "aiberta") + seed
        return Told(100.0, scores=dict.fromkeys(("accuracy", "f1", "pearson", "spearman"), value))

    def keep(cell: Cell) -> bool:
        return cell.values["model"] in ("aiberta", "gloria-1b3") and cell.values["task"] in ("mrpc", "stsb")

    table = study_tables(make_study(tmp_path / "m", "studies/evora/table6", tell, keep=keep))["chosen"]
    assert table.groups == ((0, "Encoders"), (1, "Decoders"))
    columns = [column.label for column in table.columns]
    metrics = (
        "mrpc validation Accuracy",
        "mrpc validation F1",
        "stsb validation Pearson r",
        "stsb validation Spearman ρ",
    )
    assert tuple(name.removesuffix(" ↑") for name in columns if "validation" in name) == metrics
    assert [line[0].text for line in table.lines] == ["aiberta", "gloria-1b3"]
    for line, mean in zip(table.lines, (0.75, 0.7), strict=True):
        cells = [cell for cell, name in zip(line, columns, strict=True) if "validation" in name]
        assert [(cell.value, cell.deviation) for cell in cells] == [(pytest.approx(mean), pytest.approx(0.01))] * 4
        assert all(
            "learning rate 1e-05" in cell.text for cell, name in zip(line, columns, strict=True) if "chosen" in name
        )


@pytest.mark.slow  # reads 192 configurations
def test_bert_compares_the_best_learning_rate_with_the_published_score(tmp_path: Path):
    def tell(cell: Cell) -> Told:
        is_best = cell.config.train.learning_rate == 3e-5
        return Told(100.0, scores=dict.fromkeys(("accuracy", "f1"), 0.889 if is_best else 0.8))

    def keep(cell: Cell) -> bool:
        return cell.values["model"] == "base" and cell.values["task"] in ("mrpc", "rte")

    table = study_tables(make_study(tmp_path / "m", "published/bert/glue", tell, keep=keep))["published"]
    lines = {tuple(cell.text for cell in line[:2]): line for line in table.lines}
    keys = [column.name for column in table.columns]
    mrpc, rte = (dict(zip(keys, lines["base", task], strict=True)) for task in ("mrpc", "rte"))
    assert (mrpc["measure"].text, rte["measure"].text) == ("Validation F1", "Validation accuracy")
    assert (mrpc["published"].value, mrpc["measured"].value) == (88.9, pytest.approx(88.9))
    # 88.9 / 66.4
    assert rte["measured_over_published"].value == pytest.approx(1.339, abs=0.001)
    assert dict(zip(keys, lines["large", "rte"], strict=True))["measured"].text == "n/a"

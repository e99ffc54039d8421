"""What commands print: one screen, whose figures are those of the records, and no colour that means nothing."""

import io
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import STRATEGY, Made, make_matrix
from make_run import edit_json, make_run
from rich.console import Console

from paratune.config.metric_names import parse_target
from paratune.records.sweep import Axis
from paratune.reports import make
from paratune.reports.comparison import make_comparison
from paratune.reports.matrix import make_sweep
from paratune.reports.systems.tables import main_table
from paratune.reports.tables.table import make_table
from paratune.reports.terminal import SWEEP_LINES, rich_table, terminal_comparison, terminal_runs, terminal_sweep

SEEDS = Axis("run.seed", "seed", {f"seed-{at}": str(at) for at in (1, 2, 3)}, is_seed=True, keys=("run.seed",))
RATES = Axis(
    "train.learning_rate", "rate", {f"r{at}": f"{at}e-5" for at in range(1, 10)}, keys=("train.learning_rate",)
)
CONSTANT = {"predicts": "majority class", "value": 0}


def printed(renderable, width: int = 80, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(renderable)
    return console.file.getvalue()


def scored(folder: Path, *, score: float = 0.75, **named) -> Path:
    """Return a run with scores of two splits, and those of a constant answer."""
    summary = {
        "scores": {"validation": {"accuracy": score, "f1": score}, "test": {"accuracy": score + 0.01, "f1": score}},
        "baseline": {**CONSTANT, "scores": {split: {"accuracy": 0.5, "f1": 0.4} for split in ("validation", "test")}},
        "kept_step": 150,
        "best": {"metric": "accuracy", "value": score},
        **named.pop("summary_changes", {}),
    }  # fmt: skip
    task = {"task.metrics": ["accuracy", "f1"], **named.pop("run_changes", {})}
    return make_run(folder, run_changes=task, summary_changes=summary, **named)


def test_a_run_ends_in_ten_lines_with_each_score_beside_its_split(tmp_path: Path):
    text = printed(terminal_runs(make([scored(tmp_path / "a", score=0.25)], None)))
    lines = text.splitlines()
    # `paratune train` adds a line with the paths.
    assert len(lines) <= 9
    by_name = {line[: len("validation, majority class")].strip(): line.split()[-2:] for line in lines}
    assert by_name["validation"] == ["0.2500", "0.2500"]
    assert by_name["validation, majority class"] == ["0.5000", "0.4000"]
    assert by_name["test"] == ["0.2600", "0.2500"]
    assert by_name["test, majority class"] == ["0.5000", "0.4000"]
    assert "step 150 of 225" in text
    assert "400 samples/s" in text  # 32 samples in 80 ms
    assert "test Accuracy 0.2600" in text  # the warning


@pytest.mark.parametrize(("world_size", "words"), [(1, ""), (2, " a rank")])
def test_a_probe_has_no_scores(world_size: int, words: str, tmp_path: Path):
    probe = scored(tmp_path / "a", run_changes={"config.measure.probe": True}, kind="ddp", world_size=world_size)
    text = printed(terminal_runs(make([probe], None)))
    assert "0.75" not in text
    assert words in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_two_runs_are_on_one_screen(width: int, tmp_path: Path):
    first, second = scored(tmp_path / "single"), scored(tmp_path / "ddp", score=0.8, kind="ddp", step_ms=40.0)
    text = printed(terminal_runs(make([first, second], None)), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    if width == 40:
        assert len(lines) <= 48
        return
    assert len(lines) <= 29
    (rate,) = (line.split() for line in lines if line.startswith("Samples/s"))
    assert rate == ["Samples/s", "400", "800", "+100.0%"]
    rows = {line[:20].strip(): line for line in lines}
    # 0.80 against 0.75, without predictions: a change without interval, in points.
    assert rows["Validation accuracy"].split()[2:] == ["0.7500", "0.8000"]
    assert rows["Test accuracy"].split()[2:] == ["0.7600", "0.8100", "+5.00"]
    (strategy,) = (line.split() for line in lines if line.startswith("strategy.kind"))
    assert strategy == ["strategy.kind", "single", "ddp"]


def test_runs_of_one_configuration_are_one_column_with_their_spread(tmp_path: Path):
    runs = [
        scored(tmp_path / f"{kind}_{seed}", score=score, kind=kind, seed=seed, run_changes={"config.run.seed": seed})
        for kind in ("single", "ddp")
        for seed, score in ((1, 0.7), (2, 0.8))
    ]  # fmt: skip
    lines = printed(terminal_runs(make(runs, None)), 120).splitlines()
    (score,) = (line for line in lines if line.startswith("Validation accuracy"))
    # The mean of 0.7 and 0.8, and their deviation, the root of 2 * 0.05 ** 2.
    assert score.count("0.7500 ± 0.0707") == 2
    assert ["Runs", "2", "2"] in [line.split() for line in lines]


def test_many_configurations_are_lines(tmp_path: Path):
    folders = [
        scored(tmp_path / f"run{n:02}", step_ms=80.0 + n, run_changes={"config.strategy.bucket_cap_mb": n})
        for n in range(25)
    ]
    lines = printed(terminal_runs(make(folders, None)), 200).splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("run")]
    assert shown == [f"run{n:02}" for n in range(len(shown))]
    assert lines[-1] == f"Not shown: {25 - len(shown)} configurations."
    assert (len(lines), len(shown) > 15) == (28, True)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_matrix_of_27_runs_is_on_one_screen(width: int, tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        rate, seed = int(values["rate"][1:]), int(values["seed"][-1])
        score = 0.8 + 0.01 * rate + 0.001 * seed
        return Made(summary={"scores": {"validation": {"accuracy": score}, "test": {"accuracy": score - 0.1}}})

    states = {f"r9_seed-{seed}": ("failed", "the loss is nan") for seed in (1, 2)}
    report = make_sweep(make_matrix(tmp_path / "m", (RATES, SEEDS), tell, states=states), None)
    lines = printed(terminal_sweep(report, SWEEP_LINES), width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("r9_seed-1, r9_seed-2" in line for line in lines)
    # `paratune sweep` adds three lines with paths.
    assert len(lines) <= 22
    shown = [line.split()[1] for line in lines if line.startswith("rate ") and line[-4:].isdigit()]
    # The baseline, the next one, which is as fast, and the chosen one; at 40 columns two blocks of two lines.
    assert (
        shown[:3] == {40: ["1e-5", "2e-5", "1e-5"], 80: ["1e-5", "2e-5", "8e-5"], 120: ["1e-5", "2e-5", "3e-5"]}[width]
    )
    assert "! Problems: order of runs, seeds." in lines


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a matrix of 3 layouts, 3 learning rates and 3 seeds: packed is the fastest at each rate, in 0.6 times."""
    kinds = Axis("batch.layout", "layout", {kind: kind for kind in ("padded", "bucketed", "packed")})
    kinds = replace(kinds, keys=("batch.layout",))
    rates = replace(RATES, values=dict(itertools.islice(RATES.values.items(), 3)))
    folder = tmp_path_factory.mktemp("layouts") / "m"

    def tell(values: Mapping[str, str]) -> Made:
        seed, rate = int(values["seed"][-1]), int(values["rate"][1:])
        factor = {"padded": 1.0, "bucketed": 0.8, "packed": 0.6}[values["layout"]]
        score = 0.7 + 0.05 * rate + 0.01 * (seed * 7 % 5)
        scores = {"validation": {"accuracy": score, "f1": score}}
        run = {"config.batch.layout": values["layout"], "config.train.learning_rate": rate * 1e-5}
        run["task.metrics"] = ["accuracy", "f1"]
        return Made(step_ms=80.0 * factor * (1 + 0.001 * seed), run=run, summary={"scores": scores})

    return make_matrix(folder, (kinds, rates, SEEDS), tell, baseline={"layout": "padded"})


@pytest.mark.parametrize("width", [80, 120])
def test_of_many_configurations_the_baseline_and_the_fastest_are_shown(width: int, layouts: Path):
    report = make_sweep(layouts, None)
    lines = printed(terminal_sweep(report, SWEEP_LINES), width).splitlines()
    assert len(lines) <= 22
    shown = [line.split(",")[0] for line in lines if line.startswith(("padded,", "bucketed,", "packed,"))]
    assert shown[:3] == ["padded", "packed", "packed"] if len(shown) < 9 else ["padded"] * 3
    assert len(shown) == 9 or f" {9 - len(shown)} configurations" in lines[-1]


@pytest.mark.parametrize("width", [80, 120])
def test_a_comparison_of_a_matrix_is_on_one_screen_with_the_answer_first(width: int, layouts: Path):
    lines = printed(terminal_comparison(make_comparison([str(layouts)])), width).splitlines()
    assert len(lines) <= 30
    # Scores without predictions are decided on these rows only.
    assert lines[0].startswith("? Fastest at equal quality: ")
    assert "layout packed" in " ".join(lines[:2])
    # Two values of each axis, and two layouts at each of three rates, each with the change of its speed.
    numbers = [line for line in lines if line.startswith(("layout ", "rate ", "bucketed,", "packed,"))]
    assert len(numbers) == 10
    assert [line.split()[2:4] for line in numbers[:2]] == [["+25.00%", "[+24.88,"], ["+66.67%", "[+66.50,"]]
    assert width == 120 or all(word in lines[-1] for word in ("Not shown: ", "--json", "--out"))


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a matrix of 4 baselines with 12 configurations each, in which 4 runs failed for different reasons."""
    models = Axis("model.name", "model", {f"m{at}": f"model {at}" for at in range(1, 5)}, keys=("model.name",))
    sizes = Axis("batch.micro", "micro-batch", {f"{2**at}": f"{2**at}" for at in range(12)}, keys=("batch.micro",))

    def tell(values: Mapping[str, str]) -> Made:
        run = {"config.model.name": values["model"], "config.batch.micro": int(values["micro-batch"])}
        return Made(step_ms=80.0 + int(values["model"][1]) + int(values["micro-batch"]) / 100, run=run)

    states = {f"m{at}_{2**at}": ("failed", f"reason {at}, which is told in full") for at in range(1, 5)}
    folder = tmp_path_factory.mktemp("grid") / "m"
    return make_matrix(folder, (models, sizes), tell, states=states, select_per=("model",))


@pytest.mark.parametrize("width", [40, 60, 80, 160])
@pytest.mark.parametrize("targets", [[], ["accuracy>=0.8"], ["accuracy>=0.8", "accuracy>=0.85", "loss<=0.3"]])
def test_a_report_of_any_matrix_is_on_one_screen(width: int, targets: list[str], grid: Path):
    report = make_sweep(grid, None, targets=[parse_target(text) for text in targets])
    lines = printed(terminal_sweep(report), width).splitlines()
    # `paratune report` adds a line.
    assert len(lines) <= 29
    text = " ".join(" ".join(lines).split())
    assert "Unfinished: 4 of 48 runs" in text
    first = next(at for at, line in enumerate(lines) if line.startswith("Configuration"))
    rows = list(itertools.takewhile(lambda line: line.startswith("model "), lines[first + 1 :]))
    assert (len(rows) > 1, rows[0].startswith("model 1, micro-batch 1 ")) == (True, True)
    assert f" {44 - len(rows)} configurations" in text[text.index("Not shown: ") :]
    assert width == 40 or not targets or "Time to accuracy ≥ 0.8 on validation" in text


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_comparison_of_any_matrix_is_on_one_screen(width: int, grid: Path):
    lines = printed(terminal_comparison(make_comparison([str(grid)])), width).splitlines()
    assert len(lines) <= 30
    numbers = [line for line in lines if line.startswith("model ") and "%" in line]
    text = " ".join(" ".join(lines).split())
    assert len(numbers) > 1
    assert f" {40 - len(numbers)} verdicts" in text[text.index("Not shown: ") :]


@pytest.mark.parametrize(
    ("by", "label", "baselines"),
    [
        ("layout", "Fastest at equal quality", [f"padded, rate {rate}e-5" for rate in (1, 2, 3)]),
        # A learning rate does not change the speed.
        ("rate", "Best in validation Accuracy", [f"{kind}, rate 1e-5" for kind in ("padded", "bucketed", "packed")]),
    ],
)
def test_by_an_axis_each_baseline_has_an_answer_on_one_screen(by: str, label: str, baselines: list[str], layouts: Path):
    lines = printed(terminal_comparison(make_comparison([str(layouts)], by=[by]))).splitlines()
    assert len(lines) <= 30
    first = next(at for at, line in enumerate(lines) if line.startswith("Against"))
    assert [line[:1] for line in lines[:first] if label in line] == ["?"] * 3
    answers = " ".join(" ".join(lines[:first]).split())
    assert all(baseline in answers for baseline in baselines)


def verdict_lines(tmp_path: Path, factor: float, *, spread: float = 0.001) -> list[str]:
    """Return the verdict of zero3, whose step takes `factor` times that of ddp, with the codes of colours."""

    def tell(values: Mapping[str, str]) -> Made:
        step_ms = 80.0 * (factor if values["strategy"] == "zero3" else 1.0)
        return Made(kind=values["strategy"], step_ms=step_ms * (1 + spread * int(values["seed"][-1])))

    folder = make_matrix(tmp_path / "m", (STRATEGY, SEEDS), tell)
    options = {"force_terminal": True, "color_system": "standard"}
    return printed(terminal_comparison(make_comparison([str(folder)])), 200, **options).splitlines()


@pytest.mark.parametrize(
    ("factor", "spread", "colour"), [(0.5, 0.001, "32"), (2.0, 0.001, "31"), (1.0, 0.0001, ""), (1.05, 0.2, "")]
)
def test_only_what_is_told_apart_has_a_colour(factor: float, spread: float, colour: str, tmp_path: Path):
    first = verdict_lines(tmp_path, factor, spread=spread)[0]
    colours = [code for code in ("31", "32", "33") if f"\x1b[{code}m" in first or f";{code}m" in first]
    assert colours == [colour] * bool(colour)


def test_the_reason_of_many_missing_runs_is_there_once(tmp_path: Path):
    names = [f"{strategy}_seed-{seed}" for strategy, seed in itertools.product(STRATEGY.values, (1, 2, 3))]
    states = dict.fromkeys(names[:4], ("pending", None)) | {names[4]: ("failed", "the loss is nan")}
    report = make_sweep(make_matrix(tmp_path / "m", (STRATEGY, SEEDS), lambda _: Made(), states=states), None)
    lines = printed(terminal_sweep(report), 200).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Unfinished: 5 of 6 runs"))
    assert lines[at + 1].startswith("ddp_seed-1, ddp_seed-2, ddp_seed-3, and 1 more: ")
    assert lines[at + 2] == "zero3_seed-2: failed: the loss is nan"


def test_equal_damage_of_several_runs_is_there_once(tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (STRATEGY, SEEDS), lambda values: Made(kind=values["strategy"]))
    for name in ("ddp_seed-1", "zero3_seed-3"):
        (folder / "runs" / name / "summary.json").write_text('{"schema_version": 1}')
    lines = printed(terminal_sweep(make_sweep(folder, None)), 400).splitlines()
    (line,) = (line for line in lines if "summary.json" in line)
    assert line.startswith("ddp_seed-1, zero3_seed-3: ")


def test_a_change_with_another_sign_than_its_values_is_marked(tmp_path: Path):
    rates = {"a": (43, 10.1, 26.0), "b": (42, 3.7, 63.0), "c": (42, 5.75, 46.0)}
    for name, (seed, rate, seconds) in rates.items():
        changes = {"throughput.samples_per_s": rate, "phases.forward.total_s": seconds}
        make_run(tmp_path / name, seed=seed, run_changes={"config.run.seed": seed}, summary_changes=changes)
    edit_json(tmp_path / "c" / "run.json", environment={"OMP_NUM_THREADS": "1"})
    report = make([tmp_path / name for name in rates], None)
    lines = {line[0].value: line for line in main_table(report.systems).lines}
    _, before, after, change = lines["samples_per_s"]
    assert (before.value < after.value, change.text) == (True, "−5.9% †")
    assert "†" not in lines["train_s"][-1].text


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([["a", "1", "n/a"], ["b", "2", "n/a"]], "abab"),  # nothing is known in the last block
        ([["a", "1", "n/a"], ["b", "2", "3"]], "abb"),
        ([], ""),
    ],
)
def test_blocks_of_columns_leave_out_lines_only_beside_others(rows: list[list[str]], names: str):
    table = make_table("t", "", ["", "first" * 8, "second" * 8], rows)
    lines = [line for part in rich_table(table, 30) for line in printed(part, 30).splitlines()]
    assert "".join(line[0] for line in lines if line[:1] in ("a", "b")) == names


def test_names_are_printed_literally(tmp_path: Path):
    hostile = replace(STRATEGY, values={"ddp": "[red]a[/red]", "zero3": "\x1b[31mb"})
    report = make_sweep(make_matrix(tmp_path / "m", (hostile, SEEDS), lambda _: Made()), None)
    text = printed(terminal_sweep(report), 200, force_terminal=True)
    assert "[red]a[/red]" in text
    assert "\\x1b[31mb" in text


def test_different_experiments_have_no_changes(tmp_path: Path):
    other = scored(tmp_path / "b", step_ms=40.0, run_changes={"data.train.fingerprint": "other"})
    text = printed(terminal_runs(make([scored(tmp_path / "a"), other], None)))
    assert "the training data" in text
    assert "Change" not in text
    assert "%" not in text


@pytest.mark.parametrize("num_runs", [3, 12])
def test_several_different_experiments_are_printed_without_a_rank(tmp_path: Path, num_runs: int):
    changes = [{"config.train.learning_rate": number * 1e-5} for number in range(1, num_runs + 1)]
    runs = [str(make_run(tmp_path / f"r{at}", run_changes=change)) for at, change in enumerate(changes)]
    text = printed(terminal_comparison(make_comparison(runs)))
    assert ("learning_rate" in text, "Fastest" in text) == (True, False)

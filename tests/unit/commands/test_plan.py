"""`paratune plan`: from a configuration, without its weights, to a table, JSON and a file; and refused options."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raised import check_logged, raises_code
from tiny import tiny_config, tiny_tokenizer
from transformers import RobertaConfig

from paratune.api.plan_job import check_positions
from paratune.commands import plan as command
from paratune.commands.plan import PlanArguments, plan
from paratune.commands.plan_goal import check_goal
from paratune.config.load import load_config
from paratune.errors import EXIT_FAILED, EXIT_OK

CONFIG = """\
task: {kind: classification, labels: [neg, pos]}
data:
  train: TRAIN
  columns: {text: text, label: label}
model: {name: MODEL}
train: {epochs: 3}
batch: {global: 8}
"""
ROWS = ["text,label", *(f"{'good ' * (1 + number % 5)}film,pos" for number in range(20))]
"""4 to 8 tokens: two special ones, the film, and 1 to 5 others."""
Planned = Callable[..., dict[str, Any]]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "set_up_logging", lambda **_: None)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    model, train, path = tmp_path / "model", tmp_path / "train.csv", tmp_path / "c.yaml"
    tiny_tokenizer(model)
    tiny_config().save_pretrained(model)  # and no weights
    train.write_text("\n".join(ROWS))
    path.write_text(CONFIG.replace("TRAIN", str(train)).replace("MODEL", str(model)))
    return path


@pytest.fixture
def planned(path: Path, capsys: pytest.CaptureFixture[str]) -> Planned:
    def run(*overrides: str, write: Path | None = None, **wanted: Any) -> dict[str, Any]:
        wanted = {"devices": "1,2", "device": "a100-40gb"} | wanted
        assert plan(path, set_=overrides, wanted=PlanArguments(**wanted), write=write, json=True) == EXIT_OK
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run


def test_a_plan_needs_only_data_and_architecture(planned: Planned) -> None:
    result = planned(strategies="single,ddp,zero3")
    assert result["data"] == {
        "num_samples": 20,
        "mean_length": 6.0,
        "longest": 8,
        "sequences_per_sample": 1.0,
        "is_assumed": False,
    }
    ways = {(entry["strategy"], entry["num_ranks"]): entry for entry in result["options"]}
    assert set(ways) == {("single", 1), ("ddp", 1), ("ddp", 2), ("zero3", 1), ("zero3", 2)}
    single = ways["single", 1]
    assert (single["micro_batch_size"], single["num_steps"], single["fits"]) == (8, 9, True)  # 3 epochs of 3 steps
    assert single["steps_per_epoch"] == 2.5
    low, high = single["step_s"][1:]
    assert low < single["step_s"][0] < high
    assert sum(single["terms_s"].values()) == pytest.approx(single["step_s"][0])
    assert sum(single["memory"]["terms"].values()) == single["memory"]["total_bytes"]
    assert ways["zero3", 2]["memory"]["terms"]["optimizer"] < single["memory"]["terms"]["optimizer"]
    assert {entry["reason"] for entry in result["impossible"]} == {
        "strategy.kind: single runs in 1 process, and 2 are requested; start one"
    }


def test_max_length_replaces_the_data(planned: Planned) -> None:
    result = planned("data.train=nowhere.csv", max_length=32, rows=80, strategies="single", devices="1")
    assert result["data"] == {
        "num_samples": 80,
        "mean_length": 32.0,
        "longest": 32,
        "sequences_per_sample": 1.0,
        "is_assumed": True,
    }
    assert result["options"][0]["num_steps"] == 30
    unknown = planned(max_length=32, strategies="single", devices="1")["options"][0]
    assert (unknown["epoch_s"], unknown["num_steps"]) == (None, None)
    assert unknown["step_s"] is not None


def test_the_written_file_loads_as_the_recommendation(planned: Planned, tmp_path: Path) -> None:
    best = tmp_path / "best.yaml"
    result = planned(strategies="zero3", precision="bf16", devices="2", write=best, price=1.5)
    config = load_config(best).config
    assert (config.strategy.kind, config.precision, config.batch.micro_batch_size) == ("zero3", "bf16", 4)
    assert result["written"] == str(best)
    low, high = result["options"][0]["price"][1:]
    assert 0 < low < high


def test_the_table_shows_the_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = PlanArguments(devices="1,2", device="t4", strategies="ddp,pipeline", micro_batch_size="4,3")
    assert plan(path, wanted=wanted) == EXIT_OK
    text = capsys.readouterr().out
    assert "20 rows of 6 tokens on average, the longest 8; packed batches" in text
    assert "not possible: ddp on 1 device; pipeline on 2 devices: batch.micro_batch_size is 3" in " ".join(text.split())
    assert "- Run ddp on" in text


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        ({"devices": "0"}, ("cli.invalid_value", "--devices", "0", "1,2,4,8")),
        ({"devices": "1,a"}, ("cli.invalid_value", "--devices", "1,a")),
        ({"devices": ""}, ("cli.invalid_value", "--devices", ": ")),
        ({"devices": "2,4,2"}, ("cli.named_twice", "--devices", "2,4,2")),
        ({"micro_batch_size": "-1"}, ("cli.invalid_value", "--micro-batch-size", "-1")),
        ({"nodes": "0"}, ("cli.invalid_value", "--nodes", "0", "1,2,4,8")),
        ({"max_length": 0}, ("cli.out_of_range", "0", "1", "--max-length")),
        ({"rows": 5}, ("cli.out_of_range", "--rows", "--max-length")),
        ({"price": -1.0}, ("cli.out_of_range", "--price", "1.0")),
        ({"precision": "bf61"}, ("cli.unknown_name", "--precision", "bf61")),
        ({"precision": "fp16,bf-16"}, ("cli.unknown_name", "--precision", "bf-16", "bf16")),
        ({"device": "a100-40g"}, ("plan.unknown_device", "a100-40gb")),
        ({"strategies": "dpd"}, ("strategy.unknown", "--strategies", "dpd", "ddp")),
        ({"strategies": ","}, ("cli.argument_missing", "--strategies")),
        ({"max_length": 65}, ("model.max_length", "--max-length", "65", "64")),
    ],
)
def test_invalid_options_of_plan_are_refused(path: Path, wanted: dict[str, Any], refused: tuple[str, ...]) -> None:
    with raises_code(*refused):
        plan(path, wanted=PlanArguments(**({"device": "t4"} | wanted)), json=True)


@pytest.mark.parametrize(
    "wanted",
    [
        {"strategies": "ddp", "devices": "1", "micro_batch_size": "3"},  # not possible
        {"strategies": "single", "devices": "1", "goal": "under 0.1GB"},  # not met
    ],
)
def test_without_a_recommendation_the_exit_code_is_1(
    path: Path, wanted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for as_json in (True, False):
        code = plan(path, wanted=PlanArguments(**({"device": "t4"} | wanted)), json=as_json)
        assert code == EXIT_FAILED
    assert capsys.readouterr().out


def test_a_published_model_is_planned_without_its_files(
    planned: Planned, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paratune.hub.unreachable_reason", lambda: "HF_HUB_OFFLINE is set")
    options = {"strategies": "single", "devices": "1", "max_length": 8}
    result = planned("model.name=distilbert-base-uncased", "model.overrides={n_layers: 1}", **options)
    # Word and position embeddings, a layer norm, a layer of 7,087,872, and the head: 768 x 768 and 768 x 2 with biases.
    encoder = (30522 + 512 + 2) * 768 + 7_087_872
    assert result["options"][0]["memory"]["terms"]["weights"] == 4 * (encoder + 768 * 769 + 2 * 769)
    check_logged(caplog, "plan.published_shape", "distilbert-base-uncased")
    with raises_code("model.cannot_load"):
        planned("model.name=someone/bert", **options)


def test_missing_data_suggests_max_length(path: Path) -> None:
    with raises_code("data.not_found", "nowhere.csv", "--max-length", "TOKENS"):
        plan(path, set_=["data.train=nowhere.csv"], wanted=PlanArguments(device="t4"), json=True)


def test_without_config_calibrate_or_score_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with raises_code("cli.argument_missing", "CONFIG", "my.yaml"):
        plan()
    with raises_code("run.not_a_run"):
        plan(wanted=PlanArguments(score=(Path("nowhere"),)))


def test_runs_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from make_run import make_run

    run = make_run(tmp_path / "a", summary_changes={"prediction": {"step_s": [0.06, 0.04, 0.1], "reason": None}})
    assert plan(wanted=PlanArguments(score=(run,)), json=True) == EXIT_OK
    result = json.loads(capsys.readouterr().out)
    assert result["runs"][0]["predicted_s"] == 0.06
    assert plan(wanted=PlanArguments(score=(run,))) == EXIT_OK
    assert "within the interval" in capsys.readouterr().out


def test_calibrate_prints_the_measurements(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from paratune.planning import calibration
    from paratune.planning.calibration import Calibration
    from paratune.planning.constants import BoundedConstant, Constants
    from paratune.planning.machine import detect_machine

    figures = {1: Constants({"adamw": BoundedConstant(1e9, 9e8, 1e9, "measured")})}
    result = Calibration(detect_machine(), figures, Path("kept.json"), 61.0)
    monkeypatch.setattr(calibration, "calibrate", lambda say: result)
    assert plan(wanted=PlanArguments(calibrate=True), json=True) == EXIT_OK
    printed = json.loads(capsys.readouterr().out)["calibration"]
    assert printed["by_threads"]["1"]["adamw"]["value"] == 1e9
    assert plan(wanted=PlanArguments(calibrate=True)) == EXIT_OK
    assert "measured in 61 s, kept in kept.json" in capsys.readouterr().out


def test_runs_refine_the_figures_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from make_run import make_run

    from paratune.planning.calibration import store, this_node
    from paratune.planning.constants import BoundedConstant, Constants
    from paratune.planning.machine import detect_machine, this_machine
    from paratune.planning.time import TERMS

    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    with raises_code("plan.not_calibrated", "--calibrate"):
        plan(wanted=PlanArguments(calibrate=True, score=(tmp_path,)))
    names = ("forward", "backward", "optimizer", "communication", "pipeline", "run")
    store(
        detect_machine().name,
        {1: Constants({f"factor.{name}": BoundedConstant(1.0, 0.7, 1.4, "assumed") for name in names})},
    )
    prediction = {
        "machine": detect_machine().name,
        "is_calibrated": True,
        "terms_s": dict.fromkeys(TERMS, 0.001) | {"forward": 0.01},
        "factors": {f"factor.{name}": 1.0 for name in names},
        "reason": None,
    }
    changes = {"hardware": [{"hostname": "a node like this", **this_node()}], "num_threads": 1}
    changes |= {"strategy.traits.own_phases": ["forward", "backward", "optimizer"]}
    good = make_run(tmp_path / "good", run_changes=changes, summary_changes={"prediction": prediction})
    elsewhere = {**changes, "hardware": [this_node() | {"num_usable_cores": 1024}]}
    bad = make_run(tmp_path / "bad", run_changes=elsewhere, summary_changes={"prediction": prediction})
    without = make_run(tmp_path / "without", run_changes=changes)
    assert plan(wanted=PlanArguments(calibrate=True, score=(good, bad, without))) == EXIT_OK
    printed = " ".join(capsys.readouterr().out.split())
    assert "bad is not used: it ran on" in printed
    assert "without is not used: no prediction of its time" in printed
    shown = json.loads((good / "summary.json").read_text())["phases"]["forward"]["median_ms"] / 1000 / 0.01
    constants = this_machine().constants
    assert constants is not None
    # Part of the way from 1 to what the run shows.
    assert 1 < constants["factor.forward"].value < shown
    with raises_code("plan.nothing_to_refine", name=detect_machine().name):
        plan(wanted=PlanArguments(calibrate=True, score=(good,)), json=True)


def test_a_plan_is_printed_before_write_is_refused(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = PlanArguments(
        device="t4", devices="3", strategies="pipeline:2", max_length=16
    )  # two stages, three processes
    with raises_code("plan.nothing_to_write", option="--write"):
        plan(path, wanted=wanted, write=tmp_path / "best.yaml")
    assert "not possible: pipeline:2 on 3 devices: " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("given", "meant"), [("f1>=0.88", "f1>=88"), ("exact>=500", "exact>=100")])
def test_goals_of_question_answering_are_in_percent(given: str, meant: str) -> None:
    assert check_goal(PlanArguments(goal="f1>=88 and loss<=0.5"), (), "qa", lambda: None) is not None
    with raises_code("metric.scale", "100", meant):
        check_goal(PlanArguments(goal=given), (), "qa", lambda: None)


def test_a_goal_selects_an_option_and_writes_probes(planned: Planned, tmp_path: Path) -> None:
    from paratune.sweeps.matrix import read_matrix

    probes, best = tmp_path / "probes.yaml", tmp_path / "best.yaml"
    result = planned(strategies="single,ddp", goal="f1>=0.8 within 1h under 30GB", write_probes=probes, write=best)
    assert [entry["state"] for entry in result["goal"]["verdicts"]] == ["meets it"] * 3
    kind = load_config(best).config.strategy.kind
    assert f"For the goal run {kind} on" in result["goal"]["lines"][-1]
    (axis,) = read_matrix(probes).axes
    assert len(axis.values) == 6  # three ways to time, three learning rates


def test_max_length_is_at_most_the_positions_of_the_model() -> None:
    # RoBERTa's table of 514 positions holds 512 tokens.
    config = SimpleNamespace(model=SimpleNamespace(name="a model"))
    check_positions(config, RobertaConfig(max_position_embeddings=514), 512)
    with raises_code("model.max_length", "--max-length", "513", "512"):
        check_positions(config, RobertaConfig(max_position_embeddings=514), 513)


def test_the_price_can_come_from_the_file_of_the_machine() -> None:
    wanted = PlanArguments(goal="for 5")
    goal = check_goal(wanted, (), "classification", lambda: 1.5)
    assert goal is not None
    assert goal.price == 5
    with raises_code("cli.option_missing", "--price", "price_per_hour"):
        check_goal(wanted, (), "classification", lambda: None)


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        ({"goal": "rmse<=1"}, ("metric.unknown", "--goal", "rmse")),
        ({"goal": "f1>=88"}, ("metric.scale", "--goal", "f1", "0.88")),
        ({"goal": "for 5"}, ("cli.option_missing", "--goal", "PRICE")),
        ({"goal": "within 1h", "measured": ("runs/a",)}, ("metric.unknown", "--goal", "f1", "0.88")),
        (
            {"measured": (".",), "write_probes": Path("p.yaml")},
            ("cli.option_missing", "--measured", "--write-probes"),
        ),
        ({"goal": "within 1h", "write_probes": Path("p.txt")}, ("output.format", "--write-probes", "p.txt: a")),
        ({"goal": "within 1h", "write_probes": Path("p.yaml"), "nodes": "2"}, ("cli.no_effect", "--nodes")),
        ({"calibrate": True}, ("cli.conflict", "--calibrate", "--device", "t4")),
        ({"score": (Path("runs/a"),)}, ("cli.no_effect", "--score")),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    path: Path, wanted: dict[str, Any], refused: tuple[str, ...]
) -> None:
    with raises_code(*refused):
        plan(path, wanted=PlanArguments(device="t4", **wanted), json=True)


def test_a_measured_figure_moves_the_plan(planned: Planned) -> None:
    options = {"strategies": "single", "devices": "1"}
    before = planned(**options)["options"][0]
    step_s, total_bytes = 3 * before["step_s"][0], before["memory"]["total_bytes"]
    figures = (f"{step_s:.6f} s a step on 1 x a100-40gb", f"{2 * total_bytes / 1e6} MB on 1 x a100-40gb")
    found = planned(measured=figures, **options)
    after = found["options"][0]
    assert after["step_s"][0] == pytest.approx(step_s, rel=0.1)
    assert after["memory"]["total_bytes"] == pytest.approx(2 * total_bytes, rel=1e-3)
    timed, memory = found["measured"]["figures"]
    assert timed["planned_before"] == pytest.approx(before["step_s"][0])
    assert timed["planned_after"] == pytest.approx(after["step_s"][0])
    assert memory["planned_before"] == total_bytes
    assert found["measured"]["moved"]
    assert "network" not in found["measured"]["moved"]


def test_a_figure_of_two_devices_is_of_ddp_if_the_strategy_is_for_one(planned: Planned) -> None:
    texts = ("1 s a step on 1 x a100-40gb", "1 s a step on 2 x a100-40gb")
    found = planned("strategy.kind=single", measured=texts, devices="1")
    assert [figure["way"].split(",")[0] for figure in found["measured"]["figures"]] == ["single", "ddp"]


def test_an_epoch_and_a_rate_are_brought_to_a_step(planned: Planned) -> None:
    # 20 rows in steps of 8: an epoch is 2.5 steps, and 8 samples in 0.4 s are 20 a second.
    options = {"strategies": "single", "devices": "1"}
    texts = ("400 ms a step", "1 s an epoch", "20 samples/s", "3.6 s a run")  # 9 steps
    steps = [planned(measured=(f"{text} on 1 x a100-40gb",), **options)["options"][0]["step_s"] for text in texts]
    assert steps == [pytest.approx(steps[0])] * 4


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("1 s a step on 1 x t4", ("plan.measured_device", "t4", "a100-40gb")),
        ("1 s a step on 2 x a100-40gb, single", ("plan.measured_impossible", "single")),
        ("0.01 MB on 1 x a100-40gb", ("plan.measured_memory", "0.01 MB")),
    ],
)
def test_a_figure_that_cannot_be_of_the_plan_is_refused(path: Path, text: str, refused: tuple[str, ...]) -> None:
    wanted = PlanArguments(devices="1", device="a100-40gb", measured=(text,))
    with raises_code(*refused):
        plan(path, wanted=wanted, json=True)


def test_a_figure_that_needs_an_unknown_constant_is_refused(path: Path, tmp_path: Path) -> None:
    # Without links, nothing is known of what two devices exchange.
    machine = tmp_path / "alone.yaml"
    machine.write_text("memory_gib: 40\nmemory_gb_per_s: 1500\npeak_tflops: {fp32: 19}\n")
    wanted = PlanArguments(devices="1", device=str(machine), measured=("1 s a step on 2 x alone, ddp",))
    with raises_code("plan.not_calibrated", "1 s a step on 2 x alone, ddp", "link"):
        plan(path, wanted=wanted, json=True)


def test_what_no_figure_determines_is_listed(planned: Planned) -> None:
    found = planned(measured=("1 s a step on 1 x a100-40gb, single",), strategies="single,ddp", devices="1,2")
    assert "link" in found["measured"]["still_assumed"]
    assert "network" not in found["measured"]["still_assumed"]  # one node does not use it

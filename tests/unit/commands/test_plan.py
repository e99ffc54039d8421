"""`paratune plan`: from a configuration, without its weights, to a table, JSON and a command; and refused options."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raised import check_logged, raises_code
from tiny import tiny_config, tiny_tokenizer

from paratune.api.plan_options import PlanOptions
from paratune.commands import plan as command
from paratune.commands.plan import plan
from paratune.config.load import load_config
from paratune.errors import EXIT_FAILED, EXIT_OK
from paratune.planning import machine
from paratune.records.finished import read_record
from paratune.records.sweep import SWEEP_FILE
from paratune.reports.measures import step_ms

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
    def run(*overrides: str, measured: Sequence[Path] = (), **wanted: Any) -> dict[str, Any]:
        options = PlanOptions(**{"devices": "1,2", "device": "a100-40gb"} | wanted)
        assert plan(path, options=options, set_=overrides, measured=tuple(measured), json=True) == EXIT_OK
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
        "strategy.kind: single runs in 1 process, and the run has 2; start one, or set strategy.kind: ddp"
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


@pytest.mark.parametrize(
    ("own", "overrides", "wanted"),
    [
        ("batch: {global: 8}", (), {"strategies": "zero3", "precision": "bf16"}),
        ("batch: {global: 8}", ("train.learning_rate=3e-5", "batch.global=4"), {"strategies": "ddp"}),
        # Options of the strategy of the configuration are left out, also where the new one has none.
        ("batch: {global: 8}\nstrategy: {kind: deepspeed, stage: 3}", (), {"strategies": "pipeline:2:schedule=gpipe"}),
        ("batch: {global: 8}\nstrategy: {kind: deepspeed, stage: 3}", (), {"strategies": "ddp"}),
        ("batch: {per_device: 4, grad_accum_steps: 2}", (), {"strategies": "ddp"}),
    ],
)
def test_the_start_command_is_that_of_the_recommendation(
    path: Path, capsys: pytest.CaptureFixture[str], own: str, overrides: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    path.write_text(path.read_text().replace("batch: {global: 8}", own))
    options = PlanOptions(devices="2", device="a100-40gb", price=1.5, **wanted)
    assert plan(path, options=options, set_=overrides, json=True) == EXIT_OK
    result = json.loads(capsys.readouterr().out)
    option = result["options"][result["recommended"]]
    low, high = option["price"][1:]
    assert 0 < low < high
    program, command, name, *words = shlex.split(result["start"])
    assert (program, command, name, words[:2]) == ("paratune", "train", str(path), ["--nproc", "2"])
    settings = words[3::2]
    assert words[2::2] == ["--set"] * len(settings)
    assert settings[: len(overrides)] == list(overrides)
    config = load_config(path, settings).config
    kind, *more = str(option["strategy"]).split(":")
    assert (config.strategy.kind, config.precision) == (kind, option["precision"])
    assert not more or config.strategy.model_dump()["schedule"] == "gpipe"
    size = config.batch.micro_batch_size if config.batch.per_device is None else config.batch.per_device
    assert size == option["micro_batch_size"]


def test_the_start_command_of_several_nodes_is_of_torchrun(planned: Planned) -> None:
    start = planned("batch.global=16", devices="16", strategies="ddp")["start"]
    assert start.startswith("torchrun --nnodes 2 --nproc-per-node 8 ")
    assert " -m paratune train " in start


def test_the_table_shows_the_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = PlanOptions(devices="1,3", device="t4", strategies="ddp,pipeline")
    assert plan(path, options=options, all_=True) == EXIT_OK
    text = capsys.readouterr().out
    assert "20 rows of 6 tokens on average, the longest 8; packed batches" in text
    assert "not possible: ddp on 3 devices: batch.global is 8, which 3 ranks" in " ".join(text.split())
    assert "- Run ddp on" in text
    assert plan(path, options=options) == EXIT_OK
    short = capsys.readouterr().out
    assert short.startswith("Run ddp on 1 device, fp16, micro-batches of 8: ")
    assert len(short.splitlines()) <= 15


def test_a_card_without_bf16_is_planned_and_trained_in_fp16(planned: Planned, path: Path) -> None:
    for overrides in ((), ("precision=bf16",)):
        result = planned(*overrides, device="v100-16gb", strategies="single", devices="1")
        option = result["options"][result["recommended"]]
        assert option["precision"] == "fp16"
        settings = shlex.split(result["start"])[4::2]
        assert load_config(path, settings).config.precision == "fp16"
        assert any("fp16 on v100-16gb" in note for note in result["notes"])
    assert planned("precision=fp32", device="v100-16gb", devices="1")["options"][0]["precision"] == "fp32"


def test_several_kinds_of_devices_are_one_plan(planned: Planned, path: Path) -> None:
    result = planned(device="v100-16gb, h100-80gb", strategies="single,ddp", devices="1,2")
    assert [machine["name"] for machine in result["machines"]] == ["v100-16gb", "h100-80gb"]
    alone = {name: planned(device=name, strategies="single,ddp", devices="1,2") for name in ("v100-16gb", "h100-80gb")}
    assert result["options"] == [option for one in alone.values() for option in one["options"]]
    assert {option["device"]: option["precision"] for option in result["options"]} == {
        "v100-16gb": "fp16",
        "h100-80gb": "bf16",
    }
    with raises_code("cli.invalid_value", "--price", "v100-16gb,t4"):
        plan(path, options=PlanOptions(device="v100-16gb,t4", price=1.0))


@pytest.mark.parametrize(("gib", "recommends"), [(1.95, True), (1.5, False), (1.0, False)])
def test_remedies_are_planned_where_nothing_fits(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gib: float, recommends: bool
) -> None:
    # 2e6 words of width 32 are 0.24 GiB: with gradients and AdamW's states four times as much, with LoRA once. 0.55 GiB
    # are for context and workspaces, and up to 0.6 more for the context: at least 2.1 GiB as configured, 1.4 with LoRA.
    # Offload has a whole gradient, its buffer and its sum on the device at a time: 1.9 GiB.
    config = tiny_config()
    config.vocab_size = 2_000_000
    config.save_pretrained(path.parent / "model")
    original = machine.find_machine
    monkeypatch.setattr(machine, "find_machine", lambda name: replace(original(name), memory_bytes=int(gib * 2**30)))
    options = PlanOptions(devices="1", device="a100-40gb", max_length=8)
    assert plan(path, options=options, json=True) == (EXIT_OK if recommends else EXIT_FAILED)
    result = json.loads(capsys.readouterr().out)
    first, *others = result["options"]
    assert (first["remedy"], first["fit"]) == (None, "tight" if recommends else "no")
    named = {option["remedy"]["name"]: option for option in others}
    assert list(named) == ["checkpointing", "offload", "16-bit weights", "LoRA", "LoRA on nf4"]
    assert [name for name, option in named.items() if not option["remedy"]["changes"]] == ["checkpointing", "offload"]
    fits = {option["remedy"]["name"] for option in others if option["fit"] == ("yes" if gib > 1 else "tight")}
    assert fits == ({"offload"} if recommends else set()) | {"LoRA", "LoRA on nf4"}
    if not recommends:
        assert (result["recommended"], result["start"]) == (None, None)
        assert "model.adapter={kind: lora}" in result["advice"][1]
        return
    assert result["options"][result["recommended"]] == named["offload"]
    trained = load_config(path, shlex.split(result["start"])[4::2]).config
    assert (trained.strategy.kind, trained.strategy.model_dump()["cpu_offload"]) == ("zero3", True)
    assert (trained.train.activation_checkpointing, trained.batch.micro_batch_size) == (1, 8)
    assert (trained.precision, trained.model.adapter) == ("bf16", None)
    # The command that the plan prints is planned as it was, and needs no remedy.
    assert (
        plan(path, options=replace(options, strategies="zero3"), set_=shlex.split(result["start"])[4::2], json=True)
        == 0
    )
    (again,) = json.loads(capsys.readouterr().out)["options"]
    assert again["memory"] == named["offload"]["memory"]


def test_the_amx_units_of_a_cpu_are_named(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paratune.planning.machine.describe_gpus", list)
    for flags, overrides, is_named in (
        (["avx2", "amx_bf16"], (), True),
        (["avx2", "avx512_bf16"], (), False),
        (["amx_bf16"], ("precision=bf16",), False),
    ):
        monkeypatch.setattr("paratune.planning.machine.hardware.cpu_flags", lambda flags=flags: flags)
        notes = planned(*overrides, devices="1", device=None, strategies="single")["notes"]
        assert any("--set precision=bf16" in note for note in notes) == is_named


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        ({"devices": "0"}, ("cli.invalid_value", "--devices", "0", "1,2,4,8")),
        ({"devices": "1,a"}, ("cli.invalid_value", "--devices", "1,a")),
        ({"devices": ""}, ("cli.invalid_value", "--devices", ": ")),
        ({"nodes": "0"}, ("cli.invalid_value", "--nodes", "0", "1,2,4,8")),
        ({"max_length": 0}, ("cli.invalid_value", "0", "1", "--max-length")),
        ({"rows": 5}, ("cli.invalid_value", "--rows", "--max-length")),
        ({"price": -1.0}, ("cli.invalid_value", "--price", "1.0")),
        ({"network": 0.0}, ("cli.invalid_value", "--network", "0.0")),
        ({"precision": "bf61"}, ("cli.invalid_value", "--precision", "bf61")),
        ({"precision": "fp16,bf-16"}, ("cli.invalid_value", "--precision", "bf-16", "bf16")),
        ({"device": "a100-40g"}, ("plan.unknown_device", "a100-40gb")),
        ({"strategies": "dpd"}, ("strategy.unknown", "--strategies", "dpd", "ddp")),
        ({"strategies": ","}, ("cli.required", "--strategies")),
        ({"max_length": 65}, ("data.max_length_unfit", "--max-length", "65", "64")),
    ],
)
def test_invalid_options_of_plan_are_refused(path: Path, wanted: dict[str, Any], refused: tuple[str, ...]) -> None:
    with raises_code(*refused):
        plan(path, options=PlanOptions(**({"device": "t4"} | wanted)), json=True)


def test_without_a_recommendation_the_exit_code_is_1(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    impossible = PlanOptions(strategies="ddp", devices="3", device="t4")
    for as_json in (True, False):
        assert plan(path, options=impossible, json=as_json) == EXIT_FAILED
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
    check_logged(caplog, "model.published_shape", "distilbert-base-uncased")
    with raises_code("model.cannot_load"):
        planned("model.name=someone/bert", **options)


def test_missing_data_suggests_max_length(path: Path) -> None:
    with raises_code("data.not_found", "nowhere.csv", "--max-length", "TOKENS"):
        plan(path, set_=["data.train=nowhere.csv"], options=PlanOptions(device="t4"), json=True)


NODE = {"gpus": [], "cpu_model": "EPYC", "num_usable_cores": 4.0, "ram_bytes": 8 * 2**30}
UNLISTED = {"name": "NVIDIA Foo 9000", "memory_bytes": 48 * 2**30}


@pytest.fixture
def measured_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the record of a run of `path` with one process on a node."""
    from make_run import make_run

    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def write(
        name: str, node: dict[str, Any] = NODE, config: dict[str, Any] | None = None, summary: Any = None
    ) -> Path:
        values = load_config(path).config.model_dump(mode="json", by_alias=True) | (config or {})
        changes = {
            "config": values,
            "hardware": [node],
            "num_threads": 1,
            "world_size": 1,
            "device": "cuda" if node["gpus"] else "cpu",
            "batch": {"global_batch_size": 8, "micro_batch_size": 8, "grad_accum_steps": 1},
        }
        return make_run(tmp_path / name, run_changes=changes, summary_changes=summary)

    return write


def test_a_run_on_a_cpu_gives_times_to_the_options_of_a_plan(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], measured_run: Callable[..., Path]
) -> None:
    run = measured_run("a")
    measured_s = step_ms(read_record(run, "a")) / 1000
    options = PlanOptions(devices="1,2", strategies="single,ddp")
    assert plan(path, options=options, measured=(run, run), json=True) == EXIT_OK
    result = json.loads(capsys.readouterr().out)
    assert result["machine"]["name"] == "EPYC"
    single, ddp = (option for option in result["options"] if (option["strategy"], option["num_ranks"]) != ("ddp", 1))
    low, high = single["step_s"][1:]
    assert low < measured_s < high
    assert 0 < ddp["step_s"][1] < ddp["step_s"][2]
    assert plan(path, options=options, measured=(run,), all_=True) == EXIT_OK
    assert f"Measured: {measured_s:.3g} s a step by" in " ".join(capsys.readouterr().out.split())
    with raises_code("plan.measured", "t4", "EPYC"):
        plan(path, options=replace(options, device="t4"), measured=(run,))
    with raises_code("run.not_found"):
        plan(path, options=options, measured=(tmp_path,))


def test_a_run_on_an_unlisted_gpu_gives_times_to_the_options_of_a_plan(
    path: Path, capsys: pytest.CaptureFixture[str], measured_run: Callable[..., Path]
) -> None:
    run = measured_run("a", NODE | {"gpus": [UNLISTED]})
    measured_s = step_ms(read_record(run, "a")) / 1000
    options = PlanOptions(devices="1,2", strategies="single,ddp")
    assert plan(path, options=options, measured=(run,), json=True) == EXIT_OK
    result = json.loads(capsys.readouterr().out)
    assert result["machine"] == {"name": UNLISTED["name"], "memory_bytes": 48 * 2**30, "price_per_hour": None}
    single, ddp = (option for option in result["options"] if (option["strategy"], option["num_ranks"]) != ("ddp", 1))
    assert single["step_s"][1] < measured_s < single["step_s"][2]
    assert single["step_s"][0] == pytest.approx(measured_s, rel=0.1)
    assert ddp["step_s"] is not None
    steps = []
    for network in (None, 1.0):
        options = PlanOptions(devices="2", nodes="2", strategies="ddp", network=network)
        assert plan(path, options=options, measured=(run,), json=True) == EXIT_OK
        steps.append(json.loads(capsys.readouterr().out)["options"][0]["step_s"][0])
    assert steps[1] > steps[0]  # without a rate, 100 Gbit/s are assumed


def test_runs_on_two_cpus_are_refused(path: Path, measured_run: Callable[..., Path]) -> None:
    small = measured_run("small")
    for name, change in (("large", {"num_usable_cores": 8.0}), ("other", {"cpu_model": "Xeon"})):
        with raises_code("plan.measured", "EPYC (4 cores)"):
            plan(path, options=PlanOptions(devices="1"), measured=(small, measured_run(name, NODE | change)))


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"node": NODE | {"gpus": [{"name": "NVIDIA Foo 9000"}]}}, ("memory_bytes",)),
        ({"config": {"trainer": {"output_dir": "x"}}}, ("trainer",)),
        ({"config": {"model": {"name": "/nowhere/model"}}}, ("/nowhere/model",)),
        ({"summary": {"throughput": {}}}, ()),
    ],
)
def test_a_run_that_cannot_be_an_anchor_is_named(
    path: Path, measured_run: Callable[..., Path], changes: dict[str, Any], values: tuple[str, ...]
) -> None:
    run = measured_run("bad", **changes)
    with raises_code("plan.measured", str(run), *values, option="--measured", value=str(run)):
        plan(path, options=PlanOptions(devices="1"), measured=(run,))


def test_a_matrix_stands_for_its_finished_runs_with_measured_steps(
    planned: Planned, path: Path, measured_run: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / SWEEP_FILE).touch()
    matrix = tmp_path / "matrix"
    with raises_code("plan.measured", option="--measured", value=str(matrix)):
        plan(path, options=PlanOptions(devices="1"), measured=(matrix,))
    measured_run("matrix/runs/tfidf", summary={"throughput": {}, "phases": {}})
    (measured_run("matrix/runs/open") / "summary.json").unlink()
    with raises_code("plan.measured", option="--measured", value=str(matrix)):
        plan(path, options=PlanOptions(devices="1"), measured=(matrix,))
    measured_run("matrix/runs/ddp")
    (measured,) = planned(devices="1", device=None, strategies="single", measured=(matrix,))["measured"]
    assert "runs/ddp" in measured["measured"]


def test_a_cpu_has_memory_and_no_time_without_a_run(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paratune.planning.machine.describe_gpus", list)
    (single,) = planned(devices="1", device=None, strategies="single")["options"]
    assert single["step_s"] is None
    assert "--measured RUN" in single["why_no_time"]
    assert single["memory"]["total_bytes"] > 0

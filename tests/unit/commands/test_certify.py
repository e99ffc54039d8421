"""`paratune certify`: options that are refused at once, and the verdict."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raised import raises_code

from paratune.commands.certify import certify
from paratune.config.candidates import StrategyCandidate
from paratune.config.load import LoadedConfig
from paratune.config.sections import Config
from paratune.config.strategy_sections import DDPOptions
from paratune.errors import ConfigError
from paratune.records.certificate import TRAINED_TOLERANCES, Part
from paratune.verify import certify as certify_trial
from paratune.verify.certify import _trained_precision, show


@pytest.mark.parametrize(
    ("option", "arguments"), [("--nproc 0", (0, 4)), ("--steps 0", (2, 0)), ("--nproc 0, --steps -1", (0, -1))]
)
def test_counts_below_one_are_refused(option: str, arguments: tuple[int, int]):
    with raises_code("cli.invalid_value", option, "1"):
        certify(Path("c.yaml"), strategies="ddp", nproc=arguments[0], steps=arguments[1])


def test_certify_does_not_run_under_torchrun(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with raises_code("launch.started_twice"):
        certify(Path("c.yaml"), strategies="ddp", nproc=2, steps=4)


FOUND: dict[str, Any] = {
    "strategy": "zero3",
    "kind": "zero3",
    "options": {},
    "world_size": 2,
    "precision": "fp64",
    "status": "holds",
    "reason": None,
    "same_samples": True,
    "same_order": True,
    "same_weights": True,
    "gradient_difference": 1.25e-13,
    "loss_difference": 0.0,
}


def test_the_table_shows_the_differences(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    same = dict.fromkeys(("same_samples", "same_order", "same_weights"))
    cannot = {
        **FOUND,
        **same,
        "strategy": "[red]mine:Class",
        "status": "cannot run",
        "reason": "it has \x1b[31mno card",
    }
    trained = {"status": "holds", "gradient_difference": 3e-3}
    other = {**FOUND, "strategy": "x:Y", "status": "differs", "same_order": False, "gradient_difference": float("inf")}
    record = {
        "run": "imdb",
        "num_steps": 4,
        "global_batch_size": 32,
        "device": "cpu",
        "notes": ["dropout off"],
        "reference": {
            "precision": "fp64",
            "trained": {"status": "holds", "reason": None, "gradient_difference": 2.9e-3},
        },
        "tolerance": {"fp64": {"gradients": 1e-9, "losses": 1e-9}},
        "trained_tolerance": {"bf16": asdict(TRAINED_TOLERANCES["bf16"])},
        "strategies": [FOUND | {"trained": trained}, cannot, {**other, "reason": "a step takes other samples"}],
        "verdict": "differs",
    }
    show(record, Path("runs/imdb.certificate/certificate.json"))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "imdb: 4 steps of 32 samples on the CPU in fp64; dropout off." in lines
    assert "zero3 2 same same same 1.2e-13 0.0e+00 3.0e-03 holds" in lines
    assert "[red]mine:Class 2 - - - - - - cannot run" in lines
    assert "[red]mine:Class: cannot run: it has \\x1b[31mno card" in lines
    assert "x:Y 2 same differ same inf 0.0e+00 - differs" in lines
    assert "x:Y: differs: a step takes other samples" in lines
    assert "one process itself: 2.9e-03, holds." in " ".join(lines)
    assert lines[-1] == "verdict: differs runs/imdb.certificate/certificate.json"


@pytest.mark.parametrize(
    ("configured", "exact", "device", "trained"),
    [
        ("fp32", "fp64", "cpu", None),  # the same kernels
        ("bf16", "fp64", "cpu", "bf16"),
        ("fp64", "fp64", "cpu", None),
        ("fp32", "fp64", "cuda", "fp32"),  # attention has kernels of its own
        ("fp32", "fp32", "cuda", None),  # a GPU without fast fp64: the certificate is of fp32 itself
        ("tf32", "fp32", "cuda", "tf32"),
        ("fp16", "fp64", "cuda", "fp16"),
    ],
)
def test_the_training_precision_is_certified_if_it_differs(
    configured: str, exact: str, device: str, trained: str | None
):
    assert _trained_precision(configured, exact, device) == trained


@pytest.mark.parametrize(
    ("status", "exact", "trained", "in_trained", "worse"),
    [
        ("holds", "fp64", "bf16", "holds", "holds"),
        ("holds", "fp64", "bf16", "cannot run", "cannot run"),
        ("holds", "fp64", "bf16", "differs", "differs"),
        ("differs", "fp64", "bf16", "holds", "differs"),
        ("differs", "fp64", "bf16", "cannot run", "differs"),
        ("cannot run", None, "bf16", None, "cannot run"),
        ("holds", "fp64", None, None, "holds"),
        ("holds", "bf16", "bf16", None, "holds"),  # it can compute in nothing else
    ],
)
def test_a_strategy_also_runs_in_the_training_precision(
    status: Any,
    exact: str | None,
    trained: str | None,
    in_trained: str | None,
    worse: str,
    monkeypatch: pytest.MonkeyPatch,
):
    calls: list[str] = []
    strategy = SimpleNamespace(
        layout="", name="ddp", world_size=2, config=SimpleNamespace(strategy=DDPOptions(kind="ddp"))
    )

    def run(*_: Any, **__: Any) -> None:
        if status == "cannot run":
            raise ConfigError("it is too large", code="config.invalid_value")

    def noted(self: Any, entry: Any, folder: str) -> dict[str, Any]:
        calls.append(folder)
        reason = None if in_trained == "holds" else "it is too long"
        return {"precision": "bf16", "reason": reason, "gradient_difference": None, "status": in_trained}

    monkeypatch.setattr(certify_trial, "run_part", run)
    monkeypatch.setattr(certify_trial.certificate, "compare", lambda *_: {"precision": exact, "status": status})
    monkeypatch.setattr(certify_trial._Trial, "trained", noted)
    trial = certify_trial._Trial(None, None, 3, trained, Path("scratch"))  # type: ignore[arg-type]
    result = trial.finding(strategy, "part0")  # type: ignore[arg-type]
    assert calls == ["part0-trained"] * (in_trained is not None)
    assert result.status == worse
    assert ("in bf16: " in (result.reason or "")) == (in_trained in ("differs", "cannot run"))


def test_the_folder_of_the_certificate_must_not_be_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("imdb.yaml").write_text(
        "task: {kind: classification, labels: [a, b]}\ndata: {train: train.csv, columns: {text: t, label: l}}\n"
        "model: {name: m}\ntrain: {max_steps: 1, learning_rate: 0.1}\nbatch: {per_device: 1}\n"
    )
    folder = Path("runs/imdb.certificate")
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    with raises_code("output.foreign", "imdb"):
        certify(Path("imdb.yaml"), strategies="ddp")


@pytest.mark.parametrize("refused", [True, False])
def test_a_precision_without_device_support_gives_a_note(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    norms = {"difference": 0.0, "length": 0.1, "worst_tensor": 0.0, "worst_name": None}
    gradients = {"largest": 0.0, "tensor": None, "missing": [], "unexpected": [], **norms}
    part = Part("fp64", ((0,),), (0.5,), (1.0,), {"w": "11"}, gradients)

    def run(loaded: Any, entry: Any, steps: int, folder: Path, precision: Any = None, **_: Any) -> Part:
        if precision is not None and refused:
            raise ConfigError("fp16 is for GPUs", code="config.invalid_value")
        return part

    about = dict.fromkeys(("data", "model", "global_batch_size", "versions", "code", "hardware")) | {"device": "cpu"}
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "outcome.rank0000.json").write_text(json.dumps({"about": about}))
    monkeypatch.setattr(certify_trial, "run_part", run)
    config = Config.model_validate(
        {
            "task": {"kind": "classification", "labels": ["a", "b"]},
            "data": {"train": "x.csv"},
            "model": {"name": "m"},
            "precision": "fp16",
            "train": {"learning_rate": 1e-3, "epochs": 1},
            "batch": {"global": 4},
        }
    )
    values = config.model_dump(mode="json", by_alias=True)
    single = StrategyCandidate("single", config, values, 1)
    record = certify_trial.try_all(LoadedConfig(config, {}, values, Path("c.yaml")), single, [single], 3, tmp_path)
    if refused:
        assert any("fp16 is for GPUs" in note for note in record["notes"])
        assert (record["verdict"], record["trained_tolerance"], record["reference"]["trained"]) == ("holds", {}, None)
        assert record["strategies"][0]["trained"] is None
    else:
        # Of one process too: its gradients are 10% too long.
        assert (record["verdict"], set(record["trained_tolerance"])) == ("differs", {"fp16"})
        assert record["reference"]["trained"]["status"] == record["strategies"][0]["trained"]["status"] == "differs"

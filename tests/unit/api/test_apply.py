"""Each later command warns of a model that is not better than a constant answer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from explained import save_tiny
from raised import check_logged, raises_code

from paratune.api.apply import model_reading
from paratune.commands.compress import compress, quantize
from paratune.commands.explain import explain, feedback
from paratune.commands.infer import evaluate, predict
from paratune.commands.serve import serve
from paratune.config.sections import AS_FOUND, FileReading
from paratune.errors import ConfigError
from paratune.infer.trained import NamedColumns, load_trained
from paratune.records.constant import CONSTANT
from paratune.records.own import TASK_FILE

WORSE = {"predicts": "training mean", "split": "test", "metric": "rmse", "model": 1.25, "constant": 1.125}
"""Values that binary fractions hold exactly."""


def record(folder: Path, comparison: dict[str, Any] | None) -> Path:
    """Write a comparison beside a model."""
    known = json.loads((folder / TASK_FILE).read_text())
    (folder / TASK_FILE).write_text(json.dumps(known | {CONSTANT: comparison}))
    return folder


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    places = ("api.evaluate", "api.predict", *(f"commands.{name}" for name in
              ("explain", "compress", "serve")))  # fmt: skip
    for place in places:
        monkeypatch.setattr(f"paratune.{place}.set_up_process", lambda: None)
    (tmp_path / "x.csv").write_text("text,label\ngood film,1\nbad film,2\n")
    return save_tiny(tmp_path / "model", "regression").folder


def stopped_serve(model: Path, data: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(host: str, port: int) -> None:
        raise ConfigError("no socket in this test", code="serve.port")

    monkeypatch.setattr("paratune.serving.server.open_socket", stop)
    with raises_code("serve.port"):
        serve(str(model))


def refused(command: Callable[..., int], code: str) -> Callable[..., None]:
    """Return a call that the command refuses after its warning: the model is not a run."""

    def call(model: Path, data: str, out: Path, _: Any) -> None:
        with raises_code(code):
            command(model) if command is compress else command(str(model), input=data, out=out, device="cpu")

    return call


COMMANDS: dict[str, Callable[[Path, str, Path, pytest.MonkeyPatch], object]] = {
    "evaluate": lambda model, data, *_: evaluate(str(model), data=data, device="cpu"),
    "predict": lambda model, data, out, _: predict(str(model), input=data, out=out, device="cpu"),
    "explain": lambda model, data, *_: explain(str(model), input=data, rows="0", method=("occlusion",), device="cpu"),
    "feedback": refused(feedback, "run.not_found"),
    "quantize": lambda model, data, out, _: quantize(str(model), to="bf16", out=out.with_suffix(""), data=data),
    "compress": refused(compress, "run.not_found"),
    "serve": stopped_serve,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_is_not_better_is_noted_once(
    command: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    record(model, WORSE)
    COMMANDS[command](model, str(tmp_path / "x.csv"), tmp_path / "out.csv", monkeypatch)
    check_logged(caplog, "model.not_better", model, "1.2500", "1.1250")
    assert [found.code for found in caplog.records if getattr(found, "code", "") == "model.not_better"] == [
        "model.not_better"
    ]


@pytest.mark.parametrize("comparison", [None, WORSE | {"model": 1.0}])
def test_a_better_model_or_an_unknown_one_is_not_noted(
    comparison: dict[str, Any] | None, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    record(model, comparison)
    evaluate(str(model), data=str(tmp_path / "x.csv"), device="cpu")
    assert [found for found in caplog.records if getattr(found, "code", "") == "model.not_better"] == []


def test_a_smaller_form_keeps_the_comparison(model: Path, tmp_path: Path):
    record(model, WORSE)
    quantize(str(model), to="bf16", out=tmp_path / "small", data=str(tmp_path / "x.csv"))
    smaller = load_trained(str(tmp_path / "small"), NamedColumns(), "cpu")
    assert smaller.not_better is not None
    assert smaller.not_better.model_dump() == WORSE


def test_further_files_are_read_as_those_of_the_training(tmp_path: Path):
    assert model_reading("owner/name") == AS_FOUND
    record = {"encoding": "cp1252", "separator": ";", "quote": None, "header": False, "hub_revision": None}
    for folder in (tmp_path, tmp_path / "run" / "model"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TASK_FILE).write_text(json.dumps({"reading": record}))
    (tmp_path / "run" / "run.json").write_text("{}")
    expected = FileReading("cp1252", ";", header=False)
    assert model_reading(str(tmp_path)) == expected == model_reading(str(tmp_path / "run"))
    (tmp_path / TASK_FILE).write_text(json.dumps({"reading": {"header": "maybe"}}))
    with raises_code("run.damaged", TASK_FILE):
        model_reading(str(tmp_path))

"""`paratune.train` and the other functions in one long-lived process, as in a notebook."""

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Cli
from raised import raises_code
from tiny import VOCABULARY, tiny_tokenizer
from transformers import AutoTokenizer, NystromformerConfig, NystromformerForSequenceClassification

import paratune
from paratune.errors import ConfigError, DataError, Stopped
from paratune.records import SUMMARY_FILE, read_events

SHORT = {"train.epochs": None, "train.max_steps": 4}


@pytest.fixture
def here(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world)
    monkeypatch.setenv("PARATUNE_CACHE", str(world / "cache"))
    return world


def _state() -> dict[str, Any]:
    logger = logging.getLogger("paratune")
    return {
        "signals": [signal.getsignal(number) for number in signal.valid_signals() if number not in (9, 19)],
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "log": (logger.handlers[:], logger.level, logger.propagate),
        "threads": torch.get_num_threads(),
        "random": torch.get_rng_state().tolist(),
        "group": torch.distributed.is_initialized(),
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.slow
def test_train_twice_evaluate_and_predict(here: Path, cli: Cli, capfd: pytest.CaptureFixture[str]):
    torch.manual_seed(5)
    before = _state()
    runs = [paratune.train("c.yaml", SHORT, run_name=name) for name in ("first", "second")]
    assert _state() == before
    assert runs[0].scores == runs[1].scores
    assert capfd.readouterr().out == ""
    printed = cli("train", "c.yaml", "--json", "--set", "train.epochs=", "--set", "train.max_steps=4").json
    assert runs[0].scores == printed["scores"]

    run = paratune.Run("runs/first")
    steps = run.events()
    assert steps["step"].to_pylist() == [1, 2, 3, 4]
    assert run.table().loc["first", "num_steps"] == 4
    with raises_code("cli.invalid_value", "stpe"):
        run.events("stpe")

    result = paratune.evaluate(run, "data.csv", by=["label"])
    printed = cli("evaluate", "runs/first", "--data", "data.csv", "--by", "label", "--json").json
    assert [fault["code"] for fault in printed.pop("warnings")] == ["model.not_better", "data.trained_on"]
    assert result.values == printed
    assert set(result.slices) == {"label"}
    rows = paratune.predict(run, "data.csv")
    texts = rows["text"].to_pylist()[:7]
    assert paratune.predict(run, texts)["prediction"].to_pylist() == rows["prediction"].to_pylist()[:7]
    assert _state() == before

    inputs = AutoTokenizer.from_pretrained(run.folder / "model")(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        shares = run.load_model()(**inputs).logits.softmax(-1)[:, 1]
    np.testing.assert_allclose(shares.numpy(), rows["score_positive"].to_numpy()[:7], rtol=1e-4)
    assert set(run.predictions("validation").column_names) >= {"index", "label", "prediction"}
    with raises_code("run.damaged", "test"):
        run.predictions()


def test_an_error_has_its_code_and_changes_nothing(here: Path):
    before = _state()
    (here / "data.csv").write_text("id,text,label\n1,good,negative\n")
    with pytest.raises(DataError):
        paratune.train("c.yaml", SHORT)
    assert _state() == before
    with raises_code("cli.conflict"):
        paratune.train("c.yaml", resume=True, overwrite=True)
    with raises_code("cli.invalid_value"):
        paratune.train("c.yaml", nproc=0)


def test_a_model_whose_code_fails_for_the_rows_has_a_code(here: Path):
    # The attention of Nystromformer takes only lengths that are a multiple of `num_landmarks`.
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = NystromformerConfig(
        **size, vocab_size=len(VOCABULARY), num_landmarks=16, segment_means_seq_len=64, max_position_embeddings=64
    )
    NystromformerForSequenceClassification(config).save_pretrained(here / "other")
    tiny_tokenizer(here / "other")
    with raises_code("model.unsupported", key="model.name", file="modeling_nystromformer.py"):
        paratune.train("c.yaml", {**SHORT, "model.name": "other"})
    failures = [event["code"] for event in read_events(here / "runs" / "c") if event["event"] == "failure"]
    assert failures == ["model.unsupported"]


def test_an_interrupt_saves_a_checkpoint_to_resume_from(here: Path):
    before = _state()

    def interrupt() -> None:
        while not list((here / "runs").glob("c/checkpoints/step_*")):
            stop.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    stop = threading.Event()
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(Stopped) as caught:
        paratune.train("c.yaml", {"train.epochs": 50})
    watcher.join()
    assert caught.value.code == "stopped.signal"
    assert _state() == before
    assert not (here / "runs" / "c" / SUMMARY_FILE).exists()
    assert "not finished" in paratune.Run("runs/c")._repr_html_()
    with raises_code("run.not_finished"):
        _ = paratune.Run("runs/c").summary


def test_a_run_is_shown_with_its_text_escaped(here: Path):
    run = paratune.train("c.yaml", SHORT, run_name="a-b")
    assert repr(run) == "Run('runs/a-b')"
    assert (
        "<script>"
        not in paratune.EvaluationResult(
            {"model": "<script>", "data": "d", "num_samples": 1, "scores": {}}, "regression"
        )._repr_html_()
    )
    assert "validation accuracy" in run._repr_html_()


@pytest.mark.slow
def test_two_processes_train_the_same_and_raise_the_same_errors(here: Path):
    one = paratune.train("c.yaml", SHORT, run_name="one")
    two = paratune.train("c.yaml", {**SHORT, "strategy": "ddp"}, run_name="two", nproc=2)
    assert two.summary["world_size"] == 2
    losses = [run.events()["loss"].to_numpy() for run in (one, two)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)  # their dropout differs
    with raises_code("run.exists"):
        paratune.train("c.yaml", {**SHORT, "strategy": "ddp"}, run_name="two", nproc=2)
    with pytest.raises(ConfigError, match="single runs in 1 process"):
        paratune.train("c.yaml", SHORT, run_name="three", nproc=2)


@pytest.mark.slow
def test_a_sweep_trains_resumes_and_reports_as_the_command(here: Path, cli: Cli):
    matrix = "name: m\nbase: {extends: c.yaml, train: {epochs: null, max_steps: 4}}\naxes: {run.seed: [1, 2]}\n"
    (here / "m.yaml").write_text(matrix)
    before = _state()
    first = paratune.sweep("m.yaml", only=["seed=1"])
    assert not first.is_finished
    whole = paratune.sweep("m.yaml")
    assert whole.is_finished
    assert _state() == before
    times = [cell.attempts for cell in (first.cells[0], whole.cells[0])]
    assert len(times[0]) == len(times[1]) == 1  # the first run was kept
    printed = cli("sweep", "m.yaml", "--json").json
    assert whole.table()["validation_accuracy"].to_dict() == {
        run["name"]: run["scores"]["validation"]["accuracy"] for run in printed["runs"]
    }
    assert (whole.folder / "report" / "index.html").is_file()

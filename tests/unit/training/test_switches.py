"""PyTorch's switches while a run takes its steps, in training and in certificates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model

from paratune.config.load import load_config
from paratune.engine import loop
from paratune.engine.stop import StopRequest
from paratune.processes.place import Place
from paratune.training import certify
from paratune.training.run import train

CONFIG = """\
task: {kind: classification, labels: ["yes", "no"]}
data: {train: data.csv, columns: {text: text, label: label}}
model: {name: model}
train: {max_steps: 1}
batch: {global: 4}
run: {name: run}
evaluate: {every: never}
checkpoint: {every: never}
measure: {plan: false, sample_every_s: null}
device: cpu
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    tiny_model(tmp_path / "model")
    rows = [f"{word} film,{label}" for word in ("good", "fine") for label in ("yes", "no")]
    Path("data.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    Path("c.yaml").write_text(CONFIG)
    return Path("c.yaml")


def watched(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[bool]:
    """Note before each step whether cuDNN's attention is on."""
    seen: list[bool] = []
    real = module._step

    def step(*given: Any) -> Any:
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return real(*given)

    monkeypatch.setattr(module, "_step", step)
    return seen


def test_attention_of_cudnn_is_off_while_a_run_trains(config: Path, monkeypatch: pytest.MonkeyPatch):
    seen = watched(monkeypatch, loop)
    train(load_config(config), stop=StopRequest())
    assert seen == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_attention_of_cudnn_is_off_while_a_certificate_trains(config: Path, monkeypatch: pytest.MonkeyPatch):
    seen = watched(monkeypatch, certify)
    Path("out").mkdir()
    values = load_config(config).values
    job = certify.CertificateJob("single", values, "c.yaml", num_steps=1, exact=True, folder="out", reference=None)
    certify.train_job(job, Place(0, 0, 1), StopRequest())
    assert seen == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled()

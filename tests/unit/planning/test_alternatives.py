"""Ways that the configuration does not ask for: named only where they fit and save something."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paratune.commands.plan import PlanArguments, plan

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "single.yaml"
Advice = Callable[..., str]


@pytest.fixture
def advice(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Advice:
    monkeypatch.setattr("paratune.commands.plan.set_up_logging", lambda **_: None)

    def run(*overrides: str, **wanted: Any) -> str:
        overrides = ("model.name=bert-base-uncased", *overrides)
        arguments = PlanArguments(**{"max_length": 128, "rows": 10_000, "strategies": "ddp", "devices": "1"} | wanted)
        plan(CONFIG, set_=overrides, wanted=arguments, json=True)
        return "\n".join(json.loads(capsys.readouterr().out)["advice"])

    return run


def test_lower_precisions_of_the_device_are_named(advice: Advice) -> None:
    text = advice(device="a100-40gb")
    assert "precision: tf32" in text
    assert "precision: bf16" in text
    older = advice(device="v100-32gb")  # has neither
    assert "precision: tf32" not in older
    assert "precision: bf16" not in older
    assert "precision: bf16" not in advice("precision=fp16", device="a100-40gb")
    assert "precision: bf16" not in advice(device="a100-40gb", precision="fp32")  # it was named


def test_change_that_fits_is_named_when_nothing_fits(advice: Advice, tmp_path: Path) -> None:
    small = tmp_path / "small.yaml"
    small.write_text("device: t4\nmemory_gib: 6\n")
    options = {"device": str(small), "max_length": 512}
    text = advice("batch.global=32", "batch.micro_batch_size=32", "precision=fp16", **options)
    assert "train.activation_checkpointing: 1 it fits: ddp on 1 device" in text
    assert "it fits" not in advice("batch.global=32", "batch.micro_batch_size=1", "precision=fp16", **options)

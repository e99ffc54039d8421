"""`paratune.plan`: the plan of the command, as a value."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code
from tiny import tiny_config, tiny_tokenizer

import paratune
from paratune.api.plan_options import PlanOptions
from paratune.commands import plan as command
from paratune.config.plain import yaml_lines


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    tiny_tokenizer(tmp_path / "model")
    tiny_config().save_pretrained(tmp_path / "model")  # and no weights
    return {
        "task": {"kind": "classification", "labels": ["neg", "pos"]},
        "data": {"train": "absent.csv", "columns": {"text": "text", "label": "label"}},
        "model": {"name": str(tmp_path / "model")},
        "train": {"epochs": 3},
        "batch": {"global": 8},
        "run": {"name": "c"},
    }


def test_the_plan_of_a_mapping_is_that_of_the_command(
    values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = logging.getLogger("paratune").handlers[:]
    result = paratune.plan(
        values,
        {"train.epochs": 2},
        devices=[1, 2],
        device="a100-40gb",
        strategies=["single", "zero3"],
        max_length=8,
        rows=80,
        price=1.5,
    )
    assert logging.getLogger("paratune").handlers == handlers
    assert capsys.readouterr().out == ""

    path = tmp_path / "configuration"
    path.write_text("\n".join(yaml_lines(values, lambda key: "")))
    monkeypatch.setattr(command, "set_up_logging", lambda **_: None)
    options = PlanOptions(
        devices="1,2",
        device="a100-40gb",
        strategies="single,zero3",
        max_length=8,
        rows=80,
        price=1.5,
    )
    command.plan(path, set_=["train.epochs=2"], options=options, json=True)
    printed = json.loads(capsys.readouterr().out)
    table = result.table()
    assert printed.pop("start").startswith("paratune train")
    assert json.loads(json.dumps(result.as_dict() | {"config": str(path)})) == printed

    assert list(zip(table["strategy"], table["num_ranks"], strict=True)) == [("single", 1), ("zero3", 1), ("zero3", 2)]
    assert table["step_s"].to_list() == [option["step_s"] for option in printed["options"]]
    assert table["memory.total_bytes"].to_list() == [option["memory"]["total_bytes"] for option in printed["options"]]
    assert result.fits is True
    assert "zero3" in result._repr_html_()


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"devices": 0}, ("cli.invalid_value", "--devices", "0")),
        ({"devices": 2.5}, ("cli.invalid_value", "--devices", "2.5")),
        ({"nodes": [1.5]}, ("cli.invalid_value", "--nodes", "1.5")),
        ({"precision": ["bf61"]}, ("cli.invalid_value", "--precision", "bf61")),
        ({"rows": 5}, ("cli.invalid_value", "--rows", "--max-length")),
        ({"measured": ["."]}, ("run.not_found",)),
        ({"strategies": []}, ("cli.required", "--strategies")),
    ],
)
def test_invalid_options_have_the_codes_of_the_command(
    values: dict[str, Any], options: dict[str, Any], refused: tuple[str, ...]
) -> None:
    with raises_code(*refused):
        paratune.plan(values, **options)


def test_a_rate_between_nodes_needs_a_listed_device(values: dict[str, Any]) -> None:
    with raises_code("cli.no_effect", "--network 100", "--device"):
        paratune.plan(values, {"device": "cpu"}, network=100, max_length=8)


def test_the_rate_between_nodes_narrows_the_times_of_options_on_several(values: dict[str, Any]) -> None:
    options = {"device": "a100-40gb", "devices": 16, "strategies": "ddp", "max_length": 8}
    (assumed,), (given,) = (
        paratune.plan(values, {"batch.global": 32}, network=rate, **options).predictions for rate in (None, 100)
    )
    # Without a rate: 10 to 800 Gbit/s; with one, 0.4 to 0.95 of it.
    assert given.time.total.low > assumed.time.total.low
    assert given.time.total.high < assumed.time.total.high

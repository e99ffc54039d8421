"""What `paratune certify` refuses at once, and what it says in the end."""

from pathlib import Path
from typing import Any

import pytest

from paratune.commands.certify import _show, certify_command
from paratune.errors import ConfigError, LaunchError


@pytest.mark.parametrize(
    ("option", "arguments"),
    [("--nproc 0", (0, 4)), ("--steps 0", (2, 0)), ("--nproc 0, --steps -1", (0, -1))],
)
def test_at_least_one_is_needed(option: str, arguments: tuple[int, int]):
    with pytest.raises(ConfigError, match=f"{option}: at least 1"):
        certify_command(
            Path("c.yaml"),
            [],
            strategies="ddp",
            num_processes=arguments[0],
            num_steps=arguments[1],
            as_json=False,
        )


def test_it_starts_its_processes_itself(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="leave out torchrun"):
        certify_command(Path("c.yaml"), [], strategies="ddp", num_processes=2, num_steps=4, as_json=False)


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


def test_it_says_what_differs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    cannot = {**FOUND, "strategy": "[red]mine:Class", "status": "cannot run", "reason": "it has \x1b[31mno card"}
    other = {**FOUND, "strategy": "x:Y", "status": "differs", "same_order": False, "gradient_difference": float("inf")}
    record = {
        "run": "imdb",
        "num_steps": 4,
        "global_batch_size": 32,
        "device": "cpu",
        "notes": ["dropout off"],
        "reference": {"precision": "fp64"},
        "tolerance": {"fp64": {"gradients": 1e-9, "losses": 1e-9}},
        "strategies": [FOUND, cannot, {**other, "reason": "a step takes other samples"}],
        "verdict": "differs",
    }
    _show(record, Path("runs/imdb.certificate/certificate.json"))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "imdb: 4 steps of 32 samples on the CPU in fp64; dropout off." in lines
    assert "zero3 2 same same same 1.2e-13 0.0e+00 holds" in lines
    assert "[red]mine:Class 2 - - - - - cannot run" in lines
    assert "[red]mine:Class: cannot run: it has \\x1b[31mno card" in lines
    assert "x:Y 2 same differ same inf 0.0e+00 differs" in lines
    assert "x:Y: differs: a step takes other samples" in lines
    assert lines[-1] == "verdict: differs runs/imdb.certificate/certificate.json"

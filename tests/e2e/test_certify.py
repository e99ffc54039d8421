"""`paratune certify` for real: strategies in processes of their own, beside one process."""

import json
from pathlib import Path

import pytest
from harness import Cli, python

from paratune.errors import EXIT_CONFIG, EXIT_DIFFERS, EXIT_OK
from paratune.records import read_json

CERTIFY = ("-m", "paratune", "certify", "c.yaml", "--steps", "3")


@pytest.mark.slow
def test_strategies_that_hold_and_one_that_does_not(world: Path, cli: Cli):
    assert cli("train", "c.yaml", "--set", "train.epochs=1").code == EXIT_OK
    before = {path: path.read_bytes() for path in (world / "runs" / "c").rglob("*") if path.is_file()}

    strategies = "zero3,outside:Averages,hsdp:2,pipeline:2"
    done = python(*CERTIFY, "--strategies", strategies, "--json", cwd=world)

    assert done.code == EXIT_DIFFERS, done.stderr
    record = done.json
    assert record == json.loads((world / "runs" / "c.certificate" / "certificate.json").read_text())
    assert [path.name for path in (world / "runs" / "c.certificate").iterdir()] == ["certificate.json"]
    assert {path: path.read_bytes() for path in (world / "runs" / "c").rglob("*") if path.is_file()} == before

    assert record["verdict"] == "differs"
    run = read_json(world / "runs" / "c" / "run.json")
    assert record["model"]["init_fingerprint"] == run["model"]["init_fingerprint"]
    assert record["data"]["train"]["fingerprint"] == run["data"]["train"]["fingerprint"]
    zero3, averages, hsdp, pipeline = record["strategies"]
    for result in (zero3, pipeline):
        assert (result["status"], result["reason"], result["precision"]) == ("holds", None, "fp64")
        assert (result["same_samples"], result["same_order"], result["same_weights"]) == (True, True, True)
        assert result["gradient_difference"] < 1e-12
        assert result["loss_difference"] < 1e-12
    # Half the gradient is off by half, and by nothing else: AdamW does not see the length of a gradient.
    assert averages["status"] == "differs"
    assert averages["gradient_difference"] == pytest.approx(0.5)
    assert averages["norm_difference"] == pytest.approx(0.5, rel=1e-3)  # of later steps too, whose weights differ
    assert (averages["same_samples"], averages["same_weights"]) == (True, True)
    assert hsdp["status"] == "cannot run"
    assert "hsdp needs 4 processes or more, and 2 were started" in hsdp["reason"]


@pytest.mark.slow
def test_bf16_is_certified_in_training_precision(world: Path):
    options = ("--set", "precision=bf16", "--strategies", "zero3,outside:Longer", "--json")
    done = python(*CERTIFY, *options, cwd=world)

    assert done.code == EXIT_DIFFERS, done.stderr
    zero3, longer = done.json["strategies"]
    itself = done.json["reference"]["trained"]
    assert (zero3["status"], zero3["precision"], zero3["trained"]["precision"]) == ("holds", "fp64", "bf16")
    for trained in (itself, zero3["trained"]):
        # The unit roundoff of bf16 is 2^-8; a part of it is seen in every gradient, 16 times as much in none.
        assert 2**-11 < trained["gradient_difference"] < 2**-4
        assert trained["length_difference"] < 2**-6
    assert longer["trained"]["status"] == "differs"
    assert longer["trained"]["length_difference"] == pytest.approx(0.05, abs=2e-3)


@pytest.mark.slow
def test_a_strategy_that_breaks_is_a_row_and_not_a_crash(world: Path):
    done = python(*CERTIFY, "--strategies", "outside:DamagedDDP,nowhere:Mine", cwd=world)

    assert done.code == 1, done.stderr
    assert "outside:DamagedDDP: cannot run: ArithmeticError: row 17 is damaged" in done.stdout.replace("\n", " ")
    assert "nowhere:Mine: cannot run: strategy.kind: nowhere:Mine cannot be imported" in done.stdout.replace("\n", " ")
    assert "verdict: incomplete" in done.stdout


def test_certify_fails_if_the_reference_fails(world: Path):
    done = python(*CERTIFY, "--strategies", "ddp", "--set", "model.name=nowhere/at/all", cwd=world)

    assert done.code == EXIT_CONFIG
    assert done.stderr.count("error:") == 1
    assert "nowhere/at/all" in done.stderr
    assert not (world / "runs").exists()

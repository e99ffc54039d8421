"""`paratune certify` with real processes: strategies are compared with one process."""

import json
from pathlib import Path

import pytest
from harness import Cli, python

from paratune.errors import EXIT_CONFIG, EXIT_DIFFERS, EXIT_OK
from paratune.records import read_json

pytestmark = pytest.mark.slow  # each test starts several processes

CERTIFY = ("-m", "paratune", "certify", "c.yaml", "--steps", "3")


@pytest.mark.slow
def test_correct_strategies_pass_and_a_wrong_one_fails(world: Path, cli: Cli):
    assert cli("train", "c.yaml", "--set", "train.epochs=1").code == EXIT_OK
    before = {path: path.read_bytes() for path in (world / "runs" / "c").rglob("*") if path.is_file()}

    strategies = "zero3,outside:Averages,hsdp:2,pipeline:2"
    completed = python(*CERTIFY, "--strategies", strategies, "--layouts", "padded,packed", "--json", cwd=world)

    assert completed.code == EXIT_DIFFERS, completed.stderr
    record = completed.json
    assert record == json.loads((world / "runs" / "c.certificate" / "certificate.json").read_text())
    assert [path.name for path in (world / "runs" / "c.certificate").iterdir()] == ["certificate.json"]
    assert {path: path.read_bytes() for path in (world / "runs" / "c").rglob("*") if path.is_file()} == before

    assert record["verdict"] == "differs"
    run = read_json(world / "runs" / "c" / "run.json")
    assert record["model"]["init_fingerprint"] == run["model"]["init_fingerprint"]
    assert record["data"]["train"]["fingerprint"] == run["data"]["train"]["fingerprint"]
    zero3, averages, hsdp, pipeline, padded, packed = record["strategies"]
    assert "packed rows" in record["notes"]
    assert (packed["status"], packed["gradient_difference"]) == ("cannot run", None)  # as the reference
    assert (padded["strategy"], padded["world_size"]) == ("single, padded", 1)
    assert padded["gradient_difference"] > 0  # other sums than those of packed rows
    for result in (zero3, pipeline, padded):
        assert (result["status"], result["reason"], result["precision"]) == ("holds", None, "fp64")
        assert (result["same_samples"], result["same_order"], result["same_weights"]) == (True, True, True)
        assert result["gradient_difference"] < 1e-12
        assert result["loss_difference"] < 1e-12
    # Halved gradients differ by half, and nothing else differs: AdamW does not depend on the length of a gradient.
    assert averages["status"] == "differs"
    assert averages["gradient_difference"] == pytest.approx(0.5)
    assert averages["norm_difference"] == pytest.approx(0.5, rel=1e-3)  # also in later steps, whose weights differ
    assert (averages["same_samples"], averages["same_weights"]) == (True, True)
    assert hsdp["status"] == "cannot run"
    assert "hsdp needs 4 processes or more, and the run has 2" in hsdp["reason"]


@pytest.mark.slow
def test_bf16_is_certified_in_training_precision(world: Path):
    options = ("--set", "precision=bf16", "--strategies", "zero3,outside:Longer", "--json")
    completed = python(*CERTIFY, *options, cwd=world)

    assert completed.code == EXIT_DIFFERS, completed.stderr
    zero3, longer = completed.json["strategies"]
    itself = completed.json["reference"]["trained"]
    assert (zero3["status"], zero3["precision"], zero3["trained"]["precision"]) == ("holds", "fp64", "bf16")
    for trained in (itself, zero3["trained"]):
        # The unit roundoff of bf16 is 2^-8; every gradient differs by a part of it, none by 16 times as much.
        assert 2**-11 < trained["gradient_difference"] < 2**-4
        assert trained["length_difference"] < 2**-6
    assert longer["trained"]["status"] == "differs"
    assert longer["trained"]["length_difference"] == pytest.approx(0.05, abs=2e-3)


@pytest.mark.slow
def test_a_strategy_that_raises_is_a_row_of_the_result(world: Path):
    completed = python(*CERTIFY, "--strategies", "outside:DamagedDDP,nowhere:Mine", cwd=world)

    assert completed.code == 1, completed.stderr
    assert "outside:DamagedDDP: cannot run: ArithmeticError: row 17 is damaged" in completed.stdout.replace("\n", " ")
    assert "nowhere:Mine: cannot run: strategy.kind: nowhere:Mine cannot be imported" in completed.stdout.replace(
        "\n", " "
    )
    assert "verdict: incomplete" in completed.stdout


def test_certify_fails_if_the_reference_fails(world: Path):
    completed = python(*CERTIFY, "--strategies", "ddp", "--set", "model.name=nowhere/at/all", cwd=world)

    assert completed.code == EXIT_CONFIG
    assert completed.stderr.count("error:") == 1
    assert "nowhere/at/all" in completed.stderr
    assert not (world / "runs").exists()

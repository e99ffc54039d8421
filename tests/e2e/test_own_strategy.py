"""The commands train, certify, report and examine a strategy from outside the package."""

from pathlib import Path

import pytest
from harness import Cli, python
from own_strategy import KIND, write_module

from paratune.errors import EXIT_OK
from paratune.records import read_json

pytestmark = pytest.mark.slow
OWN = ("--set", f"strategy={{kind: '{KIND}', options: {{pieces: 2}}}}")


def test_an_outside_strategy_gets_the_same_features(world: Path, cli: Cli):
    folder = write_module(world / "own")
    environment = {"PYTHONPATH": str(folder)}

    def run(*arguments: str):
        return python("-m", "paratune", *arguments, cwd=world, environment=environment)

    trained = run("train", "c.yaml", "--nproc", "2", *OWN, "--set", "train.max_steps=4", "--set", "train.epochs=null")
    assert trained.code == EXIT_OK, trained.stderr
    record = read_json(world / "runs" / "c" / "run.json")
    assert (record["strategy"]["kind"], record["world_size"]) == (KIND, 2)
    assert record["strategy"]["traits"]["phases"]["backward"].endswith("all-reduce of all gradients")

    reported = run("report", "runs/c", "--out", "report")
    assert reported.code == EXIT_OK, reported.stderr
    assert KIND in (world / "report" / "index.html").read_text(encoding="utf-8")

    certified = run("certify", "c.yaml", "--strategies", KIND, "--steps", "2", "--json")
    assert certified.code == EXIT_OK, certified.stderr
    (finding,) = certified.json["strategies"]
    assert (finding["kind"], finding["status"], finding["world_size"]) == (KIND, "holds", 2)

    examined = run("doctor", "c.yaml", "--json", "--nproc", "2", *OWN)
    findings = {finding["code"]: finding for finding in examined.json["findings"]}
    assert "check" not in findings
    assert findings["own_code"]["fact"].count(KIND) == 1
    assert "world_size" not in findings

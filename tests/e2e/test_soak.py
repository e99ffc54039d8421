"""Two minutes of `make soak` with a new seed, which is printed: kills and inputs differ in each run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"
MINUTES = 1.0


@pytest.mark.slow
def test_a_minute_of_soak_shows_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = [sys.executable, str(SOAK), "--minutes", str(MINUTES), "--folder", str(tmp_path / "soak")]
    completed = subprocess.run(
        [*command, "--json", str(tmp_path / "soak.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=120 * MINUTES + PATIENCE_S,
    )
    record = json.loads((tmp_path / "soak.json").read_text()) if completed.returncode in (0, 1) else None
    with capsys.disabled():
        sys.stdout.write(f"\nsoak: seed {record and record['seed']}; repeat: make soak SEED=N MINUTES={MINUTES:g}\n")
    assert completed.returncode == 0, completed.stdout[-8000:]
    assert sum(count["trials"] for count in record["counts"]) >= 1

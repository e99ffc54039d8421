"""`benchmarks/guard.py`: all parts run although one fails, what counts as a failure, the ratio of speed."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))

import guard  # noqa: E402
from guard_parts import speed_ratio  # noqa: E402


def part(name: str, code: str, **options: object) -> guard.Part:
    return guard.Part(name, [sys.executable, "-S", "-c", code], **options)


def test_parts_after_a_failed_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lanes = [
        [part("a", "print('x'); print('three'); raise SystemExit(3)"), part("b", "print('1'); print('last')")],
        [part("c", "", problem="no file"), part("d", "", absent="no data")],
    ]
    results = {result.name: result for result in guard.run_lanes(lanes, tmp_path)}
    states = {name: result.state for name, result in results.items()}
    assert states == {"a": guard.FAILED, "b": guard.PASSED, "c": guard.FAILED, "d": guard.SKIPPED}
    assert results["a"].note.startswith("exit code 3: three")
    assert results["b"].note == "last"
    assert (tmp_path / "a.txt").read_text() == "x\nthree\n"
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_cpu_time_is_that_of_a_part_and_its_children(tmp_path: Path):
    spin = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {spin!r}])"
    assert guard.run_part(part("a", child), tmp_path).cpu_s >= 0.3


def test_a_part_that_takes_too_long_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "LIMIT_S", 0.5)
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])"
    assert guard.run_part(part("a", child), tmp_path).state == guard.FAILED


@pytest.mark.parametrize(("code", "expected"), [("", 0), ("raise SystemExit(2)", 1)])
def test_exit_code_of_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str, expected: int
):
    lanes = [[part("a", code)], [part("b", "")], [part("c", "", absent="no data")]]
    monkeypatch.setattr(guard, "make_lanes", lambda seed, out: lanes)
    monkeypatch.setattr(sys, "argv", ["guard.py", "--seed", "7", "--out", str(tmp_path)])
    assert guard.main() == expected
    assert capsys.readouterr().out.startswith("seed 7\n")


def test_the_table_of_code_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "ROOT", tmp_path)
    monkeypatch.setattr(guard, "TESTS", tmp_path / "tests")
    absent = guard._code_table()
    assert absent.problem is not None
    assert guard.run_part(absent, tmp_path).state == guard.FAILED
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / guard.CODE_TABLE).touch()
    found = guard._code_table()
    assert found.problem is None
    assert found.command[-1] == f"tests/unit/{guard.CODE_TABLE}"


def test_without_data_sets_the_ratio_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_SHARED_DATA", str(tmp_path))
    assert guard.data_folder() is None
    assert guard.run_part(guard._speed(None), tmp_path).state == guard.SKIPPED
    for name in ("imdb", "mrpc"):
        (tmp_path / name).mkdir()
    assert guard.data_folder() == tmp_path


def test_note_of_the_soak_counts_kills_and_findings(tmp_path: Path):
    counts = [{"kills": 3, "trials": 2, "findings": [{}]}, {"kills": 58, "trials": 30, "findings": []}]
    (tmp_path / "soak.json").write_text(json.dumps({"counts": counts}))
    note = guard._soak_note(tmp_path / "soak.json", "")
    assert note.split()[:4] == ["61", "kills", "in", "32"]
    assert note.endswith("1 findings")


def test_ratio_of_speed_is_trainers_cost_of_a_row_over_ours():
    rows = [
        {"case": case, "side": side, "cpu_s": cpu_s, "num_samples": num_samples}
        for case, side, cpu_s, num_samples in (
            ("imdb", "paratune", 10.0, 50),  # 0.2 s per row
            ("imdb", "grouped", 24.0, 60),  # 0.4
            ("mrpc", "paratune", 4.0, 100),  # 0.04
            ("mrpc", "grouped", 3.0, 100),  # 0.03
        )
    ]
    assert speed_ratio.ratios(rows) == pytest.approx({"imdb": 2.0, "mrpc": 0.75})

import json
import os
import subprocess
import sys

import pytest
from make_matrix import Made, make_matrix
from make_run import edit_json, make_run
from patience import PATIENCE_S

from paratune.cli import app
from paratune.records.sweep import Axis


def make_runs(folder, *, steps=(("single", 80.0), ("ddp", 60.0)), seeds=(1, 2, 3), **changes):
    made = []
    for kind, step_ms in steps:
        for seed in seeds:
            rate = 32_000 / (step_ms + 0.3 * seed)
            summary = {"throughput.samples_per_s": rate}
            path, world_size = folder / f"{kind}_seed{seed}", 4 if kind == "wide" else 1
            run = make_run(
                path,
                kind="ddp" if kind == "wide" else kind,
                world_size=world_size,
                seed=seed,
                step_ms=step_ms,
                summary_changes=summary,
                run_changes=dict(changes),
            )
            made.append(run)
    return [str(path) for path in made]


def compare(*words):
    return app(["compare", *words], result_action="return_value")


def command(*words, width=80):
    environment = {**os.environ, "COLUMNS": str(width), "HF_HUB_OFFLINE": "1"}
    run = [sys.executable, "-m", "paratune", "compare", *words]
    return subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)


def test_the_verdict_comes_first_and_fits_80_columns(tmp_path):
    result = command(*make_runs(tmp_path))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    # Ratios of 80.3 / 60.3, 80.6 / 60.6 and 80.9 / 60.9; the interval is that of scipy.stats.ttest_ind of their
    # logarithms without equal variances.
    assert lines[0].startswith("ddp against single: 33.0% faster (31.6–34.4%), quality equal within 0.5 points")
    assert max(map(len, lines)) <= 80


def test_json_holds_all_numbers(tmp_path, capsys):
    assert compare(*make_runs(tmp_path), "--json", "--margin", "accuracy=0.02") == 0
    result = json.loads(capsys.readouterr().out)
    (verdict,) = result["verdicts"]
    assert (verdict["baseline"], verdict["label"]) == ("single", "ddp")
    assert verdict["speed"]["outcome"] == "different"
    assert verdict["quality"][0]["margin"] == 0.02
    assert result["figures"]["step_median_ms"]["ddp"]["change"] == pytest.approx(-0.25, abs=0.01)
    assert [run["seed"] for run in result["configurations"][0]["runs"]] == [1, 2, 3]


def test_several_configurations_and_a_baseline(tmp_path, capsys):
    words = make_runs(tmp_path, steps=(("single", 80.0), ("ddp", 60.0), ("wide", 61.0)))
    assert compare(*words, "--baseline", "ddp") == 0
    output = capsys.readouterr().out
    assert "Against ddp:" in output
    assert "single: " in output
    assert "wide: " in output


def test_one_seed_explains_the_missing_interval(tmp_path, capsys):
    assert compare(*make_runs(tmp_path, seeds=(1,))) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "interval n/a (one run each)" in output
    assert "how far another run would be from it is not known" in output


def test_different_experiments_have_no_verdict(tmp_path, capsys):
    first = make_runs(tmp_path / "a", steps=(("single", 80.0),))
    second = make_runs(tmp_path / "b", steps=(("ddp", 60.0),), **{"data.train.fingerprint": "other"})
    assert compare(*first, *second) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "no verdict: not the same experiment; they differ in the training data (fingerprint)" in output
    assert "%" not in output
    assert compare(*first, *second, "--allow", "data") == 0
    assert "which is what is compared" in " ".join(capsys.readouterr().out.split())


def test_other_tasks_are_not_compared(tmp_path, capsys):
    first = make_runs(tmp_path / "a", steps=(("single", 80.0),), seeds=(1, 2))
    second = [str(make_run(tmp_path / "b" / f"r{seed}", task="regression", seed=seed)) for seed in (1, 2)]
    assert compare(*first, *second) == 1
    assert "the task and its labels" in " ".join(capsys.readouterr().out.split())
    assert compare(*first, *second, "--allow", "task,model,data,steps,train,kept") == 0
    assert "quality n/a (no score that all of these runs have)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "paratune compare needs runs"),
        (["{0}/single_seed1", "{0}/nowhere"], 4, "nowhere does not exist"),
        (["{0}/single*"], 4, "nothing to compare with: 3 runs of one configuration"),
        (["{0}/single*", "{0}/ddp*", "--margin", "f1"], 2, "the margin of f1 is a number above 0"),
        (["{0}/single*", "{0}/ddp*", "--allow", "everything"], 2, "--allow everything: the names are batch"),
        (["{0}/single*", "{0}/ddp*", "--by", "strategy"], 2, "--by strategy: only a matrix has axes"),
        (["{0}/single*", "{0}/ddp*", "--baseline", "x"], 2, "--baseline x: "),
    ],
)
def test_bad_input_gives_a_one_line_error(tmp_path, words, code, message):
    make_runs(tmp_path)
    result = command(*(word.format(tmp_path) for word in words))
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_another_schema_version_is_refused(tmp_path):
    words = make_runs(tmp_path)
    edit_json(tmp_path / "ddp_seed1" / "run.json", schema_version=9)
    result = command(*words)
    assert (result.returncode, "schema_version 9" in result.stderr) == (4, True)


def test_unfinished_runs_are_named(tmp_path, capsys):
    words = make_runs(tmp_path)
    words.append(str(make_run(tmp_path / "ddp_seed9", kind="ddp", seed=9, finished=False)))
    assert compare(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Unfinished: 1 of 7 runs") for line in lines)
    assert any(line.startswith("ddp_seed9: ") for line in lines)


def test_control_characters_in_names_are_escaped(tmp_path):
    words = make_runs(tmp_path)
    for seed in (1, 2, 3):
        words.append(str(make_run(tmp_path / f"\x1b[31m[bold]x\u202e_seed{seed}", kind="ddp", world_size=4, seed=seed)))
    result = command(*words)
    assert result.returncode == 0, result.stderr
    assert "\\x1b[31m[bold]x\\u202e" in result.stdout
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout


def test_each_configuration_has_a_verdict_below_the_conclusions(tmp_path):
    words = []
    for number in range(6):
        changes = {"config.strategy.bucket_cap_mb": number}
        words += make_runs(tmp_path / f"with{number}", steps=(("ddp", 60.0 + number),), **changes)
    result = command(*words)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("✓ Fastest at equal quality: with0/ddp.")
    assert max(map(len, lines)) <= 80
    starts = [line for line in lines[lines.index("Against with0/ddp:") :] if line.startswith("with")]
    assert starts[0].startswith("with1/ddp: 1.6% slower (")
    assert len(starts) == 5


def test_a_matrix_of_two_axes_has_main_effects(tmp_path, capsys):
    seeds = Axis("run.seed", "seed", {f"seed-{n}": str(n) for n in (1, 2, 3)}, is_seed=True, keys=("run.seed",))
    strategy = Axis("strategy", "strategy", {"ddp": "ddp", "zero3": "zero3"}, keys=("strategy.kind",))
    precision = Axis("precision", "precision", {"fp32": "fp32", "bf16": "bf16"}, keys=("precision",))

    def measure(values):
        number = int(values["seed"][-1]) + 3 * (values["strategy"] == "zero3") + 5 * (values["precision"] == "bf16")
        faster = 2.0 if values["precision"] == "bf16" else 1.0
        step_ms = 80.0 / faster * (1 + 0.001 * (number * 7 % 5))
        return Made(kind=values["strategy"], step_ms=step_ms, run={"config.precision": values["precision"]})

    folder = make_matrix(tmp_path / "m", (strategy, precision, seeds), measure)
    assert compare(str(folder), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    speeds = {
        (effect["axis"], effect["level"]): effect
        for effect in result["effects"]
        if effect["comparison"]["measure"] == "speed"
    }
    assert speeds.keys() == {("strategy", "zero3"), ("precision", "bf16")}
    assert speeds["precision", "bf16"]["comparison"]["change"] == pytest.approx(1.0, abs=0.01)
    assert speeds["precision", "bf16"]["num_combinations"] == 2
    assert speeds["strategy", "zero3"]["comparison"]["outcome"] == "equal"
    found = command(str(folder), width=200).stdout
    assert "precision bf16 against precision fp32" in found
    assert compare(str(folder), "--by", "strategy", "--json") == 0
    assert json.loads(capsys.readouterr().out)["effects"] == []

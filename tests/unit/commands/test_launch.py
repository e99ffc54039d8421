"""`paratune launch` and `jobs` with stand-ins for Slurm's commands."""

import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from raised import check_shown, raises_code

from paratune.commands.jobs import jobs
from paratune.commands.launch import launch as run_launch
from paratune.commands.sweep import sweep
from paratune.errors import EXIT_DATA, LaunchError

CONFIG = """\
task: {kind: classification, labels: [a, b]}
data: {train: data.csv, columns: {text: text, label: label}, split: {validation: 0.5}}
model: {name: model}
train: {epochs: 1}
batch: {global: 16}
strategy: ddp
"""
MATRIX = "base: c.yaml\naxes: {run.seed: [1, 2], nproc: [1, 4]}\n"
Launch = Callable[..., int]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a configuration, a matrix, a site and a Slurm whose jobs are numbered from 1."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    Path("m.yaml").write_text(MATRIX)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("site.yaml").write_text("gpus_per_node: 2\n")
    Path("bin").mkdir()
    for name, text in (
        ("sbatch", 'echo "$@" >> words; wc -l < words | tr -d " "'),
        ("squeue", "cat queue 2>/dev/null; true"),
        (
            "scontrol",
            '[ "$4" != 99 ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }\n'
            'echo "JobId=$4 JobState=$(cat state 2>/dev/null)"',
        ),
    ):
        (Path("bin") / name).write_text(f"#!/bin/bash\n{text}\n")
        (Path("bin") / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


@pytest.fixture
def launch(here: Path) -> Launch:
    def run(config: str = "c.yaml", *overrides: str, **changed: Any) -> int:
        return run_launch(Path(config), **{"site": Path("site.yaml"), "set_": overrides, **changed})

    return run


def test_a_dry_run_prints_the_script_and_writes_nothing(launch: Launch, here: Path, capsys: Any):
    before = sorted(here.rglob("*"))
    assert launch(dry_run=True, nodes=2) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("#!/bin/bash\n# Run c: 2 nodes, 2 processes on each.\n")
    assert "#SBATCH --gres=gpu:2" in shown.out
    assert sorted(here.rglob("*")) == before


def test_the_run_folder_contains_the_submitted_files(launch: Launch, here: Path, capsys: Any):
    assert launch("c.yaml", "train.learning_rate=1e-3", json=True, after=["7"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["job"] == "1"
    folder = here / "runs" / "c" / "slurm"
    assert "learning_rate: 0.001" in (folder / "config.yaml").read_text()
    assert "paratune train" in (folder / "job.sh").read_text()
    assert (here / "words").read_text() == (
        f"--parsable --dependency=afterok:7 --kill-on-invalid-dep=yes {folder / 'job.sh'}\n"
    )
    jobs(json=True)
    assert json.loads(capsys.readouterr().out)[0]["states"] == {"n/a": 1}


def test_missing_data_gives_a_warning(launch: Launch, capsys: Any):
    assert launch("c.yaml", "data.train=/scratch/gone.csv", dry_run=True) == 0
    check_shown(capsys.readouterr().err, "data.not_on_nodes", "data.train: /scratch/gone.csv")


def test_a_second_job_of_a_run_needs_after(launch: Launch, here: Path):
    launch()
    (here / "queue").write_text("1|1|PENDING|0:00||Priority\n")
    with raises_code("slurm.already_queued", "1 of", "--after"):
        launch()
    assert launch(after=["1"]) == 0
    (here / "queue").unlink()
    assert launch() == 0


def test_the_second_of_two_simultaneous_launches_is_refused(launch: Launch, here: Path):
    slow = '#!/bin/bash\nsleep 0.5; echo "1|1|PENDING|0:00||Priority" > queue; echo "$@" >> words; echo 1\n'
    (here / "bin" / "sbatch").write_text(slow)

    def one(_: int) -> str:
        try:
            return str(launch())
        except LaunchError as error:
            return str(error)

    with ThreadPoolExecutor(2) as both:
        output = sorted(both.map(one, range(2)))
    assert output[0] == "0"
    assert output[1].startswith("job 1 of this run is in the queue")
    assert len((here / "words").read_text().splitlines()) == 1


def test_a_second_array_of_a_matrix_gives_a_warning(launch: Launch, here: Path, capsys: Any):
    launch("m.yaml", array=True, only=["nproc=1"])
    assert "in the queue" not in capsys.readouterr().err
    (here / "queue").write_text("1_0|1|PENDING|0:00||Priority\n1_1|1|PENDING|0:00||Priority\n")
    launch("m.yaml", array=True, only=["nproc=1"])
    check_shown(capsys.readouterr().err, "slurm.runs_queued", "1")


def test_after_with_an_unknown_job_is_refused(launch: Launch, here: Path):
    with raises_code("slurm.unknown_job", "--after", "99"):
        launch(after=["7", "99"])
    assert not (here / "words").exists()


def test_the_number_of_processes_is_checked_before_anything_is_queued(launch: Launch, here: Path):
    with raises_code("batch.uneven_share", "batch"):
        launch("c.yaml", "batch.global=15")
    with raises_code("strategy.too_many_ranks", "1", "2"):
        launch("c.yaml", "strategy=single")
    with raises_code("device.conflict", "device: cpu", "2", "GPU", "--gpus-per-node"):
        launch("c.yaml", "device=cpu")
    assert not (here / "words").exists()


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"nodes": 0}, ("cli.invalid_value", "--nodes 0", "1")),
        ({"gpus_per_node": -1}, ("cli.invalid_value", "--gpus-per-node -1", "0")),
        ({"array": True, "max_at_once": 0}, ("cli.invalid_value", "--max-at-once 0")),
        ({"max_at_once": 2}, ("cli.required", "--array")),
        ({"only": ["nproc=1"]}, ("cli.required", "--array")),
        ({"after": ["1;reboot"]}, ("cli.invalid_value", "--after 1;reboot")),
    ],
)
def test_contradicting_options_of_launch_are_refused(changed: dict[str, Any], refused: tuple[str, ...], launch: Launch):
    with raises_code(*refused):
        launch(**changed)


def test_a_matrix_needs_array_and_is_one_for_each_number_of_processes(launch: Launch, here: Path, capsys: Any):
    with raises_code("cli.no_effect", "c.yaml", "--array"):
        launch("c.yaml", array=True)
    with raises_code("cli.required", "m.yaml", "--array"):
        launch("m.yaml")
    assert launch("m.yaml", array=True, json=True, max_at_once=3) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(entry["name"], entry["num_nodes"], entry["num_processes"], entry["num_runs"]) for entry in result] == [
        ("m-1", 1, 1, 2),
        ("m-4", 2, 4, 2),
    ]
    one, four = ((here / "runs" / "m" / "slurm" / f"m-{count}.sh").read_text() for count in (1, 4))
    assert "#SBATCH --array=0-1%3" in one
    assert "#SBATCH --gres=gpu:1" in one
    assert "#SBATCH --gres=gpu:2" in four
    assert "#SBATCH --nodes=2" in four
    assert len(list((here / "runs" / "m" / "configs").iterdir())) == 4


def dependencies(here: Path) -> list[str]:
    """Return the dependency of each submission; empty without one."""
    words = [line.split() for line in (here / "words").read_text().splitlines()]
    return ["".join(word for word in line if word.startswith("--dependency")) for line in words]


def test_arrays_with_one_limit_of_jobs_follow_each_other(launch: Launch, here: Path):
    assert launch("m.yaml", array=True, max_at_once=2, after=["7", "8"]) == 0
    assert dependencies(here) == ["--dependency=afterok:7:8", "--dependency=afterok:7:8,afterany:1"]
    # Slurm knows the second array as pending; a second submission of the matrix waits for it.
    (here / "queue").write_text("2_0|2|PENDING|0:00||Dependency\n2_1|2|PENDING|0:00||Dependency\n")
    assert launch("m.yaml", array=True, max_at_once=2) == 0
    assert dependencies(here)[2:] == ["--dependency=afterany:2", "--dependency=afterany:3"]


def test_arrays_without_a_limit_do_not_wait(launch: Launch, here: Path):
    assert launch("m.yaml", array=True) == 0
    assert dependencies(here) == ["", ""]


def test_a_job_without_progress_is_shown_with_its_code(launch: Launch, here: Path, capsys: Any):
    assert launch(json=True) == 0
    (folder,) = (here / "runs").glob("*/slurm")
    (folder / "1.exit").write_text("5 no progress\n")
    capsys.readouterr()
    jobs(json=True)
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["states"], listed["exit_code"], listed["is_over"]) == ({"no progress": 1}, 5, True)
    jobs()
    shown = capsys.readouterr()
    assert "no progress" in shown.out
    check_shown(shown.err, "slurm.no_progress", "1")


def test_a_run_on_incomplete_nodes_is_refused(launch: Launch, here: Path):
    Path("m.yaml").write_text("base: c.yaml\naxes: {run.seed: [1, 2]}\nnproc: 3\n")
    Path("c.yaml").write_text(CONFIG.replace("16", "12"))
    with raises_code("site.too_small", "3", "2"):
        launch("m.yaml", array=True)


def test_nodes_of_the_matrix_divide_the_processes(launch: Launch, here: Path, capsys: Any):
    # Two nodes with 1 and 2 processes each, and one node with 2.
    axes = "{way: {one: {nproc: 2, nodes: 1}, two: {nproc: 2, nodes: 2}, four: {nproc: 4, nodes: 2}}}"
    Path("m.yaml").write_text(f"base: c.yaml\naxes: {axes}\n")
    assert launch("m.yaml", array=True, json=True) == 0
    jobs = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert {name: (job["num_nodes"], job["num_processes"]) for name, job in jobs.items()} == {
        "m-2-nodes-1": (1, 2), "m-2-nodes-2": (2, 2), "m-4-nodes-2": (2, 4)
    }  # fmt: skip
    scripts = {name: (here / "runs" / "m" / "slurm" / f"{name}.sh").read_text() for name in jobs}
    assert "#SBATCH --gres=gpu:2" in scripts["m-2-nodes-1"]
    assert "#SBATCH --gres=gpu:1" in scripts["m-2-nodes-2"]
    assert "#SBATCH --nodes=2" in scripts["m-4-nodes-2"]
    with raises_code("cli.conflict", "nodes: 1", option="--nodes", value=2):
        launch("m.yaml", array=True, nodes=2)


def test_nodes_of_the_command_line_and_of_the_site_divide_the_processes_of_a_matrix(
    launch: Launch, here: Path, capsys: Any
):
    Path("m.yaml").write_text("base: c.yaml\naxes: {nproc: [2, 4]}\n")
    assert launch("m.yaml", array=True, json=True, nodes=2) == 0
    assert [job["num_nodes"] for job in json.loads(capsys.readouterr().out)] == [2, 2]
    Path("site.yaml").write_text("nodes: 2\ngpus_per_node: 2\n")
    assert launch("m.yaml", array=True, json=True) == 0
    assert [job["num_nodes"] for job in json.loads(capsys.readouterr().out)] == [2, 2]
    Path("m.yaml").write_text("base: c.yaml\naxes: {nproc: [1, 4]}\n")
    with raises_code("site.too_small", name="nproc-1", num_processes=1, num_nodes=2, limit=2):
        launch("m.yaml", array=True, dry_run=True)


def test_wait_returns_the_exit_code_and_prints_the_last_lines(launch: Launch, here: Path, capsys: Any):
    folder = here / "runs" / "c" / "slurm"
    folder.mkdir(parents=True)
    (folder / "1.exit").write_text(f"{EXIT_DATA}\n")
    os.utime(folder / "1.exit", (time.time() + 3600,) * 2)  # older than the job, it would be of an earlier job
    (folder / "1.node0.txt").write_text("error: data.csv line 7: \x1b[31mno label\n")
    assert launch(wait=True) == EXIT_DATA
    output = capsys.readouterr().err
    assert "job 1 c: ended with 3" in output
    assert "line 7: \\x1b[31mno label" in output


def test_a_finished_run_is_not_submitted(launch: Launch, here: Path, capsys: Any):
    folder = here / "runs" / "c"
    folder.mkdir(parents=True)
    for name in ("summary.json", "run.json"):
        (folder / name).write_text('{"config": {}, "batch": {"global_batch_size": 16}, "data": {}}')
    with raises_code("run.other_configuration"):
        launch()
    (folder / "run.json").unlink()
    assert launch() == 0
    assert "already finished: nothing was submitted" in capsys.readouterr().err


def test_jobs_are_shown_as_a_table(launch: Launch, here: Path, capsys: Any):
    jobs()
    assert "no submitted jobs here" in capsys.readouterr().err
    launch()
    (here / "queue").write_text("1|1|PENDING|0:00||Priority\n")
    jobs()
    assert "pending (Priority)" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("rest", "skipped", "excluded"),
    [
        ("axes: {nproc: [1, 2, 4], strategy: [single, ddp]}", [["nproc-4_single"], ["nproc-2_single"]], ""),
        ("axes: {nproc: [1, 3]}", [["nproc-3"]], ""),
        ("axes: {nproc: [1, 3], run.seed: [1, 2]}\nrepeats: 2", [["nproc-3_seed-1", "nproc-3_seed-2"]], ""),
        ("axes: {nproc: [1, 4], run.seed: [1, 2]}\nexclude: [{nproc: 4, seed: 2}]", [], "1 of 4"),
        ("axes: {nproc: [1, 2], strategy: [single, ddp]}\nexclude: [{nproc: 2}]", [], "2 of 4"),
    ],
    ids=["strategy", "accumulation", "repeats", "excluded", "only-excluded"],
)
def test_combinations_that_are_left_out_are_listed_as_by_sweep(
    launch: Launch, monkeypatch: Any, capsys: Any, rest: str, skipped: list[list[str]], excluded: str
):
    Path("m.yaml").write_text(f"base: c.yaml\n{rest}\n")

    monkeypatch.setenv("COLUMNS", "1000")  # no line is wrapped

    def lines(text: str) -> list[str]:
        return re.findall("((?:skipped|excluded): .*)", text)

    assert sweep(Path("m.yaml"), dry_run=True) == 0
    by_sweep = lines(capsys.readouterr().out)
    assert launch("m.yaml", array=True, dry_run=True) == 0
    by_launch = lines(capsys.readouterr().err)
    assert sweep(Path("m.yaml"), list_=True) == 0
    assert by_sweep == by_launch == lines(capsys.readouterr().err)
    assert len(by_launch) == len(skipped) + bool(excluded)
    for names in skipped:
        assert any(all(name in line for name in names) for line in by_launch)
    assert not excluded or f"excluded: {excluded} combinations, by exclude:" in by_launch


def test_a_dry_run_without_a_site_is_for_the_plain_site(launch: Launch, capsys: Any):
    plain = ROOT / "configs/sites/plain.yaml"
    for more in ({}, {"array": True, "config": "m.yaml"}, {"nodes": 2, "gpus_per_node": 1}, {"json": True}):
        assert launch(dry_run=True, site=plain, **more) == 0
        given = capsys.readouterr()
        assert launch(dry_run=True, site=None, **more) == 0
        without = capsys.readouterr()
        assert without.out == given.out
        assert ("--site" in without.err, "--site" in given.err) == (True, False)


def test_only_a_dry_run_needs_no_site(launch: Launch, here: Path):
    with raises_code("cli.required", option="--site"):
        launch(site=None)
    assert not (here / "words").exists()

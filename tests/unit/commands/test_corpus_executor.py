"""The settings that datatrove's executors get, and options that are refused before a task starts."""

import subprocess

import pytest
from raised import raises_code

from paratune.commands import corpus_executor
from paratune.commands.corpus import corpus
from paratune.commands.corpus_executor import executor_spread
from paratune.commands.corpus_run import build_corpus
from paratune.errors import EXIT_LAUNCH, MissingDependency

SITE = "partition: a\ntime: '10'\n"
GIVEN = {"executor": "slurm", "tasks": 4, "workers": 1, "site": SITE, "memory_gib": None}


def site(folder, text):
    (folder / "site.yaml").write_text(text)
    return folder / "site.yaml"


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"tasks": 0}, ("cli.invalid_value", "--tasks", "0", "1")),
        ({"memory_gib": 0}, ("cli.invalid_value", "--task-gib", "0", "1")),
        ({"site": "time: '10'\n"}, ("site.invalid_value", "partition", "time")),
        ({"site": "partition: a\n"}, ("site.invalid_value", "partition", "time")),
        ({"site": "partition: a\ntime: '10'\ncontainer: {image: x.sif}\n"}, ("site.invalid_value", "--site")),
        ({"tasks": 1002}, ("cli.invalid_value", "1001 of")),
        ({"site": None}, ("cli.required", "--executor", "--site")),
        ({"executor": "ray"}, ("cli.required", "--executor", "--site")),
        ({"executor": "local", "site": None, "memory_gib": 4}, ("cli.no_effect", "--task-gib")),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changed, refused):
    given = {**GIVEN, **changed}
    if given["site"] is not None:
        given["site"] = site(tmp_path, given["site"])
    with raises_code(*refused):
        executor_spread(tmp_path, **given)


def test_a_missing_ray_is_named_with_its_extra(tmp_path, monkeypatch):
    def absent(module, *, extra):
        if module == "ray":
            raise MissingDependency(f"{module} of {extra}", code="dependency.missing")

    monkeypatch.setattr(corpus_executor, "require_installed", absent)
    with raises_code("dependency.missing"):
        executor_spread(tmp_path, **{**GIVEN, "executor": "ray", "site": None})


def test_the_site_file_becomes_slurm_options(tmp_path):
    text = """\
partition: [short, long]
time: "30"
account: work-1
qos: low
venv: $HOME/venv
modules: [gcc]
setup: ['echo "$USER"']
environment: {A: b c}
sbatch: ["--exclude=n1,n2", --nice=100]
"""
    (received,) = executor_spread(tmp_path, **{**GIVEN, "site": site(tmp_path, text), "memory_gib": 3}).args[-1].args
    lines = [line for line in received.pop("env_command").splitlines() if line and not line.startswith("#")]
    assert lines == [
        corpus_executor.NOT_READY,
        'echo "$USER"',
        "module load gcc || not_ready gcc",
        '. "$HOME/venv/bin/activate" || not_ready "$HOME/venv/bin/activate"',
        "export A='b c'",
        "export OMP_NUM_THREADS=1",
    ]
    assert received == {
        "time": "30",
        "partition": "short,long",
        "qos": "low",
        "cpus_per_task": 1,
        "mem_per_cpu_gb": 3,
        "sbatch_args": {"kill-on-invalid-dep": "yes", "account": "work-1", "exclude": "n1,n2", "nice": "100"},
    }


def test_a_task_fails_if_a_module_cannot_be_loaded():
    lines = [corpus_executor.NOT_READY, "module() { return 1; }", "module load gcc || not_ready gcc", "echo on"]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (EXIT_LAUNCH, "")
    assert done.stderr == "gcc cannot be loaded: the task was not started\n"


def test_a_site_that_does_not_fit_is_refused_before_the_first_stage(tmp_path):
    (tmp_path / "x.cdx").touch()
    (tmp_path / "c.yaml").write_text(f"work: {tmp_path}/work\nindex: {{files: [{tmp_path}/x.cdx]}}\n")
    chosen = {"executor": "slurm", "tasks": 2, "site": site(tmp_path, "partition: a\n"), "memory_gib": None}
    with raises_code("site.invalid_value", "partition", "time"):
        build_corpus(tmp_path / "c.yaml", only=None, workers=None, as_json=False, **chosen)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("given", [{"tasks": 2}, {"executor": "ray"}, {"site": "x.yaml"}, {"task_gib": 2}])
def test_the_options_of_a_cluster_go_together(tmp_path, given):
    with raises_code("cli.required", "--executor", "--tasks"):
        corpus(tmp_path / "c.yaml", **given)


def test_tasks_are_at_least_1(tmp_path):
    (tmp_path / "x.cdx").touch()
    (tmp_path / "c.yaml").write_text(f"work: {tmp_path}/work\nindex: {{files: [{tmp_path}/x.cdx]}}\n")
    with raises_code("cli.invalid_value", "--tasks", "0"):
        corpus(tmp_path / "c.yaml", executor="local", tasks=0)

"""Lets every test import the helpers in this folder (`from tiny import tiny_model`), and hides GPUs."""

import os
import signal
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import hypothesis
import pytest

# Before torch is imported: the test models are so small that threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests are written for CPUs: with one visible GPU, `device: auto` would select it, and two processes would be an error.
# `make test-gpu` runs the tests that need a GPU.
if os.environ.get("PARATUNE_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is slow; this must not fail a test.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory) -> None:
    """Keep the key with which records are signed out of the state folder of whoever runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def any_code(monkeypatch) -> None:
    """Allow all code, as a command does for the configuration of the user; for tests of what a command calls."""
    monkeypatch.setattr("paratune.config.permission.is_allowed", lambda name, options=None: True)


@pytest.fixture
def default_sighup() -> Iterator[None]:
    """Give SIGHUP its default action in a test that sends it: under nohup, child processes would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


KEPT: dict[str, tuple[str, ...]] = {
    "test_a_signal_saves_and_resuming_is_the_same_run": ("SIGTERM in a step", "SIGINT within*", "*in a checkpoint"),
    "test_a_killed_run_resumes_from_its_last_complete_checkpoint": ("in a step", "before the rename of a checkpoint"),
    "test_signals_and_kills_at_random_moments": ("0",),
    "test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used": ("a flipped bit", "truncated manifest"),
    "test_a_matrix_of_a_study_runs_on_a_laptop_and_creates_its_tables_and_figures": ("*then", "*prompts_out", "squad*"),
    "test_a_study_runs_on_a_laptop": ("evora/smoke", "ielts/smoke_criteria", "ielts/smoke_raters", "squad/smoke"),
    "test_a_resumed_run_equals_an_uninterrupted_one": ("zero1-auto", "pipeline-true", "zero3-true"),
    "test_the_strategy_does_not_change_the_result": ("zero3", "pipeline"),
    "test_a_full_disk_for_the_record": ("4", "20"),
    "test_a_command_that_prints_ends_well": (">&-", "<&- >&- 2>&-"),
    "test_other_commands_end_well": ("words0",),
    "test_these_commands_never_import_code": ("*-metric", "*-class", "*-loss", "*-files"),
    "e2e/test_hangs.py": ("*missing_rank*", "test_a_stopped_rank_0*", "*slow_healthy*", "*exits_is_named*"),
    "e2e/test_elastic.py": ("*restarts_after_a_lost_rank*", "*stopped_run*", "*remaining_nodes*"),
    "e2e/test_out_of_memory.py": ("*one_process*", "*several_processes*", "*shared_probe*", "*auto_finds*"),
    "e2e/test_ranks.py": ("*one_rank_ends*", "*killed_on_one_node*", "*documentation*"),
    "e2e/test_workers.py": ("*another_number_of_workers*", "*killed_worker*"),
    "e2e/test_processes.py": (
        "*of_one",
        "*torchrun_gives*",
        "*stops_all_ranks_at_one*",
        "*killed_rank*",
        "*all_ranks_is*",
    ),
    "e2e/test_certify.py": ("*a_wrong_one_fails",),
    "test_a_command_that_checks_a_configuration_imports_no_code": ("*-head", "*-metric", "*-loss", "*-files"),
    "test_code_that_an_edited_model_names_is_refused": ("*-head", "*-class", "*-beside"),
    "test_all_ranks_call_the_same_collectives_and_train_like_one_process": ("*x8",),
    "test_a_rehearsal_of_all_parts_on_a_cpu": (),
    "slurm/test_cluster.py": (
        "*preempted*",
        "*array*",
        "*one_and_two*",
        "*node_is_lost*",
        "*stays_out*",
        "*failed_run*",
    ),
    "two_processes/test_plan_peaks.py": (),
    "two_processes/test_plan_states.py": (),
    "two_processes/test_noise_scale.py": (),
}
"""Function, or file -> its cases, or functions, that `make test-slow test-slurm BRIEF=1` runs, the form of continuous
integration, which has an hour. The others are variations of these, marked `thorough`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            function, case = item.originalname, item.name.partition("[")[2].removesuffix("]")
            file = item.path.relative_to(Path(__file__).parent).as_posix()
            for key, name in ((function, case), (file, function)):
                if key in KEPT and not any(fnmatch(name, kept) for kept in KEPT[key]):
                    item.add_marker(pytest.mark.thorough)

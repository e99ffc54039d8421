"""Folders of Hugging Face's Trainer that have no record of paratune, as runs: what their files have, the rest unknown.

Read are trainer_state.json, all_results.json, the results of each split, and the config.json of the model. Settings,
data, seed and processes are only in training_args.bin, a pickle, which is never read.
"""

from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Final

from paratune.base.text import plain
from paratune.base.units import format_count
from paratune.errors import CheckpointError
from paratune.records import RUN_FILE, read_json
from paratune.records.finished import RunRecord, number_in
from paratune.records.typed import RunFile, Summary, checked

STATE_FILE: Final = "trainer_state.json"
_REMEDY: Final = "copy the folder again, or leave it out"
_SPLITS: Final = {"eval": "validation", "predict": "test"}
_SPEED: Final = (
    *("runtime", "samples_per_second", "steps_per_second", "jit_compilation_time", "model_preparation_time"),
    "samples",
)
"""Names in the results of an evaluation that are no scores."""


def split_scores(metrics: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float], float]]:
    """Yield split, scores and seconds of each evaluation in metrics of a Trainer, such as `eval_loss`, `eval_runtime`.

    The split is validation for the prefix `eval` and test for `predict`; otherwise the prefix without `eval_`.
    """
    prefixes = [key.removesuffix("runtime") for key in metrics if key.endswith("_runtime")]
    for prefix in prefixes:
        longer = tuple(other for other in prefixes if other != prefix and other.startswith(prefix))
        own = {key: value for key, value in metrics.items() if key.startswith(prefix) and not key.startswith(longer)}
        values = {key.removeprefix(prefix): value for key, value in own.items()}
        scores = {key: float(value) for key, value in values.items() if key not in _SPEED and isinstance(value, Real)}
        yield _SPLITS.get(prefix[:-1], prefix[:-1].removeprefix("eval_")), scores, float(values["runtime"])


def state_file(folder: Path) -> Path | None:
    """Return the trainer_state.json of a folder, or of its last checkpoint; None for other folders and for runs."""
    if (folder / RUN_FILE).exists():
        return None
    steps = {path: path.parent.name.rpartition("-")[2] for path in folder.glob(f"checkpoint-*/{STATE_FILE}")}
    of_checkpoints = sorted((path for path in steps if steps[path].isdigit()), key=lambda path: int(steps[path]))
    return next((path for path in (folder / STATE_FILE, *reversed(of_checkpoints)) if path.is_file()), None)


def read_trainer_folder(folder: Path) -> tuple[RunRecord, str, str | None]:
    """Return the run of a folder that `state_file` knows, what its files say in words, and why it is not finished.

    Raises:
        CheckpointError: A file is damaged.
    """
    path = state_file(folder)
    assert path is not None, folder
    objects: list[dict[str, Any]] = []
    names = (f"{name}_results.json" for name in ("all", "train", "eval", "predict"))
    for place in (path, folder / "config.json", *(folder / name for name in names)):
        value = read_json(place, _REMEDY) if place.is_file() else {}
        if not isinstance(value, dict):
            text = f"{plain(place)} is damaged: it contains a {type(value).__name__}; {_REMEDY}"
            raise CheckpointError(text, code="run.damaged", path=place)
        objects.append(value)
    # Results of a split replace those of the training's log: they are of the model that is kept.
    state, model, *results = objects
    history, architectures = state.get("log_history") or [], model.get("architectures")
    metrics: dict[str, Any] = {}
    try:
        if not isinstance(history, list):
            raise TypeError(f"log_history is a {type(history).__name__}")
        log = [entry for entry in history if isinstance(entry, dict)]
        for entry in (*log, *results):
            metrics |= entry
        found = {split: own for split, own, _ in split_scores(metrics) if split != "train"}
    except (OverflowError, TypeError, ValueError) as error:
        text = f"{plain(path)} is damaged: {plain(str(error))[:80]}; {_REMEDY}"
        raise CheckpointError(text, code="run.damaged", path=path) from error
    # A loss that is NaN is unknown. The scores of answers to questions are per cent.
    scores = {split: {metric: number_in(value) for metric, value in own.items()} for split, own in found.items()}
    is_qa = any("exact_match" in own for own in scores.values())
    rates = [entry for entry in log if number_in(entry.get("learning_rate")) is not None and "step" in entry]
    rows = {"train": "train_samples", "validation": "eval_samples", "test": "predict_samples"}
    weights = [file.stat().st_size if file.is_file() else None for file in folder.glob("*.safetensors")]
    run = {
        "run_id": folder.resolve().name,
        "kind": "trainer_folder",
        "task": {"kind": "qa" if is_qa else None},
        # The peak is not logged: rates can be compared at a step that both runs have logged.
        "config": {"train": {f"learning_rate_at_step_{entry['step']}": entry["learning_rate"] for entry in rates[:1]}},
        "data": {split: {"num_rows": metrics[key]} for split, key in rows.items() if key in metrics},
        "model": {
            "name": model.get("_name_or_path") or folder.resolve().name,
            "architecture": architectures[0] if isinstance(architectures, list) and architectures else None,
            "size_bytes": None if None in weights else sum(filter(None, weights)) or None,
        },
    }
    steps, planned = state.get("global_step"), state.get("max_steps")
    is_finished = "train_runtime" in metrics or (steps is not None and steps == planned)
    summary = {"run_id": run["run_id"], "num_steps": steps, "scores": scores}
    known = checked(RunFile, run, path, _REMEDY), checked(Summary, summary, path, _REMEDY)
    record = RunRecord(str(run["run_id"]), folder, *known)
    seconds, rate = (number_in(metrics.get(f"train_{key}")) for key in ("runtime", "samples_per_second"))
    speed = f" in {seconds:g} s, {rate:g} samples/s, with evaluations" if seconds and rate else ""
    taken, of_all = (format_count(number_in(number)) for number in (steps, planned))
    return record, f"{taken} steps{speed}", None if is_finished else f"of a Trainer; step {taken} of {of_all}"

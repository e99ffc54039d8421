"""From the settings of a Hugging Face Trainer to a configuration: what has an equal, what has none, and what to decide.

TrainingArguments is not imported. Where a file is silent, what TrainingArguments would hold is written out, because the
defaults here are others.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.config.glue import GLUE
from paratune.config.layers import Layer, expand_shorthands
from paratune.config.load import check_layer
from paratune.config.metric_names import METRICS
from paratune.config.options import kinds, options_of
from paratune.config.plain import one_line
from paratune.config.sections import Config
from paratune.config.trainer import optimization, running
from paratune.config.trainer.conversion import FILL_IN, Conversion, Left
from paratune.config.trainer.keys import MAPPED, OTHERS, PLACES, RENAMED, STATE, Other
from paratune.config.trainer.settings import Settings
from paratune.config.yaml_tree import read_tree
from paratune.errors import ConfigError, did_you_mean


def convert(found: Mapping[str, Any], source: str, options: Mapping[str, Any]) -> Conversion:
    """Turn settings into a configuration.

    Args:
        found: As read from the file.
        source: The file, for messages.
        options: From the command line by dotted key (`model.name`, `data.train`, `task`, ...); they win.

    Raises:
        ConfigError: A task that is none, values of a wrong type, or settings that contradict each other: all are
            listed.
    """
    out = Conversion()
    settings = Settings(_without_state(found, out))
    _leave_out(settings, out)
    kind = _task(settings, options, out)
    _places(settings, options, kind, out)
    _run(settings, out)
    optimization.write(settings, out)
    running.write(settings, kind, out)
    decided = {each.key for each in out.decide}
    out.used = [settings.said(key) for key in settings.found if key in {*MAPPED, *PLACES} - decided]
    if settings.problems:
        count = len(settings.problems)
        listed = "\n".join(f"  {each}" for each in settings.problems)
        raise ConfigError(
            f"{source}: {count} {'problem' if count == 1 else 'problems'}\n{listed}",
            code="trainer.settings",
            source=source,
        )
    return out


def check_text(text: str, source: str) -> None:
    """Make sure that the file which was made loads.

    Raises:
        ConfigError: It does not: the settings and the options of the command line do not go together.
    """
    tree = read_tree(text, source)
    assert isinstance(tree.value, dict), tree.problems
    _, problems = check_layer(expand_shorthands(Layer(tree.value, tree.places)), Path("converted.yaml"))
    if problems:
        listed = "\n".join(f"  {problem.message}" for problem in problems)
        raise ConfigError(
            f"{source} and the options given make no configuration:\n{listed}", code="trainer.settings", source=source
        )


def _without_state(found: Mapping[str, Any], out: Conversion) -> dict[str, Any]:
    """Return settings without what a trainer_state.json tells of how the run went."""
    if not ("log_history" in found and "global_step" in found):
        return dict(found)
    out.ignored += [key for key in found if key in STATE]
    why = (
        "this is a trainer_state.json; learning rate, schedule, seed and most others are not in it, and the defaults "
        "of TrainingArguments stand for them"
    )
    out.decide.append(Left("log_history", "(of a trainer_state.json)", why, changes=True))
    kept = {key: value for key, value in found.items() if key not in STATE}
    if found.get("train_batch_size"):
        kept["per_device_train_batch_size"] = found["train_batch_size"]
    return kept


def _leave_out(settings: Settings, out: Conversion) -> None:
    """Sort the keys that have no equal and those that the Trainer does not know."""
    for key, value in settings.found.items():
        if key in MAPPED or key in PLACES:
            continue
        other = OTHERS.get(key)
        if other is None:
            near = did_you_mean(key, [*MAPPED, *OTHERS, *RENAMED, *PLACES])
            out.not_known.append(Left(key, value, f"not a key of TrainingArguments{near}", changes=None))
        elif _asks_nothing(other, value):
            out.ignored.append(key)
        else:
            left = out.decide if other.decides else out.no_equal
            left.append(Left(key, value, other.why, other.changes))


def _asks_nothing(other: Other, value: Any) -> bool:
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in other.defaults)


def _task(settings: Settings, options: Mapping[str, Any], out: Conversion) -> str:
    """Write the task, and return its kind."""
    task = str(options.get("task", "classification"))
    if task in GLUE:
        out.put("task.glue", task, "--task")
        return GLUE[task].kind
    if task not in METRICS:
        known = [*METRICS, *GLUE]
        near = did_you_mean(task, known)
        settings.problems.append(f"--task {task} is not a task{near}; allowed: {', '.join(known)}")
        return "classification"
    out.put("task.kind", task, "--task" if "task" in options else f"{FILL_IN}: --task")
    if "labels" in options_of(kinds(options_of(Config)["task"])[task]):
        given = options.get("task.labels")
        out.put("task.labels", given or ["<first>", "<second>"], "--labels" if given else f"{FILL_IN}: --labels")
    return task


def _places(settings: Settings, options: Mapping[str, Any], kind: str, out: Conversion) -> None:
    """Write model, files and columns: from the command line, from the file, or to be filled in."""

    def put(key: str, flag: str, name: str | None = None, placeholder: str | None = None) -> None:
        if key in options:
            out.put(key, options[key], flag)
        elif name is not None and settings.found.get(name) is not None:
            out.put(key, settings.found[name], name)
        elif placeholder is not None:
            out.put(key, placeholder, f"{FILL_IN}: {flag}")

    needs_columns = "task.glue" not in out.values
    put("model.name", "--model", "model_name_or_path", "<model>")
    put("model.tokenizer", "", "tokenizer_name")
    put("data.train", "--train", "train_file", "<train file>")
    put("data.validation", "--validation", "validation_file")
    put("data.test", "--test", "test_file")
    put("data.columns.text", "--text", None, "<text column>" if needs_columns and kind != "qa" else None)
    put("data.columns.text_pair", "--text-pair")
    put(
        "data.columns.label", "--label", None, "<label column>" if needs_columns and kind not in ("mlm", "qa") else None
    )
    put("data.max_length", "", "max_length")
    put("data.max_length", "", "max_seq_length")
    length, older = (settings.found.get(key) for key in ("max_length", "max_seq_length"))
    if length is not None and older is not None and length != older:
        out.to_decide("max_length", length, f"max_seq_length: {one_line(older)} is written", changes=True)


def _run(settings: Settings, out: Conversion) -> None:
    folder, name = (settings.text(key) for key in ("output_dir", "run_name"))
    if name and name != folder:
        out.put("run.name", _slug(name), "run_name")
    elif folder:
        out.put("run.name", _slug(Path(folder).name), "output_dir, its last part")
    if folder:
        out.put("run.folder", str(Path(folder).parent), "output_dir, the folder above")
    out.put("run.seed", settings.whole("seed"), settings.origin("seed"))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "run"

"""Converts the settings of a Hugging Face Trainer to a configuration, without importing TrainingArguments.

Where the file lacks a key, the default of TrainingArguments is written, because the defaults of paratune are different.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.config.glue import GLUE
from paratune.config.layers import Layer, expand_shorthands
from paratune.config.load import check_layer
from paratune.config.metric_names import METRICS
from paratune.config.optional_sections import PACKAGES
from paratune.config.options import kinds, section_options
from paratune.config.plain import one_line
from paratune.config.sections import Config
from paratune.config.trainer import optimization, running
from paratune.config.trainer.conversion import FILL_IN, Conversion, UnmappedKey
from paratune.config.trainer.keys import MAPPED, OTHERS, PLACES, RENAMED, STATE, UnsupportedKey
from paratune.config.trainer.settings import Settings
from paratune.config.yaml_tree import read_tree
from paratune.errors import ConfigError, did_you_mean


def convert(settings_read: Mapping[str, Any], source: str, options: Mapping[str, Any]) -> Conversion:
    """Convert settings to a configuration.

    Args:
        options: From the command line by dotted key (`model.name`, `data.train`, `task`, ...); they override the file.

    Raises:
        ConfigError: An unknown task, values of a wrong type, or contradictory settings; the message lists all.
    """
    out = Conversion()
    settings = Settings(_without_state(settings_read, out))
    _leave_out(settings, out)
    kind = _task(settings, options, out)
    _places(settings, options, kind, out)
    _run(settings, out)
    optimization.write(settings, out)
    running.write(settings, kind, out)
    decided = {entry.key for entry in out.decide}
    out.used = [settings.name_in_file(key) for key in settings.values if key in {*MAPPED, *PLACES} - decided]
    if settings.problems:
        count = len(settings.problems)
        listed = "\n".join(f"  {entry}" for entry in settings.problems)
        message = f"{source}: {count} {'problem' if count == 1 else 'problems'}\n{listed}"
        raise ConfigError(message, code="trainer.settings", source=source)
    return out


def check_text(text: str, source: str) -> None:
    """Check that the converted file loads.

    Raises:
        ConfigError: It does not: the settings and the options of the command line cannot be combined.
    """
    tree = read_tree(text, source)
    assert isinstance(tree.value, dict), tree.problems
    _, problems = check_layer(expand_shorthands(Layer(tree.value, tree.places)), Path("converted.yaml"))
    if problems:
        listed = "\n".join(f"  {problem.message}" for problem in problems)
        message = f"{source} and the given options are not a valid configuration:\n{listed}"
        raise ConfigError(message, code="trainer.settings", source=source)


def _without_state(settings: Mapping[str, Any], out: Conversion) -> dict[str, Any]:
    """Return settings without the results of a run in a trainer_state.json."""
    if not ("log_history" in settings and "global_step" in settings):
        return dict(settings)
    out.ignored += [key for key in settings if key in STATE]
    why = (
        "this is a trainer_state.json; it lacks the learning rate, schedule, seed and most other settings, so they "
        "have the defaults of TrainingArguments"
    )
    out.decide.append(UnmappedKey("log_history", "(of a trainer_state.json)", why, changes=True))
    others = {key: value for key, value in settings.items() if key not in STATE}
    if settings.get("train_batch_size"):
        others["per_device_train_batch_size"] = settings["train_batch_size"]
    return others


def _leave_out(settings: Settings, out: Conversion) -> None:
    """Add the keys without an equivalent, and those that the Trainer does not have, to the result."""
    for key, value in settings.values.items():
        if key in MAPPED or key in PLACES:
            continue
        other = OTHERS.get(key)
        if other is None:
            near = did_you_mean(key, [*MAPPED, *OTHERS, *RENAMED, *PLACES])
            out.not_known.append(UnmappedKey(key, value, f"not a key of TrainingArguments{near}", changes=None))
        elif _is_default(other, value):
            out.ignored.append(key)
        else:
            keys = out.decide if other.decides else out.no_equal
            keys.append(UnmappedKey(key, value, other.why, other.changes))


def _is_default(other: UnsupportedKey, value: Any) -> bool:
    return any(value == default and isinstance(value, bool) == isinstance(default, bool) for default in other.defaults)


def _task(settings: Settings, options: Mapping[str, Any], out: Conversion) -> str:
    """Write the task; return its kind."""
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
    if "labels" in section_options(kinds(section_options(Config)["task"])[task]):
        given = options.get("task.labels")
        out.put("task.labels", given or ["<first>", "<second>"], "--labels" if given else f"{FILL_IN}: --labels")
    return task


def _places(settings: Settings, options: Mapping[str, Any], kind: str, out: Conversion) -> None:
    """Write model, files and columns: from the command line, from the file, or as placeholders."""

    def put(key: str, flag: str, name: str | None = None, placeholder: str | None = None) -> None:
        if key in options:
            out.put(key, options[key], flag)
        elif name is not None and settings.values.get(name) is not None:
            out.put(key, settings.values[name], name)
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
    length, older = (settings.values.get(key) for key in ("max_length", "max_seq_length"))
    if length is not None and older is not None and length != older:
        out.to_decide("max_length", length, f"max_seq_length: {one_line(older)} is written", changes=True)


def _run(settings: Settings, out: Conversion) -> None:
    folder, name = (settings.text(key) for key in ("output_dir", "run_name"))
    if name and name != folder:
        out.put("run.name", _slug(name), "run_name")
    elif folder:
        out.put("run.name", _slug(Path(folder).name), "output_dir, its last part")
    if folder:
        out.put("run.folder", "runs", "not output_dir, which has the files of the Trainer")
    _trackers(settings, out)
    out.put("run.seed", settings.whole("seed"), settings.origin("seed"))


def _trackers(settings: Settings, out: Conversion) -> None:
    """Write a section for each tracker of `report_to`; trackers that paratune lacks are keys without an equivalent."""
    given = settings.value("report_to")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    names = [name for name in dict.fromkeys(map(str, names)) if name != "none"]
    run_name = settings.text("run_name")
    for name in names:
        if name == "wandb":
            out.put("trackers.wandb.mode", "offline", "report_to; the Trainer sends at once, as mode: online does")
        elif name in PACKAGES:
            out.put(f"trackers.{name}", {}, "report_to")
        if name == "wandb" and run_name:
            out.put("trackers.wandb.name", run_name, "run_name")
    if others := [name for name in names if name not in PACKAGES]:
        why = f"the trackers here are {', '.join(PACKAGES)}; name them in the section trackers"
        out.no_equal.append(UnmappedKey("report_to", others, why, changes=False))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "run"

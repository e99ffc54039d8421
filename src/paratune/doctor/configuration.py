"""Is the configuration right by itself: its options, the extras it needs, its run folder, and what never happens."""

import re
import shlex
from collections.abc import Iterator

from paratune.config.own_code import own_code
from paratune.doctor.finding import Finding
from paratune.doctor.setup import QueuedRun

_NEVER = {
    "evaluate": "no evaluation comes before the end: nothing chooses the best model, and nothing stops early",
    "checkpoint": "no checkpoint comes before the end: what a crash or a time limit interrupts is lost",
}


def check_options(setup: QueuedRun) -> Iterator[Finding]:
    for problem in setup.problems:
        where = problem.place.origin if problem.place else str(setup.path)
        if match := re.match(r"data\.(\w+) is the same as data\.(\w+)", problem.message):
            yield same_rows(problem.message, match[1], match[2], where)
            continue
        why = "paratune train ends with exit code 2 before anything else."
        yield Finding("config", "problem", problem.message, why, where=where, line=_corrected(problem.message))
    if setup.loaded is not None:
        yield Finding("config", "ok", "all options are known and fit together", where=str(setup.path))
        for line in own_code(setup.loaded.values):
            what = f"training imports Python code that does not come with paratune: {line}"
            where = setup.where(line.partition(":")[0])
            yield Finding("own_code", "note", what, "It can do anything that you can: read it first.", where=where)


def same_rows(what: str, part: str, other: str, where: str) -> Finding:
    """Return the finding of two parts of the data that are the same.

    Args:
        what: What was found.
        part: validation or test.
        other: train or validation, which it is the same as.
        where: Line that names it.
    """
    if other == "train":
        why = f"Scores on {part} measure only how well the training set was memorised."
        line = f"data.split.{part}: 0.1" if part in ("validation", "test") else ""
        remedy = f"in the place of data.{part}" if line else "name another file"
        return Finding("test_is_train", "problem", what, why, remedy, where, line)
    why = "The best model is chosen on the rows of the test: its test score is too good."
    line = "data.test: null" if part == "test" else ""
    return Finding("test_is_validation", "problem", what, why, "or name another file" if line else "", where, line)


def _corrected(message: str) -> str:
    """Return the option under its nearest valid name, where the message has one."""
    match = re.match(r"([\w.]+) is not an option of .*did you mean ([\w.]+)\?", message)
    if match is None:
        return ""
    section, _, _ = match[1].rpartition(".")
    return f"{match[1]} -> {section}.{match[2]}" if section else f"{match[1]} -> {match[2]}"


def check_run_folder(setup: QueuedRun) -> Iterator[Finding]:
    state, folder = setup.probes.run_state, setup.machine.out_folder
    where = setup.where("run.name")
    if state == "finished":
        why = "Training refuses to write into it, after the job has waited in the queue."
        if setup.start.is_elsewhere:
            why = "paratune launch leaves it as it is, and submits nothing."
        line = f"run.name: {folder.name}_2"
        yield Finding("run_exists", "problem", f"{folder} holds a finished run", why, where=where, line=line)
    elif state == "unfinished" and setup.start.is_elsewhere:
        what = f"{folder} holds an unfinished run"
        yield Finding("run_unfinished", "note", what, "paratune launch continues it.", where=where)
    elif state == "unfinished":
        why = "Without --resume training refuses to write into it, after the job has waited in the queue."
        line = f"paratune train {shlex.quote(str(setup.path))} --resume"
        yield Finding("run_unfinished", "warning", f"{folder} holds an unfinished run", why, where=where, line=line)
    elif state == "foreign":
        why = "Training refuses to write into a folder with files of other programs."
        line = f"run.name: {folder.name}_2"
        yield Finding(
            "run_foreign", "problem", f"{folder} holds files and is not a run folder", why, where=where, line=line
        )
    if setup.probes.damaged_checkpoint:
        what = f"the newest checkpoint in {folder}, {setup.probes.damaged_checkpoint}, is not whole"
        why = "--resume passes over it, and begins from the one before it, or from the first step."
        line = f"rm -r {shlex.quote(str(folder / 'checkpoints' / setup.probes.damaged_checkpoint))}"
        yield Finding("checkpoint_damaged", "warning", what, why, where=str(folder), line=line)


def check_needed_extras(setup: QueuedRun) -> Iterator[Finding]:
    """Look for the package of data sets of the hub; those of strategy and trackers are in `feasible`."""
    if any(source.startswith("hub:") for source in _sources(setup)) and "package datasets" not in setup.probes.tools:
        what, why = "extra datasets is not installed", "The run ends before its first step."
        line = "pip install 'paratune[datasets]'"
        yield Finding("extra_missing", "problem", what, why, where=setup.where("data.train"), line=line)


def check_trackers(setup: QueuedRun) -> Iterator[Finding]:
    wandb, mlflow = setup.config.trackers.wandb, setup.config.trackers.mlflow
    if not setup.start.no_network:
        return
    why = "The machines that train reach no network: figures wait for a server that never answers."
    if wandb is not None and wandb.mode == "online":
        where, line = setup.where("trackers.wandb.mode"), "trackers.wandb.mode: offline"
        yield Finding("tracker_online", "problem", "wandb is online", why, where=where, line=line)
    if mlflow is not None and (mlflow.uri or "").startswith(("http://", "https://")):
        where, line = setup.where("trackers.mlflow.uri"), "trackers.mlflow.uri: null"
        yield Finding("tracker_online", "problem", f"mlflow uses the server {mlflow.uri}", why, where=where, line=line)


def check_steps(setup: QueuedRun) -> Iterator[Finding]:
    """What is due after more steps than the run takes never happens."""
    steps = total_steps(setup)
    if steps is None:
        return
    config = setup.config
    if (config.train.warmup_steps or 0) >= steps:
        what = f"train.warmup_steps is {config.train.warmup_steps}, and the run takes {steps} steps"
        why, line = "The learning rate never reaches its peak.", f"train.warmup_steps: {steps // 10}"
        where = setup.where("train.warmup_steps")
        yield Finding("warmup_too_long", "problem", what, why, "", where, line)
    for name, section in (("evaluate", config.evaluate), ("checkpoint", config.checkpoint)):
        if section.steps is not None and section.steps > steps:
            what = f"{name}.steps is {section.steps}, and the run takes {steps} steps"
            why = f"Then {_NEVER[name]}; paratune train ends with exit code 2."
            line = f"{name}.steps: {max(1, steps // 5)}"
            yield Finding("never_due", "problem", what, why, where=setup.where(f"{name}.steps"), line=line)


def check_order_of_sums(setup: QueuedRun) -> Iterator[Finding]:
    """What of a run on a GPU is the same bits each time, and so the same after an interruption."""
    config, where = setup.config, setup.where("train.deterministic")
    is_wanted = config.train.deterministic
    if not setup.gpus:
        return
    needs_padding = setup.traits is not None and setup.traits.equal_shapes
    is_padded = config.batch.layout in ("padded", "bucketed") or needs_padding
    why = "A resumed run then has the weights of one that was not interrupted to rounding only."
    if not is_wanted:
        what = "train.deterministic is false: attention on a GPU adds gradients in any order"
        yield Finding("order_of_sums", "note", what, why, "", where, "train.deterministic: true")
    elif is_padded:
        what = "attention over padded rows on a GPU adds gradients in a varying order, also with train.deterministic"
        remedy = "packed rows have an order (batch.layout: packed, where the model takes it)"
        yield Finding("order_of_sums", "note", what, why, remedy, setup.where("batch.layout"))


def total_steps(setup: QueuedRun) -> int | None:
    """Return the optimizer steps of the run; None while the rows or the batch are not known."""
    train = setup.config.train
    if train.max_steps is not None:
        return train.max_steps
    rows, size = _num_train(setup), batch_size(setup)
    if rows is None or size is None or train.epochs is None or setup.config.task.kind in ("mlm", "qa"):
        return None  # what is trained on there is windows
    return max(1, round(train.epochs * -(-rows // size)))


def batch_size(setup: QueuedRun) -> int | None:
    """Return the samples of an optimizer step, as far as the configuration says."""
    batch = setup.config.batch
    if batch.global_ is not None:
        return batch.global_
    return batch.per_device and batch.per_device * (batch.grad_accum_steps or 1) * setup.start.world_size


def _num_train(setup: QueuedRun) -> int | None:
    train = setup.data.split("train") if setup.data else None
    return train.num_rows if train else None


def _sources(setup: QueuedRun) -> list[str]:
    data = setup.config.data
    named = [data.train] if isinstance(data.train, str) else list(data.train or [])
    named += [source for source in (data.validation, data.test) if source is not None]
    return [*named, *data.extra.values(), *data.predict.values()]

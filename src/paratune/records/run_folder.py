"""Checks, locks and empties the folder of a run; imports no torch, so that errors appear at once.

The smaller forms of a run are run folders too, RUN/compressed/FORM, that `paratune compress` writes. A form has
run.json, summary.json and the predictions of the scored rows, so that reports compare forms as other runs. The smaller
model is in its model/; fp32, the model of the run itself, has none.
"""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, get_args

from filelock import FileLock, Timeout

from paratune.base import atomic
from paratune.base.text import plain
from paratune.config.own_code import CALLBACKS_KEY, NOT_COMPARED
from paratune.config.plain import differences, flatten
from paratune.errors import CheckpointError, os_error_as
from paratune.records import CHECKPOINTS_FOLDER, RUN_FILE, SUMMARY_FILE, is_finished, read_json

Mode = Literal["new", "resume", "overwrite"]
_UNUSABLE, _REMEDY = "cannot be used", "change run.folder"
_IN_USE = "is in use: another process trains in it; change run.name"
LOCK_FILE = ".lock"
SLURM_FOLDER = "slurm"  # folder of the batch scripts of a run, which exist before it, and of the output of Slurm's jobs
LOOK_S = 0.5  # `take_folder` tries again so long: `is_in_use` in another process locks the folder for a moment
FREE_TO_CHANGE = (
    *("run.folder", "run.name", "run.hang_timeout_s", "strategy", "device", "precision", "measure", "trackers"),
    *("checkpoint", "data.cache_dir", "data.figures", "data.num_workers", "data.prefetch_factor"),
    *("evaluate.batch_size", "batch", "train.activation_checkpointing", "train.compile", "train.deterministic"),
    CALLBACKS_KEY,
)
"""Options that may change when a run is resumed: they change how a run computes, not what it trains. The samples of a
step over all ranks are compared separately."""
_FREE = tuple(f"{name}." for name in FREE_TO_CHANGE)

DECISIVE = {"strategy.param_dtype": "fp32"}
"""Options in these sections that nevertheless decide what is trained, with their defaults: with 16-bit weights, forward
and backward round values that stay fp32 under autocast."""


def check_usable(folder: Path, mode: Mode) -> None:
    """Check whether a run may write to `folder`, before anything slow; create and change nothing.

    Every rank checks before the process group starts: otherwise the others would wait for a rank that was refused. All
    ranks see the same content, because rank 0 writes to the folder only after that.

    Raises:
        CheckpointError: It contains a run without --resume or --overwrite, or other files, or another process trains in
            it, or it cannot be created or written.
    """
    if is_in_use(folder):
        raise CheckpointError(f"{folder} {_IN_USE}", code="run.in_use", folder=folder)
    _check_content(folder, mode)
    place = next((path for path in (folder, *folder.parents) if path.exists()), Path())
    # Permissions are not enough: root has them also on a disk that is read-only or full.
    with (
        os_error_as(CheckpointError, f"{folder} {_UNUSABLE}", _REMEDY, code="output.not_writable", folder=folder),
        tempfile.TemporaryFile(dir=place),
    ):
        pass


def _check_content(folder: Path, mode: Mode) -> None:
    above = next((path for path in folder.parents if path.exists()), None)
    state, code, problem = folder_state(folder), "output.foreign", ""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        code = "run.damaged"
        problem = "cannot be read, so what it contains is unknown; change its permissions, or run.folder"
    elif above is not None and not above.is_dir():
        problem = f"cannot be created, because {above} is a file; change run.folder"
    elif state == "foreign" and folder.is_dir():
        problem = f"contains files but no run ({RUN_FILE} is missing); nothing in it was changed; change run.name"
    elif state == "foreign":
        problem = "is a file; the run folder needs this name: change run.name or run.folder"
    elif mode == "resume" and state == "finished":
        text = f"{folder} contains a finished run; there is nothing to resume: change run.name"
        raise CheckpointError(text, code="run.finished", folder=folder)
    elif mode == "new" and state is not None:
        found = "a finished run" if state == "finished" else "an unfinished run (--resume continues it)"
        code = "run.exists"
        problem = f"already contains {found}; change run.name, or use --overwrite to delete it"
    if problem:
        raise CheckpointError(f"{folder} {problem}", code=code, folder=folder)


def folder_state(folder: Path) -> Literal["finished", "unfinished", "foreign"] | None:
    """Return the content of a folder: a finished or unfinished run, or other files; None where a run may start."""
    try:
        if (folder / RUN_FILE).exists():
            return "finished" if is_finished(folder) else "unfinished"
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
    except OSError:  # a file, or a folder without permission to read
        return "foreign"
    # Files that may exist before run.json: of a job, or of a process that was killed early.
    ours, begun = (LOCK_FILE, SLURM_FOLDER), ("log.rank", "events.rank")
    is_free = all(name in ours or name.endswith(atomic.SUFFIX) or name.startswith(begun) for name in names)
    return None if is_free else "foreign"


def is_in_use(folder: Path) -> bool:
    """Return whether a process trains in a folder, which may be missing."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that several ranks can check at once
    except BlockingIOError:
        return True
    except OSError:  # no lock file; or a file system without locks, which `take_folder` reports
        return False
    return False


def check_same_run(
    folder: Path,
    values: Mapping[str, Any],
    *,
    global_batch_size: int | None = None,
    fingerprints: Mapping[str, str] | None = None,
    teachers: Mapping[str, Any] | None = None,
    own_code: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Check that a configuration trains the same as the run in `folder`; a folder without a run is accepted.

    Args:
        global_batch_size: Samples per step with the present number of processes; None while it is unknown.
        fingerprints: Of the content of each split; None while the data has not been read.
        teachers: Hash of the weights, the tokenizer and the limits of each teacher by its name; None: not compared.
        own_code: `own_code` of run.json, code outside paratune by option; that of `NOT_COMPARED` may change.

    Raises:
        CheckpointError: It does not; the message lists all differences.
    """
    if not (folder / RUN_FILE).exists():
        return
    record = read_json(folder / RUN_FILE)
    try:
        config, size = flatten(record["config"]), record["batch"]["global_batch_size"]
        known = {
            split: about for split, about in record["data"].items() if about is not None and fingerprints is not None
        }
        data = {split: (about.get("source"), about["fingerprint"]) for split, about in known.items()}
        inputs = {about["name"]: about.get("inputs_sha256") for about in record.get("teachers") or ()}
    except (KeyError, TypeError, AttributeError) as error:
        text = f"{folder / RUN_FILE} is damaged: it is no record of a run ({error!r}); restore it, or change run.name"
        raise CheckpointError(text, code="run.damaged") from error
    changed = [
        f"  {key}: {before!r} then, {now!r} now"
        for key, before, now in differences({**DECISIVE, **config}, {**DECISIVE, **flatten(values)})
        if key in DECISIVE or not f"{key}.".startswith(_FREE)
    ]
    if size is not None and global_batch_size not in (None, size):  # a baseline has no batch
        changed.append(f"  global batch: {size} samples then, {global_batch_size} now (batch.global keeps it the same)")
    for split, (source, fingerprint) in data.items():
        if fingerprints is not None and fingerprint != fingerprints.get(split):
            changed.append(f"  data.{split}: the content of {source} has changed")
    for name, sha256 in inputs.items():
        if teachers is not None and sha256 != teachers.get(name):
            changed.append(f"  distil.teacher: the weights or the tokenizer of {name} have changed")
    for option, code in (own_code or {}).items():
        recorded = (record.get("own_code") or {}).get(option)
        before = recorded.get("sha256") if isinstance(recorded, dict) else None
        if before not in (None, code["sha256"]) and not option.startswith(NOT_COMPARED):
            function = code.get("function") or code.get("evaluate")
            changed.append(f"  {option}: the file of {function} has changed (SHA-256 {str(before)[:12]} then)")
    if changed:
        first = f"{folder} was started with another configuration and cannot be resumed with this one:"
        lines = [first, *changed, "restore what has changed, or change run.name to start a new run"]
        raise CheckpointError("\n".join(lines), code="run.other_configuration", folder=folder)


def take_folder(folder: Path, mode: Mode) -> FileLock:
    """Create the folder, empty it with overwrite, and lock it until the returned lock is released.

    Raises:
        CheckpointError: Another process trains in it, or it cannot be created or emptied.
    """
    lock = FileLock(folder / LOCK_FILE)
    with os_error_as(CheckpointError, f"{folder} {_UNUSABLE}", _REMEDY, code="output.not_writable", folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=LOOK_S)
            _check_content(folder, mode)  # another process may have trained here since the first check
            atomic.delete_remains(folder)
            if mode == "overwrite":
                # A process that is killed meanwhile leaves a run that can be overwritten, or resumed from what is left:
                # it counts as unfinished first, checkpoints are deleted before the events of their steps, and run.json
                # is deleted last. Links are deleted without their targets.
                first, kept = (SUMMARY_FILE, CHECKPOINTS_FOLDER), (RUN_FILE, LOCK_FILE, SLURM_FOLDER)
                others = sorted(path.name for path in folder.iterdir() if path.name not in (*first, *kept))
                for path in (folder / name for name in (*first, *others, RUN_FILE)):
                    if path.is_dir() and not path.is_symlink():
                        atomic.delete_folder(path)  # a half-deleted checkpoint would fail --resume
                    else:
                        path.unlink(missing_ok=True)
        except Timeout as error:
            raise CheckpointError(f"{folder} {_IN_USE}", code="run.in_use", folder=folder) from error
        except (CheckpointError, OSError):
            lock.release()
            raise
    return lock


@contextmanager
def locked_folder(folder: Path, command: str, remedy: str) -> Iterator[None]:
    """Make a folder with its parents, and lock it; `command` and `remedy` are for the message.

    Raises:
        CheckpointError: Another process of the command uses it, or it cannot be made.
    """
    with os_error_as(
        CheckpointError, f"{plain(folder)} {_UNUSABLE}", remedy, code="output.not_writable", folder=folder
    ):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(folder / LOCK_FILE).acquire(timeout=LOOK_S)
        except Timeout as error:
            message = f"{plain(folder)} is in use by another {command}; wait for its end, or {remedy}"
            raise CheckpointError(message, code="run.in_use", folder=folder) from error
    with held:
        yield


def trained_fingerprint(values: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the options that decide what is trained: all except FREE_TO_CHANGE.

    DECISIVE options count only where they differ from their defaults: not every strategy has them.
    """
    flat = {key: value for key, value in flatten(values).items() if key in DECISIVE or not f"{key}.".startswith(_FREE)}
    decisive = {key: value for key, value in flat.items() if value != DECISIVE.get(key)}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


FP32: Final = "fp32"  # the model of the run, with weights and computation in float32
Form = Literal["bf16", "onnx", "int8"]
FORMS: tuple[str, ...] = get_args(Form)  # smaller forms that `paratune quantize` makes
COMPRESSED_FOLDER: Final = "compressed"
ScoredSplit = Literal["test", "validation"]
SPLITS: tuple[str, ...] = get_args(ScoredSplit)  # splits that can be scored


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights in a model folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".onnx", ".data"))


def is_measured(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether a form is measured with these settings, which its run.json has as `measured`."""
    try:
        return is_finished(folder) and settings.items() <= read_json(folder / RUN_FILE)["measured"].items()
    except (CheckpointError, KeyError, TypeError, AttributeError):  # damaged: measured again
        return False

"""Handles restarts by torchrun: resume the run that this torchrun started, and end it after a signal.

No torch. `torchrun --max-restarts` restarts all processes with the same command line when one fails; this module
distinguishes restarts from the first start.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paratune.base.units import parse_count
from paratune.errors import CheckpointError, LaunchError, Stopped
from paratune.records import RUN_FILE, read_json
from paratune.records.run_folder import Mode

NO_ID = "none"
"""Run id of torchrun without --rdzv-id, if the rendezvous is not its own."""
STOP_NOTE = "paratune.stopped"
SIZE_NOTE = "paratune.micro_batch"


@dataclass(frozen=True)
class TorchrunStart:
    """A start of this process by torchrun."""

    run_id: str
    """Id of the rendezvous: --rdzv-id, or a new one for each start of torchrun on one machine."""
    num_restarts: int
    """Number of restarts after failures, without restarts for a new node."""
    max_restarts: int


def read_torchrun(environ: Mapping[str, str] = os.environ) -> TorchrunStart | None:
    """Return the variables of torchrun; None if another program started the process."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    counts = [environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS")]
    restarts, most = (parse_count(count) or 0 for count in counts)
    return TorchrunStart(environ["TORCHELASTIC_RUN_ID"], restarts, most)


def start_mode(mode: Mode, folder: Path, environ: Mapping[str, str] = os.environ) -> Mode:
    """Return the mode of a run: `resume` if this torchrun started the run in `folder`, otherwise `mode`.

    Each rank calls this before the process group exists; the results are equal, since no rank writes to the folder yet.

    Raises:
        Stopped: A signal stopped the run, and torchrun restarted it.
        LaunchError: It is unknown whether the run in `folder` is the one that torchrun restarts.
        CheckpointError: --overwrite would delete a run that this torchrun may have started.
    """
    start = read_torchrun(environ)
    if start is None:
        return mode
    if stop_was_requested(environ):
        raise Stopped(
            "a signal stopped this run, and --max-restarts of torchrun restarted it: it ends; --resume continues it if "
            "it had started",
            code="stopped.signal",
        )
    if mode == "resume" or not (folder / RUN_FILE).exists():
        return mode
    has_id = start.run_id not in ("", NO_ID)
    # Without an id the record, which --overwrite may replace because it is damaged, is not read.
    sessions = read_json(folder / RUN_FILE).get("sessions") or [] if has_id else []
    starts = [session.get("torchrun") for session in sessions if isinstance(session, dict)]
    if has_id and start.run_id in {str(earlier.get("run_id")) for earlier in starts if isinstance(earlier, dict)}:
        if mode == "overwrite" and start.num_restarts == 0:
            message = (
                f"--overwrite: {folder} was started with this --rdzv-id, {start.run_id}, and torchrun may have started "
                "its processes again because a node joined; give another --rdzv-id, or use --resume"
            )
            raise CheckpointError(message, code="elastic.restart", option="--overwrite", value=folder)
        return "resume"
    if start.num_restarts and not has_id:
        raise LaunchError(
            f"torchrun restarted this run (restart {start.num_restarts} of {start.max_restarts}), and it is unknown "
            f"whether the run in {folder} is the same: give torchrun a new --rdzv-id for each start, or use --resume, "
            "which starts a new run if there is none",
            code="elastic.restart",
            folder=folder,
        )
    return mode


def note_stop(environ: Mapping[str, str] = os.environ) -> None:
    """Record a request to stop, for the processes that torchrun may start next.

    Not for `ENDED_BY_TORCHRUN`: torchrun receives these signals itself and restarts nothing.
    """
    folder = _folder(environ)
    if folder is not None:
        with suppress(OSError):
            (folder / STOP_NOTE).touch()


def stop_was_requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `note_stop` was called in an earlier start by this torchrun on this machine."""
    folder = _folder(environ)
    return folder is not None and (folder / STOP_NOTE).exists()


def note_micro_batch(size: int, rank: int, environ: Mapping[str, str] = os.environ) -> None:
    """Record the maximum micro-batch `size` (samples) for the next start, after `rank` ran out of memory."""
    folder = _folder(environ)
    if folder is not None:
        with suppress(OSError):
            (folder / f"{SIZE_NOTE}.rank{rank}.{os.getpid()}").write_text(str(size))


def noted_micro_batch(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the smallest size that `note_micro_batch` recorded in earlier starts by this torchrun on this machine."""
    folder = _folder(environ)
    texts = [path.read_text() for path in folder.glob(f"{SIZE_NOTE}.*")] if folder is not None else []
    sizes = [size for text in texts if (size := parse_count(text))]
    return min(sizes, default=None)


def will_restart(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun restarts the processes if this one fails."""
    start = read_torchrun(environ)
    return start is not None and start.num_restarts < start.max_restarts


def _folder(environ: Mapping[str, str]) -> Path | None:
    """Return torchrun's folder on this machine, FOLDER/attempt_N/RANK/error.json; None if it has none."""
    file = Path(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if len(file.parts) < 4 or not file.parents[1].name.startswith("attempt_"):
        return None
    return file.parents[2]

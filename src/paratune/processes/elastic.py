"""What torchrun's restarts ask of a run: to go on with what this torchrun began, and to end when it was asked to end.

Beside floor 1: no torch. `torchrun --max-restarts` starts all processes again when one of them fails, with the same
command line as the first time; so it is here that a second start is told from a first one.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paratune.base.units import parse_count
from paratune.errors import CheckpointError, LaunchError, Stopped
from paratune.records import RUN_FILE, read_run
from paratune.records.run_folder import Mode

NO_ID = "none"
"""What torchrun calls a rendezvous that was given no --rdzv-id and is not its own."""
STOP_NOTE = "paratune.stopped"
SIZE_NOTE = "paratune.micro_batch"


@dataclass(frozen=True)
class Torchrun:
    """What torchrun says of this start."""

    run_id: str
    """Of its rendezvous: --rdzv-id, or one of its own for each start of torchrun on one machine."""
    num_restarts: int
    """How often it has started the processes again after a failure; a node that joins does not count."""
    max_restarts: int

    @property
    def has_id(self) -> bool:
        return self.run_id not in ("", NO_ID)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def torchrun_of(environ: Mapping[str, str] = os.environ) -> Torchrun | None:
    """Return what torchrun says of this start; None where something else started the process."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    counts = [environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS")]
    restarts, most = (parse_count(count) or 0 for count in counts)
    return Torchrun(environ["TORCHELASTIC_RUN_ID"], restarts, most)


def mode_of_start(mode: Mode, folder: Path, environ: Mapping[str, str] = os.environ) -> Mode:
    """Return whether a run is begun or gone on with: `resume` when this torchrun began the run in `folder`.

    Every rank asks by itself, before it meets the others; all see the same, because none writes there until then.

    Args:
        mode: What the command line says.
        folder: Of the run.
        environ: Variables of this process.

    Raises:
        Stopped: A signal had asked the run to end, and torchrun started it again all the same.
        LaunchError: Nothing tells whether the run in `folder` is the one that torchrun restarts.
        CheckpointError: --overwrite would delete what this torchrun may have begun.
    """
    start = torchrun_of(environ)
    if start is None:
        return mode
    if was_asked_to_stop(environ):
        raise Stopped(
            "a signal had asked this run to end, and --max-restarts of torchrun started it again: it ends; --resume "
            "continues it if it had started",
            code="stopped.signal",
        )
    if mode == "resume" or not (folder / RUN_FILE).exists():
        return mode
    if start.has_id and start.run_id in _ids_of(folder):
        if mode == "overwrite" and start.num_restarts == 0:
            raise CheckpointError(
                f"--overwrite: {folder} was started with this --rdzv-id, {start.run_id}, and torchrun may have started "
                "its processes again because a node joined; give another --rdzv-id, or use --resume",
                code="elastic.restart",
                option="--overwrite",
                value=folder,
            )
        return "resume"
    if start.num_restarts and not start.has_id:
        raise LaunchError(
            f"torchrun started this run again (restart {start.num_restarts} of {start.max_restarts}), and nothing "
            f"tells whether the run in {folder} is the same: give torchrun an --rdzv-id of its own for each start, or "
            "say --resume, which begins a run where there is none",
            code="elastic.restart",
            folder=folder,
        )
    return mode


def _ids_of(folder: Path) -> set[str]:
    """Return the rendezvous under which sessions of a run were made."""
    sessions = read_run(folder).get("sessions")
    told = [session.get("torchrun") for session in sessions if isinstance(session, dict)] if sessions else []
    return {str(each.get("run_id")) for each in told if isinstance(each, dict)}


def note_stop(environ: Mapping[str, str] = os.environ) -> None:
    """Note that this run was asked to end, where the processes that torchrun may start next will look.

    Not of `ENDED_BY_TORCHRUN`: torchrun receives these itself, and starts no process again.
    """
    note = _stop_note(environ)
    if note is not None:
        with suppress(OSError):
            note.touch()


def was_asked_to_stop(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `note_stop` was called in an earlier start of this torchrun on this machine."""
    note = _stop_note(environ)
    return note is not None and note.exists()


def note_micro_batch(size: int, rank: int, environ: Mapping[str, str] = os.environ) -> None:
    """Note the micro-batch that the processes which torchrun starts next are to take at most.

    Args:
        size: Samples.
        rank: That ran out of memory.
        environ: Variables of this process.
    """
    folder = _folder(environ)
    if folder is not None:
        with suppress(OSError):
            (folder / f"{SIZE_NOTE}.rank{rank}.{os.getpid()}").write_text(str(size))


def noted_micro_batch(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the smallest size that `note_micro_batch` noted in earlier starts of this torchrun on this machine."""
    folder = _folder(environ)
    texts = [path.read_text() for path in folder.glob(f"{SIZE_NOTE}.*")] if folder is not None else []
    sizes = [size for text in texts if (size := parse_count(text))]
    return min(sizes, default=None)


def will_restart(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun starts the processes again when this one fails."""
    start = torchrun_of(environ)
    return start is not None and start.num_restarts < start.max_restarts


def _stop_note(environ: Mapping[str, str]) -> Path | None:
    folder = _folder(environ)
    return None if folder is None else folder / STOP_NOTE


def _folder(environ: Mapping[str, str]) -> Path | None:
    """Return torchrun's own folder on this machine, FOLDER/attempt_N/RANK/error.json; None where it has none."""
    file = Path(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if len(file.parts) < 4 or not file.parents[1].name.startswith("attempt_"):
        return None
    return file.parents[2]

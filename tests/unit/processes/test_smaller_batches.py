"""Processes whose memory ran out are started again with smaller micro-batches, and not for ever."""

import json
from pathlib import Path
from typing import Any

import pytest

from paratune.errors import EXIT_LAUNCH, EXIT_OK, EXIT_OUT_OF_MEMORY
from paratune.processes.local import launch_with_smaller_batches
from paratune.processes.place import MICRO_BATCH_LIMIT_VARIABLE, OUT_OF_MEMORY_VARIABLE


class Processes:
    """Replaces `launch`: each start has the next outcome, a code and the notes of ranks."""

    def __init__(self, *outcomes: tuple[int, dict[int, dict[str, Any]]]) -> None:
        self._outcomes = list(outcomes)
        self.started: list[tuple[list[str], str | None]] = []

    def __call__(self, arguments: list[str], num_processes: int, *, environment: dict[str, str]) -> int:
        assert num_processes == 2
        self.started.append((arguments, environment.get(MICRO_BATCH_LIMIT_VARIABLE)))
        code, notes = self._outcomes.pop(0)
        for rank, note in notes.items():
            Path(f"{environment[OUT_OF_MEMORY_VARIABLE]}.rank{rank}").write_text(json.dumps(note))
        return code


def note(size: int, holds_folder: bool = True) -> dict[str, Any]:
    return {"micro_batch_size": size, "holds_folder": holds_folder}


def test_restarts_use_smaller_batches_until_they_fit(capsys: pytest.CaptureFixture[str]):
    processes = Processes(
        (EXIT_OUT_OF_MEMORY, {0: note(8), 1: note(4)}), (EXIT_OUT_OF_MEMORY, {1: note(2)}), (EXIT_OK, {})
    )
    assert launch_with_smaller_batches(["train", "c.yaml", "--overwrite"], 2, start=processes) == EXIT_OK
    again = ["train", "c.yaml", "--resume"]  # what --overwrite deletes is deleted already
    assert processes.started == [(["train", "c.yaml", "--overwrite"], None), (again, "4"), (again, "2")]
    assert "at most 2" in capsys.readouterr().err


def test_a_folder_without_a_run_is_not_resumed():
    # It ran out while trying sizes: the folder still holds the old run, or none.
    processes = Processes((EXIT_OUT_OF_MEMORY, {1: note(4, holds_folder=False)}), (EXIT_OK, {}))
    arguments = ["train", "c.yaml", "--overwrite"]
    assert launch_with_smaller_batches(arguments, 2, start=processes) == EXIT_OK
    assert processes.started == [(arguments, None), (arguments, "4")]


@pytest.mark.parametrize(
    "outcomes",
    [
        [(EXIT_OUT_OF_MEMORY, {})],  # nothing is left to halve
        [(EXIT_LAUNCH, {0: note(4)})],
        [(EXIT_OUT_OF_MEMORY, {0: note(4)}), (EXIT_OUT_OF_MEMORY, {0: note(4)})],  # not smaller
    ],
)
def test_no_restart_if_a_smaller_batch_cannot_help(outcomes: list[Any]):
    processes = Processes(*outcomes)
    assert launch_with_smaller_batches(["train", "c.yaml"], 2, start=processes) == outcomes[-1][0]
    assert len(processes.started) == len(outcomes)

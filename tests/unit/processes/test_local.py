"""The launcher of one machine, with small programs in place of paratune."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from patience import PATIENCE_S, wait_for

from paratune.errors import EXIT_LAUNCH, EXIT_STOPPED
from paratune.processes import local
from paratune.processes.local import PROGRAM, launch

HEAD = """
import os, signal, sys, time
from pathlib import Path

rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])

def listen(handler=signal.SIG_DFL):
    # As StopRequest.install does.
    numbers = [getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "USR1", "USR2", "XCPU")]
    for number in numbers:
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

def ready():
    # Whole or not at all: others read it as soon as it is there.
    (folder / f"ready{rank}.tmp").write_text(str(os.getpid()))
    (folder / f"ready{rank}.tmp").rename(folder / f"ready{rank}")

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)

def rest():
    # In short sleeps: a signal that comes just before a sleep is handled after it.
    for _ in range(50_000):
        time.sleep(0.02)

def wait_for_death(other):
    stat = Path("/proc", (folder / f"ready{other}").read_text(), "stat")
    try:
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
    except (FileNotFoundError, ProcessLookupError):  # and the launcher has seen it
        pass
"""
Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Launch a small program in two processes; each has its rank and a shared folder."""

    def start(body: str, num_processes: int = 2, grace_s: float = PATIENCE_S) -> int:
        """Short times are for ranks that do not end by themselves."""
        monkeypatch.setattr(local, "GRACE_S", grace_s)
        monkeypatch.setattr(local, "STOP_GRACE_S", grace_s)
        return launch([str(tmp_path)], num_processes, program=program(tmp_path, body))

    return start


def program(folder: Path, body: str) -> list[str]:
    script = folder / "program.py"
    script.write_text(HEAD + textwrap.dedent(body))
    return [sys.executable, "-S", "-E", str(script)]


def is_alive(pid: int) -> bool:
    try:
        # A zombie that nobody waited for is dead.
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_success_is_0_and_each_process_has_its_rank(run: Run, tmp_path: Path):
    assert (
        run(
            """
            names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PARATUNE_RENDEZVOUS", "OMP_NUM_THREADS")
            (folder / f"place{rank}").write_text("\\n".join(os.environ[name] for name in names))
            """,
            3,
        )
        == 0
    )
    places = [(tmp_path / f"place{rank}").read_text().split("\n") for rank in range(3)]
    assert [place[:4] for place in places] == [[str(rank), str(rank), "3", "3"] for rank in range(3)]
    (rendezvous,) = {place[4] for place in places}
    assert not Path(rendezvous).parent.exists(), "the scratch folder is removed"
    assert all(int(place[5]) >= 1 for place in places)


def test_threads_are_divided_unless_they_are_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(local, "usable_cores", lambda: 8.5)  # a container's quota may be a fraction
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert local._environment(0, 3, tmp_path)["OMP_NUM_THREADS"] == "2"
    assert local._environment(0, 16, tmp_path)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setattr(local, "usable_cores", lambda: None)
    assert local._environment(0, 2, tmp_path)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert local._environment(0, 3, tmp_path)["OMP_NUM_THREADS"] == "5"


def test_processes_do_not_find_modules_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Whoever unpacks a folder of data with a torch.py in it and trains there must not run it.
    (tmp_path / "shadow.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = PROGRAM[: PROGRAM.index("-m")]
    result = subprocess.run([*python, "-c", "import shadow"], capture_output=True, text=True)
    assert "No module named 'shadow'" in result.stderr
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert subprocess.run([*python, "-c", "import shadow"]).returncode == 0


def test_the_words_of_a_rank_do_not_act_in_the_terminal(run: Run, capfd: pytest.CaptureFixture[str]):
    run("if rank == 1: sys.exit('column \\x1b[2J')")
    assert r"column \x1b[2J" in capfd.readouterr().err


def test_only_rank_0_speaks_when_all_is_well(run: Run, capfd: pytest.CaptureFixture[str]):
    assert run("print('out', rank); print('err', rank, file=sys.stderr)") == 0
    spoken = capfd.readouterr()
    assert (spoken.out, spoken.err) == ("out 0\n", "err 0\n")


def test_the_exit_code_and_messages_of_the_failed_rank_are_reported(run: Run, capfd: pytest.CaptureFixture[str]):
    code = run(
        """
        if rank == 1:
            print("error: train.csv is not there", file=sys.stderr)
            sys.exit(3)
        listen()
        rest()
        """,
        grace_s=0.5,
    )
    assert code == 3
    message = capfd.readouterr().err
    assert "rank 1 of 2 ended with exit code 3; the others were ended" in message
    assert "error: train.csv is not there" in message


def test_all_stacks_of_a_crashed_rank_are_printed(run: Run, capfd: pytest.CaptureFixture[str]):
    crash = "if rank == 1:\n    print(*range(250), sep='\\n', file=sys.stderr, flush=True)\n    os.abort()\n"
    run(f"{crash}rest()", grace_s=0.5)
    message = capfd.readouterr().err.splitlines()
    assert message[message.index("0") :] == [str(number) for number in range(250)]


def test_a_problem_of_all_ranks_is_printed_once(run: Run, capfd: pytest.CaptureFixture[str]):
    assert run("print('error: no such column', file=sys.stderr); sys.exit(3)") == 3
    assert capfd.readouterr().err == "error: no such column\n"


DEATHS = {
    "os._exit(9)": (9, "rank 1 of 2 ended with exit code 9"),
    "os.kill(os.getpid(), signal.SIGKILL)": (EXIT_LAUNCH, "rank 1 of 2 was killed by SIGKILL"),
    "os.abort()": (EXIT_LAUNCH, "rank 1 of 2 was killed by SIGABRT"),
}


@pytest.mark.parametrize("others", ["hear", "are deaf", "lose their peer", "say that they lost it"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_rank_that_dies_ends_the_others_quickly_and_is_named(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], death: str, others: str
):
    # Deaf: it waits in a collective, where signals (blocked at the start) are not handled.
    rest = {
        "hear": "listen(); ready(); rest()",
        "are deaf": "ready(); rest()",
        "lose their peer": "ready(); wait_for('ready1'); wait_for_death(1); raise RuntimeError('Connection closed')",
        "say that they lost it": "ready(); wait_for('ready1'); wait_for_death(1); sys.exit(5)",
    }[others]
    begin = time.monotonic()
    body = f"if rank == 0:\n    {rest}\nwait_for('ready0')\nready()\n{death}\n"
    code = run(body, grace_s=0.5 if others in ("hear", "are deaf") else PATIENCE_S)
    assert time.monotonic() - begin < PATIENCE_S
    expected, message = DEATHS[death]
    assert code == expected
    assert message in capfd.readouterr().err
    assert not is_alive(int((tmp_path / "ready0").read_text()))


def test_a_killed_rank_is_named_before_the_errors_of_the_others(
    run: Run, capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    code = run(
        """
        if rank == 1:
            print("its last words", file=sys.stderr, flush=True)
            ready()
            os.kill(os.getpid(), signal.SIGKILL)
        listen(signal.SIG_IGN)
        # As `cli.main` waits for the launcher: until it has seen how the other one ended, and a while.
        wait_for("ready1")
        while Path("/proc", (folder / "ready1").read_text()).exists():
            time.sleep(0.01)
        time.sleep(1.0)
        print("error: rank 0 of 2 lost another one", file=sys.stderr)
        sys.exit(5)
        """
    )
    assert code == EXIT_LAUNCH
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        "rank 1 of 2 was killed by SIGKILL; the others are ended",
        "its last words",
        "error: rank 0 of 2 lost another one",
    ]


@pytest.fixture
def poke(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Send signals to this process once all ranks are ready."""
    pokers: list[subprocess.Popen[bytes]] = []

    def start(*numbers: signal.Signals, to: str = "launcher") -> None:
        target = "os.getppid()" if to == "launcher" else f"int((folder / 'ready{to}').read_text())"
        script = tmp_path / "poker.py"
        script.write_text(
            HEAD + "wait_for('ready0'); wait_for('ready1')\n"
            f"for number in {[int(number) for number in numbers]}:\n"
            f"    os.kill({target}, number)\n"
        )
        pokers.append(subprocess.Popen([sys.executable, "-S", str(script), str(tmp_path)], env={"RANK": "-1"}))

    yield start
    for poker in pokers:
        poker.kill()
        poker.wait()


@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("number", local.STOP_SIGNALS)
def test_signals_are_forwarded_and_75_is_returned(
    run: Run, poke: Callable[..., None], tmp_path: Path, number: signal.Signals
):
    before = signal.getsignal(number)
    poke(number)
    code = run(
        """
        got = []
        def note(number, frame):
            got.append(number)  # once the other rank has stopped, the launcher sends SIGTERM as well
            (folder / f"got{rank}").write_text(signal.Signals(got[0]).name)
            sys.exit(75)
        listen(note)
        ready()
        rest()
        """
    )
    assert code == EXIT_STOPPED
    assert [(tmp_path / f"got{rank}").read_text() for rank in range(2)] == [number.name] * 2
    assert signal.getsignal(number) == before


def test_a_signal_before_the_handler_is_delivered_later(run: Run, poke: Callable[..., None], tmp_path: Path):
    poke(signal.SIGUSR1)
    code = run(
        """
        ready()
        time.sleep(1.0)  # imports
        def note(number, frame):
            (folder / f"got{rank}").write_text("")
            sys.exit(75)
        listen(note)
        rest()
        """
    )
    assert code == EXIT_STOPPED
    assert (tmp_path / "got0").exists()
    assert (tmp_path / "got1").exists()


def test_a_signal_to_one_rank_stops_all(run: Run, poke: Callable[..., None]):
    poke(signal.SIGTERM, to="0")
    code = run(
        """
        listen(lambda number, frame: sys.exit(75))
        ready()
        rest()
        """
    )
    assert code == EXIT_STOPPED


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_lost_a_stopped_rank_has_not_failed(run: Run, capfd: pytest.CaptureFixture[str], stopped: int):
    """As where a signal ends one rank while they find each other."""
    code = run(
        f"""
        ready()
        if rank == {stopped}:
            sys.exit(75)
        wait_for("ready{stopped}")
        wait_for_death({stopped})
        print("error: lost another one", file=sys.stderr)
        sys.exit(5)
        """
    )
    assert code == EXIT_STOPPED
    how = f"rank {1 - stopped} of 2 ended with exit code 5; another one was stopped"
    # Rank 0 speaks for itself.
    words = [how, "error: lost another one"]
    assert capfd.readouterr().err.splitlines() == (words if stopped == 0 else words[::-1])


FIRST_TO_FAIL = """
if rank == 1:
    print("error: the real problem", file=sys.stderr)
    ready()
    sys.exit(5)
wait_for("ready1")
while Path("/proc", (folder / "ready1").read_text()).exists():  # until the launcher has seen it
    time.sleep(0.01)
sys.exit(75)
"""


def test_a_rank_that_failed_before_another_was_stopped_has_failed(run: Run, capfd: pytest.CaptureFixture[str]):
    assert run(FIRST_TO_FAIL) == EXIT_LAUNCH
    assert capfd.readouterr().err.splitlines() == [
        "rank 1 of 2 ended with exit code 5; the others were ended",
        "error: the real problem",
    ]


def test_after_a_signal_to_all_a_rank_that_lost_another_may_be_the_first_to_end(
    run: Run, poke: Callable[..., None], capfd: pytest.CaptureFixture[str]
):
    poke(signal.SIGTERM)
    wait = """
        heard = []
        listen(lambda number, frame: heard.append(number))
        (folder / f"ready{rank}").write_text(str(os.getpid()))
        while not heard:
            time.sleep(0.01)
        (folder / f"ready{rank}").rename(folder / f"heard{rank}")
        wait_for(f"heard{1 - rank}")
        """
    assert run(textwrap.dedent(wait) + FIRST_TO_FAIL) == EXIT_STOPPED
    assert capfd.readouterr().err.splitlines() == [
        "rank 1 of 2 ended with exit code 5; another one was stopped",
        "error: the real problem",
    ]


class Scripted:
    """A process that ends at a look of the launcher; 0 is the one after its first wait."""

    def __init__(self, looks: list[int], at: int, code: int) -> None:
        self.looks, self.at, self.code, self.got = looks, at, code, list[int]()

    def poll(self) -> int | None:
        return self.code if len(self.looks) > self.at else None

    def send_signal(self, number: int) -> None:
        self.got.append(number)


@pytest.mark.parametrize(
    ("ends", "signal_at", "expected"),
    [
        ([(0, 5), (0, 75)], None, []),  # one poll does not show which was first
        ([(0, 75), (0, 5)], None, []),
        ([(0, 75), (1, 5)], None, []),
        ([(1, 5), (0, 75)], None, []),
        ([(0, 5), (1, 75)], None, [0]),
        ([(1, 75), (0, 5)], None, [1]),
        ([(0, 5), (2, 5), (1, 75)], None, [0]),  # the second of them lost a peer
        ([(1, 5), (2, 75)], 1, []),  # a signal had been passed on
        ([(0, 5), (2, 75)], 1, [0]),  # one came later
        ([(1, 5), (2, -signal.SIGTERM)], 0, []),  # ended by the signal, where it did not listen yet
        ([(1, 5), (1, 0)], 0, [0]),  # none was stopped
        ([(0, 75), (1, 5), (2, 3)], None, [2]),  # codes of their own are failures whenever they come
        ([(0, 75), (1, 1)], None, [1]),
        ([(0, 75), (1, -signal.SIGKILL)], None, [1]),
    ],
)
def test_the_order_tells_a_loss_from_a_failure(
    monkeypatch: pytest.MonkeyPatch, ends: list[tuple[int, int]], signal_at: int | None, expected: list[int]
):
    looks: list[int] = []
    ranks = local._Ranks()

    def wait(_: float) -> None:
        if len(looks) == signal_at:
            ranks.send(signal.SIGTERM)
        looks.append(len(looks))

    monkeypatch.setattr(local.time, "sleep", wait)
    for number, (at, code) in enumerate(ends):
        ranks.add(local._Rank(number, cast("subprocess.Popen[bytes]", Scripted(looks, at, code)), None))
    assert [rank.number for rank in local._wait(ranks)] == expected


KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("failed", "named", "expected"),
    [
        ([(2, 3), (1, 4)], 2, 3),  # of equal ones, the one that was detected first
        ([(1, 4), (2, 3)], 1, 4),
        ([(2, 1), (1, 3)], 1, 3),  # a specific code explains a traceback
        ([(2, EXIT_LAUNCH), (1, 1)], 1, 1),  # a traceback explains a lost peer
        ([(2, EXIT_LAUNCH), (1, 1), (3, 3)], 3, 3),
        ([(2, 3), (1, KILLED)], 1, EXIT_LAUNCH),  # being killed explains everything else
        ([(2, KILLED), (1, KILLED)], 2, EXIT_LAUNCH),
        ([(0, 3), (1, 3)], None, 3),  # rank 0 has printed the same
        ([(0, 1), (1, 1)], 0, 1),  # two tracebacks need not be the same
        ([(0, 4), (1, 3)], None, 4),
        ([(1, 3), (0, 4)], 1, 3),
    ],
)
def test_the_rank_that_explains_the_others_is_named(
    capfd: pytest.CaptureFixture[str], failed: list[tuple[int, int]], named: int | None, expected: int
):
    process = cast("subprocess.Popen[bytes]", None)
    assert local._explain([local._Rank(number, process, None, code) for number, code in failed], 4) == expected
    printed = re.findall(r"^rank (\d) of 4", capfd.readouterr().err, re.MULTILINE)
    # One that was killed is named as soon as that is seen, before all have ended.
    assert printed == ([] if named is None or dict(failed)[named] < 0 else [str(named)])


def test_a_checkpoint_that_takes_long_is_waited_for(run: Run, poke: Callable[..., None], tmp_path: Path):
    poke(signal.SIGTERM)
    code = run(
        """
        def save(number, frame):
            time.sleep(1.5)  # longer than any grace
            (folder / f"saved{rank}").write_text("")
            wait_for(f"saved{1 - rank}")
            sys.exit(75)
        listen(save)
        ready()
        rest()
        """,
        grace_s=0.5,
    )
    assert code == EXIT_STOPPED
    assert (tmp_path / "saved0").exists()
    assert (tmp_path / "saved1").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of the parent")
def test_no_process_survives_the_launcher(tmp_path: Path):
    body = "listen(); ready(); rest()"
    arguments = f"[{str(tmp_path)!r}], 2, program={program(tmp_path, body)!r}"
    code = f"from paratune.processes.local import launch; launch({arguments})"
    launcher = subprocess.Popen([sys.executable, "-c", code])
    try:
        files = [tmp_path / f"ready{rank}" for rank in range(2)]
        wait_for(lambda: all(file.exists() for file in files))
        pids = [int(file.read_text()) for file in files]
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_a_single_failed_process_prints_its_own_error(run: Run, capfd: pytest.CaptureFixture[str]):
    assert run("print('error: that', file=sys.stderr); sys.exit(2)", 1) == 2
    assert capfd.readouterr().err == "error: that\n"


def test_the_program_is_paratune(monkeypatch: pytest.MonkeyPatch):
    started: list[Any] = []

    def note(command: list[str], **options: Any) -> None:
        started.append((command, options["env"]["RANK"]))
        raise OSError("no processes in this test")

    monkeypatch.setattr(local.subprocess, "Popen", note)
    with pytest.raises(OSError, match="no processes"):
        launch(["train", "run.yaml"], 2)
    assert started == [([sys.executable, "-P", "-m", "paratune", "train", "run.yaml"], "0")]
    assert os.environ.get("RANK") is None

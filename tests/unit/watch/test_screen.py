"""The view on a terminal: its words, its width and height, and names that would act in it."""

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from watched import NOW

from paratune.watch.board import BoardView, SweepView
from paratune.watch.run import RunView
from paratune.watch.screen import Screen

RUN = RunView(
    name="imdb-ddp",
    folder="runs/imdb-ddp",
    state="training",
    since=NOW,
    host="node17",
    strategy="ddp",
    device="cuda",
    world_size=2,
    step=50,
    num_steps=200,
    loss=0.25,
    learning_rate=5e-5,
    tokens_per_s=12345.0,
    samples_per_s=96.4,
    memory_bytes=3 * 2**29,
    scores={"accuracy": 0.9, "f1": 0.8, "f1_macro": 0.8},
    scored_at=40,
    scored_on="validation",
    left_s=75.0,
)


def drawn(view: BoardView, width: int = 100, height: int | None = None, encoding: str = "utf-8") -> list[str]:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=buffer, width=width, force_terminal=False)
    console.print(Screen(view, height=height, footer="Ctrl-C"))
    buffer.flush()
    return buffer.buffer.getvalue().decode(encoding).split("\n")[:-1]


def ended(name: str, state: str, **more) -> RunView:
    return RunView(name, f"runs/m/runs/{name}", state, **more)


def sweep_of(name: str, *runs: RunView, **more) -> SweepView:
    counts = Counter("running" if run.is_running else run.state for run in runs)
    return SweepView(name, f"runs/{name}", True, runs, counts, **more)


def board(*runs: RunView, sweeps: tuple[SweepView, ...] = (), **others: int) -> BoardView:
    return BoardView(NOW, runs, sweeps, others, ("runs",))


def test_a_run_in_full():
    lines = drawn(board(RUN, finished=95))
    assert lines[0].endswith("1 running   95 finished")
    assert lines[2:-1] == [
        "imdb-ddp   training   step 50 of 200 (25.0%)   about 1 min 15 s left",
        "  validation at step 40: accuracy 0.9, f1_macro 0.8   loss 0.25   learning rate 5e-05",
        "  12,345 tokens/s   96.4 samples/s   memory 1.5 GiB   ddp   2 ranks   cuda   node17",
    ]


def test_the_scores_of_a_finished_run_are_of_its_kept_step():
    run = replace(RUN, metric="f1", scores={"accuracy": 0.9, "f1": 0.8, "f1_macro": 0.82}, state="finished")
    text = "\n".join(drawn(board(replace(run, total_s=1.0))))
    assert "validation at kept step 40: f1 0.8, accuracy 0.9" in text
    assert "training loss at the last step 0.25" in text


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    long = replace(RUN, name="n" * 300, reason="r" * 300, state="failed")
    failed = (ended(f"{'c' * 80}{number}", "failed", reason="why " * 100, total_s=60.0) for number in range(3))
    sweep = sweep_of("m" * 200, *failed, RUN, left_s=3600.0)
    assert max(map(len, drawn(board(RUN, long, sweeps=(sweep,)), width))) <= width


@pytest.mark.parametrize("height", [6, 12, 24, 50])
def test_many_runs_fit_into_the_height(height: int):
    runs = tuple(replace(RUN, name=f"run{number:03}", folder=f"runs/{number:03}") for number in range(100))
    lines = drawn(board(*runs), 80, height)
    assert len(lines) <= height
    assert "100 running" in lines[0]
    assert "more" in "\n".join(lines)
    assert lines[-1] == "Ctrl-C"


@pytest.mark.parametrize("height", range(4, 16))
def test_runs_and_matrices_without_a_line_are_counted(height: int):
    runs = tuple(replace(RUN, name=f"run{number}", folder=f"runs/{number}") for number in range(3))
    sweeps = tuple(sweep_of(f"m{number}", RUN) for number in range(7))
    lines = drawn(board(*runs, sweeps=sweeps), 100, height)
    assert len(lines) <= height
    num_shown = sum(line.startswith(("run", "m")) for line in lines)
    num_counted = sum(int(line.split()[2]) for line in lines if line.startswith("... and"))
    assert num_shown + num_counted == 10


def test_those_that_do_not_fit_whole_keep_a_line_each():
    runs = tuple(replace(RUN, name=f"run{number}", folder=f"runs/{number}") for number in range(4))
    lines = drawn(board(*runs), 100, 12)
    assert [any(f"run{number}   training" in line for line in lines) for number in range(4)] == [True] * 4
    assert all(line.startswith("run") for line in lines[2:-1])


def test_names_do_not_act_in_the_terminal():
    name = "a\x1b[31m\n\u202eb[bold]c[/bold]"
    hostile = replace(RUN, name=name, reason=name, scores={name: 1.0}, host=name)
    sweep = sweep_of(name, ended(name, "failed", reason=name), problem=name)
    text = "\n".join(drawn(board(hostile, sweeps=(sweep,))))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a\\x1b[31m\\n\\u202eb[bold]c[/bold]" in text


def test_a_terminal_without_blocks_gets_ascii():
    text = "\n".join(drawn(board(replace(RUN, name="ação", reason="r" * 300)), encoding="ascii"))
    assert "a??o   training" in text


CURVES = replace(
    RUN,
    losses=[(step, 2.0 - step / 50) for step in range(1, 51)],
    evaluations=[(25, {"loss": 1.5, "accuracy": 0.5}), (50, {"loss": 1.0, "accuracy": 0.75})],
)


@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24)])
def test_a_run_alone_has_its_curves_in_the_free_lines(width: int, height: int):
    lines = drawn(board(CURVES), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    plot = [line for line in lines if "│" in line]
    assert len(plot) == min(28, height - len(drawn(board(RUN), width, height)) - 3)  # a space, the titles and the steps
    # Loss from 2 - 1/50 to 1, accuracy from 0.5 to 0.75, with a mark for each of two evaluations of each curve.
    assert plot[0].split("│")[0].strip() == "1.98"
    assert plot[-1].split("│")[0].strip() == "1"
    left = width // 2 - 1
    assert [plot[row][left:].split("│")[0].strip() for row in (0, -1)] == ["0.75", "0.5"]
    assert sum(line.count("●") for line in plot) == 4
    # The loss falls: its dots go from the top left to the bottom right.
    dots = [[at for at, cell in enumerate(line[:left]) if 0x2800 < ord(cell) <= 0x28FF] for line in plot]
    assert min(dots[0]) < min(dots[-1])
    assert max(dots[0]) < max(dots[-1])


@pytest.mark.parametrize("view", [board(CURVES, RUN), board(CURVES, sweeps=(sweep_of("m", RUN),)), board(RUN)])
def test_several_runs_and_printed_views_have_no_curves(view: BoardView):
    assert "│" not in "".join(drawn(view, 200, 50))
    assert "│" not in "".join(drawn(board(CURVES)))
    assert "│" not in "".join(drawn(board(CURVES), 100, 40, encoding="ascii"))
    assert "│" not in "".join(drawn(board(CURVES), 20, 40))  # too narrow


def test_no_run_is_running():
    assert drawn(board())[1] == "nothing is running below runs"


def test_a_matrix_shows_problems_first():
    done = tuple(ended(f"done{number}", "finished", total_s=60.0) for number in range(40))
    sweep = sweep_of("table6", *done, ended("bad", "failed", reason="the loss is nan\ntry less"), RUN, left_s=600.0)
    lines = drawn(board(sweeps=(sweep,)))
    assert "1 running" in lines[0]
    assert "table6   matrix running   40 finished   1 failed   1 running   about 10 min 00 s left" in lines
    assert lines.index("  bad   failed   the loss is nan") > next(
        number for number, line in enumerate(lines) if line.startswith("  imdb-ddp   training")
    )
    assert "  ... and 15 more" in lines


def test_a_killed_run_has_the_time_of_its_last_event(tmp_path: Path):
    view = BoardView(NOW + 90, (replace(RUN, state="killed", reason="no process trains it"),), ())
    assert any("1 min 30 s ago" in line for line in drawn(view))


def matrix_of(num_finished: int, num_waiting: int, *running: str) -> SweepView:
    done = (ended(f"done{at}", "finished", total_s=60.0, scores={"accuracy": 0.5}) for at in range(num_finished))
    todo = (ended(f"todo{at}", "waiting") for at in range(num_waiting))
    now = (replace(RUN, name=name) for name in running)
    return sweep_of("table6", *done, ended("bad", "failed", reason="why"), *now, *todo, left_s=600.0)


@pytest.mark.parametrize("num_running", [1, 8])
def test_a_matrix_fills_80_columns_and_24_lines(num_running: int):
    sweep = matrix_of(18, 8, *(f"now{at}" for at in range(num_running)))
    lines = drawn(board(sweeps=(sweep,)), 80, 24)
    assert 20 <= len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert sum("step 50 of 200" in line for line in lines) == num_running
    assert sum("1 min 15 s left" in line for line in lines) == num_running
    assert next(line for line in lines if line.startswith("  bad ")).split() == ["bad", "failed", "why"]
    assert lines[-1] == "Ctrl-C"


def test_two_matrices_share_a_terminal():
    sweeps = (matrix_of(30, 5, "first"), replace(matrix_of(30, 5, "second"), name="table7"))
    lines = drawn(board(sweeps=sweeps), 80, 24, encoding="ascii")
    assert len(lines) <= 24
    assert sum(line.startswith("  bad ") for line in lines) == 2


@pytest.mark.parametrize("height", range(4, 30))
def test_a_matrix_never_exceeds_the_terminal(height: int):
    lines = drawn(board(RUN, sweeps=(matrix_of(100, 100, "a", "b"), matrix_of(3, 3))), 80, height)
    assert len(lines) <= height


LONG = replace(RUN, name="bert-base_learning_rate-0.0001_batch-16_seed-41", state="finished", total_s=90.0, left_s=None)


@pytest.mark.parametrize(("width", "num_fitting"), [(60, 2), (80, 3), (100, 3), (120, 4), (160, 5)])
def test_values_of_a_line_are_whole_or_left_out(width: int, num_fitting: int):
    lines = drawn(board(sweeps=(sweep_of("m", LONG),)), width)
    everything = [LONG.name, "finished", "took 1 min 30 s", "validation accuracy 0.9", "step 50 of 200 (25.0%)"]
    at = next(number for number, line in enumerate(lines) if "bert" in line)
    assert lines[at].strip().split("   ")[:num_fitting] == everything[:num_fitting]
    # The time and the score of the run are on the next line, where they do not fit.
    assert " ".join(everything[:4]) in " ".join(" ".join(lines[at:-1]).split())


@pytest.mark.parametrize("length", [4, 20, 34, 60])
@pytest.mark.parametrize("scores", [{"accuracy": 0.9123}, {"loss": 0.5, "f1": 0.8, "accuracy": 0.9123}])
def test_each_finished_run_of_a_full_screen_has_its_time_and_its_score(length: int, scores: dict[str, float]):
    done = [
        replace(LONG, name=f"{at:02}{'n' * (length - 4)}{at:02}", scores=scores, metric="accuracy", total_s=111.0)
        for at in range(18)
    ]
    lines = drawn(board(sweeps=(sweep_of("m", *done),)), 80, 24)[3:-1]
    assert len(lines) == 18
    for at, line in enumerate(lines):
        name, *rest = line.strip().split("   ")
        assert rest[:3] == ["finished", "took 1 min 51 s", "validation accuracy 0.9123"]
        assert (name[:2], name[-2:], len(line) <= 80) == (f"{at:02}", f"{at:02}", True)


@pytest.mark.parametrize(
    ("states", "is_running", "shown"),
    [
        (("finished", "finished"), False, "matrix finished"),
        (("finished", "skipped"), False, "matrix finished"),
        (("finished", "failed"), False, "matrix not running"),
        (("finished", "waiting"), False, "matrix not running"),
        (("finished", "finished"), True, "matrix running"),  # its report is written
    ],
)
def test_the_state_of_a_matrix(states: tuple[str, ...], is_running: bool, shown: str):
    sweep = replace(sweep_of("m", *(ended(state, state) for state in states)), is_running=is_running)
    assert drawn(board(sweeps=(sweep,)))[2].split("   ")[1] == shown


def test_a_name_that_does_not_fit_keeps_both_ends():
    (line,) = (line for line in drawn(board(sweeps=(sweep_of("m", LONG),)), 40) if "seed" in line)
    name, state = line.split()
    assert (name[:5], name[-7:], "…" in name, state) == ("bert-", "seed-41", True, "finished")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_reason_of_a_damaged_run_is_whole_if_there_is_room(width: int):
    reason = f"summary.json is damaged: time.train_s is 'fast' ({'why ' * 30}end)"
    bad = ended("bad", "damaged", reason=f"runs/m/runs/bad/{reason}", strategy="ddp")
    sweep = sweep_of("m", *(ended(f"done{at}", "finished") for at in range(3)), bad)
    text = " ".join(" ".join(drawn(board(sweeps=(sweep,)), width)).split())
    assert f"bad damaged {reason} done0 finished" in text


def test_the_reason_of_a_damaged_run_is_cut_between_words_if_there_is_not():
    bad = [ended(f"bad{at}", "damaged", reason="summary.json is damaged: " + "why " * 30) for at in range(9)]
    lines = [line for line in drawn(board(sweeps=(sweep_of("m", *bad),)), 80, 16) if line.startswith("  bad")]
    assert [line.split()[:3] for line in lines] == [[f"bad{at}", "damaged", "summary.json"] for at in range(9)]
    assert all(line.rstrip("…").endswith("why") for line in lines)


def test_losses_whose_difference_is_no_float_have_a_curve():
    lines = drawn(board(replace(CURVES, losses=[(1, 1.7e308), (2, -1.7e308)], evaluations=[])), 80, 40)
    plot = [line for line in lines if "│" in line]
    assert (plot[0].split("│")[0].strip(), plot[-1].split("│")[0].strip()) == ("1.7e+308", "-1.7e+308")
    assert max(map(len, lines)) <= 80

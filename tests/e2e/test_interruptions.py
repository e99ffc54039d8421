"""Signals and kills at every moment of a run: it ends as documented; a resumed run equals an uninterrupted one."""

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU

import pytest
from harness import Cli
from hooks import SignalAt, TwiceAt
from outcome import outcome, steps_of
from patience import wait_for
from raised import check_shown
from safetensors.torch import load_file, save_file
from world import CONFIG, rows_of, write_data

from paratune.errors import EXIT_CHECKPOINT, EXIT_OK, EXIT_STOPPED
from paratune.records import read_json

pytestmark = pytest.mark.slow  # each test starts several processes

SPLIT = "data.split={validation: 0.2, test: 0.2, stratify: true}"
OFTEN = "evaluate={every: steps, steps: 7, best: accuracy, batch_size: 4}"
TRAIN = ("train", "c.yaml", "--set", SPLIT, "--set", OFTEN)
"""24 steps with dropout: evaluations after steps 7, 14, 21 and 24, checkpoints after 4, 8, ..., 24."""

LOOP, SAVE = "paratune.engine.loop:_step", "paratune.checkpoint:save"
PREDICT = "paratune.strategies.single:SingleStrategy.predict"
ENCODE = "paratune.data.encode:_call"

MOMENTS: dict[str, tuple[SignalAt, int | None]] = {
    "SIGTERM in the first step": (SignalAt(SIGTERM, LOOP, 1), 1),
    "SIGTERM in a step": (SignalAt(SIGTERM, LOOP, 6), 6),
    "SIGINT in a step": (SignalAt(SIGINT, LOOP, 11), 11),
    "SIGUSR1 after a step": (SignalAt(SIGUSR1, LOOP, 13, after=True), 13),
    "SIGHUP in a step": (SignalAt(SIGHUP, LOOP, 3), 3),
    "SIGUSR2 in a step": (SignalAt(SIGUSR2, LOOP, 4), 4),
    "SIGXCPU in a step": (SignalAt(SIGXCPU, LOOP, 8), 8),
    "SIGTERM in the last step": (SignalAt(SIGTERM, LOOP, 24), 24),
    # An evaluation is interrupted and repeated: a long one must not use up the time that a batch system allows.
    "SIGUSR1 at the start of an evaluation": (SignalAt(SIGUSR1, PREDICT, 1), 7),
    "SIGTERM within an evaluation": (SignalAt(SIGTERM, PREDICT, 15), 14),
    "SIGINT within the last evaluation": (SignalAt(SIGINT, PREDICT, 38), 24),
    "SIGTERM in the evaluation of the best model": (SignalAt(SIGTERM, PREDICT, 43), 24),
    "SIGTERM in a checkpoint": (SignalAt(SIGTERM, SAVE, 1), 5),
    "SIGUSR1 while tokenizing": (SignalAt(SIGUSR1, ENCODE, 1), None),
    "SIGTERM while tokenizing the second split": (SignalAt(SIGTERM, ENCODE, 2, after=True), None),
    "SIGINT before the data is read": (SignalAt(SIGINT, "paratune.training.prepare:load_tokenizer"), None),
}
"""Time of the signal, and the step whose checkpoint is then saved."""

KILLS = {
    "while tokenizing": SignalAt(SIGKILL, ENCODE, 2),
    "before run.json": SignalAt(SIGKILL, "paratune.training.run:run_record"),
    "before the first checkpoint": SignalAt(SIGKILL, LOOP, 3),
    "in a step": SignalAt(SIGKILL, LOOP, 15),
    "in an evaluation": SignalAt(SIGKILL, PREDICT, 15),
    "in a checkpoint, after its tensors": SignalAt(SIGKILL, "paratune.checkpoint:_write_manifest", 2),
    "before the rename of a checkpoint": SignalAt(SIGKILL, "paratune.checkpoint:_write_manifest", 3, after=True),
    "in the snapshot of the best model": SignalAt(
        SIGKILL, "paratune.engine.keeper:RunKeeper._save_best", 1, after=True
    ),
    "in the evaluation of the best model": SignalAt(SIGKILL, PREDICT, 45),
    "before the model is saved": SignalAt(SIGKILL, "paratune.training.finish:save_model"),
    "before the summary": SignalAt(SIGKILL, "paratune.training.finish:summarise"),
}

FAST = {
    *("SIGTERM in a step", "SIGTERM within an evaluation", "SIGTERM in a checkpoint", "SIGUSR1 while tokenizing"),
    *("while tokenizing", "in a step", "in a checkpoint, after its tensors", "before the summary"),
}
"""Cases of the fast suite; each case takes 2 to 9 s."""


def cases(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> dict[str, object]:
    """The outcome of the run without interruptions."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "model").symlink_to(tiny_folder / "model")
    write_data(folder / "data.csv")
    (folder / "c.yaml").write_text(CONFIG)
    result = Cli(folder, {"PARATUNE_CACHE": str(folder / "cache")})(*TRAIN)
    assert result.code == EXIT_OK, result.stderr
    whole = outcome(folder / "runs" / "c")
    assert len(whole["steps"]) == 24
    return whole


@pytest.mark.parametrize("moment", cases(MOMENTS))
def test_a_signal_saves_and_resuming_is_the_same_run(
    moment: str, world: Path, cli: Cli, undisturbed: dict[str, object]
):
    hook, step = MOMENTS[moment]
    stopped = cli(*TRAIN, hook=hook)

    assert stopped.code == EXIT_STOPPED, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert f"stopped by {hook.number.name}" in stopped.stderr
    run = world / "runs" / "c"
    assert run.exists() == (step is not None)
    if step is not None:
        assert steps_of(run)[-1]["step"] == step
        assert (run / "checkpoints" / f"step_{step:06d}" / "manifest.json").exists()
        assert f"after step {step}; a checkpoint was saved" in stopped.stderr
        assert not (run / "summary.json").exists()

    resumed = cli(*TRAIN, "--resume")
    assert resumed.code == EXIT_OK, resumed.stderr
    assert outcome(run) == undisturbed


def test_new_weights_are_logged_at_the_start_of_training(world: Path, cli: Cli):
    model = world / "headless"
    shutil.copytree((world / "model").resolve(), model)
    weights = load_file(model / "model.safetensors")
    body = {name: value for name, value in weights.items() if not name.startswith("classifier.")}
    save_file(body, model / "model.safetensors", metadata={"format": "pt"})
    train = (*TRAIN, "--set", "model.name=headless")
    stopped = cli(*train, hook=SignalAt(SIGTERM, LOOP, 1))
    assert stopped.code == EXIT_STOPPED, stopped.stderr
    assert "new weights, which headless does not have: classifier.bias, classifier.weight" in stopped.stderr
    # The checkpoint contains them.
    stopped = cli(*train, "--resume", hook=SignalAt(SIGTERM, LOOP, 1))
    assert stopped.code == EXIT_STOPPED, stopped.stderr
    assert "new weights" not in stopped.stderr


@pytest.mark.parametrize("moment", cases(KILLS))
def test_a_killed_run_resumes_from_its_last_complete_checkpoint(
    moment: str, world: Path, cli: Cli, undisturbed: dict[str, object]
):
    killed = cli(*TRAIN, hook=KILLS[moment])
    assert killed.code == -SIGKILL, killed.stderr

    resumed = cli(*TRAIN, "--resume")

    assert resumed.code == EXIT_OK, resumed.stderr
    assert outcome(world / "runs" / "c") == undisturbed
    left = [path.name for path in (world / "runs" / "c").rglob("*") if path.name.endswith(".tmp")]
    assert left == []
    assert [path.name for path in (world / "cache").rglob("*") if path.name.endswith(".tmp")] == []


def test_a_killed_run_on_several_files_resumes(world: Path, cli: Cli, undisturbed: dict[str, object]):
    head, *rows = rows_of(world / "data.csv")
    for name, part in (("first.csv", rows[:130]), ("second.csv", rows[130:])):
        (world / name).write_text("\n".join([head, *part]) + "\n")
    train = (*TRAIN, "--set", "data.train=[first.csv, second.csv]")
    killed = cli(*train, hook=KILLS["in a step"])
    assert killed.code == -SIGKILL, killed.stderr

    other = cli(*TRAIN, "--resume", "--set", "data.train=[second.csv, first.csv]")
    assert other.code == EXIT_CHECKPOINT
    check_shown(
        other.stderr,
        "run.other_configuration",
        "data.train: ['first.csv', 'second.csv']",
        "['second.csv', 'first.csv']",
    )
    (world / "second.csv").rename(world / "away.csv")
    (world / "second.csv").write_text("\n".join([head, *rows[131:]]) + "\n")
    fewer = cli(*train, "--resume")
    assert fewer.code == EXIT_CHECKPOINT
    check_shown(fewer.stderr, "run.other_configuration", "data.train", "first.csv + second.csv")
    (world / "away.csv").rename(world / "second.csv")

    resumed = cli(*train, "--resume")
    assert resumed.code == EXIT_OK, resumed.stderr
    assert "resuming after step 12" in resumed.stderr
    assert outcome(world / "runs" / "c") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_signals_and_kills_at_random_moments(seed: int, world: Path, cli: Cli, undisturbed: dict[str, object]):
    """Three interruptions per run at random times, which the lists above may not contain."""
    draw = random.Random(seed)
    codes = []
    for _ in range(3):
        running = cli.start(*TRAIN, "--resume")
        running.join(draw.uniform(0.2, 1.0))
        running.send(draw.choice([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGKILL]))
        codes.append(running.wait().code)
        if codes[-1] == EXIT_OK:
            break
    # Before paratune installs its handlers, a signal has its default effect: 130 is Ctrl-C.
    assert set(codes) <= {EXIT_OK, EXIT_STOPPED, -SIGKILL, -SIGTERM, -SIGHUP, -SIGUSR1, 130}, codes
    if codes[-1] != EXIT_OK:
        result = cli(*TRAIN, "--resume")
        assert result.code == EXIT_OK, result.stderr

    assert outcome(world / "runs" / "c") == undisturbed, codes


def test_a_second_ctrl_c_ends_at_once(world: Path, cli: Cli):
    result = cli(*TRAIN, hook=TwiceAt(SIGINT, LOOP, 3))

    assert result.code == 130
    assert "Traceback" not in result.stderr
    assert "a second Ctrl-C ends at once" in result.stderr
    assert not (world / "runs" / "c" / "checkpoints").exists()


def _truncate_tensors(folder: Path) -> None:
    path = folder / "tensors.00000.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _flip_a_byte(folder: Path) -> None:
    path = folder / "tensors.00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)


def _truncate_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])


def _drop_progress(folder: Path) -> None:
    (folder / "progress.json").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated tensors": (_truncate_tensors, "tensors.00000.safetensors has"),
    "a flipped bit": (_flip_a_byte, "tensors.00000.safetensors does not match its SHA-256"),
    "truncated manifest": (_truncate_manifest, "manifest.json is damaged"),
    "missing progress": (_drop_progress, "progress.json is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(
    damage: str, world: Path, cli: Cli, undisturbed: dict[str, object]
):
    assert cli(*TRAIN, hook=SignalAt(SIGTERM, LOOP, 15)).code == EXIT_STOPPED
    run = world / "runs" / "c"
    newest = run / "checkpoints" / "step_000015"
    apply_damage, message = DAMAGES[damage]
    apply_damage(newest)

    resumed = cli(*TRAIN, "--resume")

    assert resumed.code == EXIT_OK, resumed.stderr
    assert "step_000015" in resumed.stderr
    assert message in resumed.stderr
    check_shown(resumed.stderr, "checkpoint.skipped")
    assert "resuming after step 12" in resumed.stderr
    assert outcome(run) == undisturbed


def test_without_a_complete_checkpoint_nothing_is_deleted(world: Path, cli: Cli):
    assert cli(*TRAIN, hook=SignalAt(SIGTERM, LOOP, 3)).code == EXIT_STOPPED
    run = world / "runs" / "c"
    _truncate_tensors(run / "checkpoints" / "step_000003")
    before = (run / "events.rank0000.jsonl").read_bytes()

    resumed = cli(*TRAIN, "--resume")

    assert resumed.code == EXIT_CHECKPOINT
    check_shown(resumed.stderr, "checkpoint.none_whole", "1", "--overwrite")
    assert (run / "events.rank0000.jsonl").read_bytes() == before


def test_an_interrupted_tokenization_leaves_a_cache_that_works(world: Path, cli: Cli):
    write_data(world / "data.csv", num_rows=3000)
    stopped = cli("data", "c.yaml", hook=SignalAt(signal.SIGKILL, ENCODE, 3))
    assert stopped.code == -SIGKILL
    assert list((world / "cache" / "tokens").glob("*.tmp")) != []

    repeated = cli("data", "c.yaml", "--json")

    assert repeated.code == EXIT_OK, repeated.stderr
    assert repeated.json["splits"]["train"]["num_rows"] == 2400
    assert list((world / "cache" / "tokens").glob("*.tmp")) == []


def test_two_processes_tokenize_the_same_data_once(world: Path, cli: Cli):
    first, second = cli.start("data", "c.yaml", "--json"), cli.start("data", "c.yaml", "--json")
    item, other = first.wait(), second.wait()

    assert (item.code, other.code) == (EXIT_OK, EXIT_OK)
    assert item.json == other.json
    assert len([path for path in (world / "cache" / "tokens").iterdir() if path.is_dir()]) == 2


def test_an_existing_run_folder_is_not_changed(world: Path, cli: Cli):
    assert cli(*TRAIN, "--set", "train.epochs=1").code == EXIT_OK
    run = world / "runs" / "c"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    result = cli(*TRAIN, "--set", "train.epochs=1")
    assert result.code == EXIT_CHECKPOINT
    check_shown(result.stderr, "run.exists", "run.name")
    # If a batch system starts the job again, the job must not count as failed.
    repeated = cli(*TRAIN, "--set", "train.epochs=1", "--resume", "--json")
    assert repeated.code == EXIT_OK, repeated.stderr
    assert "runs/c is already finished: nothing was done" in repeated.stderr
    assert repeated.json == read_json(run / "summary.json")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    assert cli(*TRAIN, "--overwrite").code == EXIT_OK
    assert len(steps_of(run)) == 24


def test_a_run_with_other_settings_is_not_resumed(world: Path, cli: Cli):
    assert cli(*TRAIN, hook=SignalAt(SIGTERM, LOOP, 5)).code == EXIT_STOPPED

    other = cli(*TRAIN, "--resume", "--set", "train.learning_rate=1e-4")
    assert other.code == EXIT_CHECKPOINT
    check_shown(other.stderr, "run.other_configuration", "train.learning_rate: 0.003", "0.0001")

    write_data(world / "data.csv", seed=1)
    changed = cli(*TRAIN, "--resume")
    assert changed.code == EXIT_CHECKPOINT, changed.stderr
    check_shown(changed.stderr, "run.other_configuration", "data.train")


def test_a_folder_in_use_is_refused(world: Path, cli: Cli):
    running = cli.start(*TRAIN, "--set", "train.epochs=20000")
    wait_for(lambda: (world / "runs" / "c" / "run.json").exists())

    second = cli(*TRAIN, "--set", "train.epochs=20000", "--resume")
    running.send(SIGTERM)

    assert second.code == EXIT_CHECKPOINT
    check_shown(second.stderr, "run.in_use")
    assert running.wait().code == EXIT_STOPPED


def test_a_finished_run_that_lost_its_summary_gets_it_again_with_the_same_model(
    world: Path, cli: Cli, undisturbed: dict[str, object]
):
    run = world / "runs" / "c"
    assert cli(*TRAIN).code == EXIT_OK
    (run / "summary.json").unlink()
    resumed = cli(*TRAIN, "--resume")
    assert resumed.code == EXIT_OK, resumed.stderr
    assert outcome(run) == undisturbed


def _change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] = 0xFF
    path.write_bytes(content)


def test_a_run_with_a_damaged_run_json_does_not_resume(world: Path, cli: Cli):
    assert cli(*TRAIN, hook=SignalAt(SIGTERM, LOOP, 11)).code == EXIT_STOPPED
    _change_a_byte(world / "runs" / "c" / "run.json")
    assert "[run.damaged]" in cli(*TRAIN, "--resume").stderr


@pytest.mark.parametrize("name", ["events.rank0000.jsonl"])
def test_a_run_with_damaged_events_still_resumes(name: str, world: Path, cli: Cli, undisturbed: dict[str, object]):
    run = world / "runs" / "c"
    stopped = cli(*TRAIN, hook=SignalAt(SIGTERM, LOOP, 11))
    assert stopped.code == EXIT_STOPPED, stopped.stderr
    _change_a_byte(run / name)
    resumed = cli(*TRAIN, "--resume")
    assert resumed.code == EXIT_OK, resumed.stderr
    assert name in resumed.stderr
    lost = json.loads((run / "summary.json").read_text())["num_lost_events"]
    assert lost == (name != "run.json")
    saved = [key for key in undisturbed if not (lost and key in ("steps", "evaluations"))]
    assert {key: outcome(run)[key] for key in saved} == {key: undisturbed[key] for key in saved}

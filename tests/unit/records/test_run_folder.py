"""The folder of a run: when it may be used, and by whom."""

import errno
import fcntl
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from raised import raises_code

from paratune.records import RUN_FILE, SUMMARY_FILE, read_json, write_json
from paratune.records.run_folder import (
    LOCK_FILE,
    check_same_run,
    check_usable,
    take_folder,
    trained_fingerprint,
)

CONFIG = {
    "run": {"name": "a", "folder": "runs", "seed": 1},
    "train": {"epochs": 2, "learning_rate": 1e-4},
    "batch": {"global": 8, "micro_batch_size": 4},
    "strategy": {"kind": "single"},
    "data": {"train": "train.csv", "cache_dir": None},
    "precision": "fp32",
}


def begun(folder: Path, *, finished: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    record = {
        "config": CONFIG,
        "batch": {"global_batch_size": 8},
        "data": {
            "train": {"source": "train.csv", "fingerprint": "abc"},
            "validation": {"source": "dev.csv", "fingerprint": "def"},
            "test": None,
        },
    }
    (folder / RUN_FILE).write_text(json.dumps(record))
    if finished:
        (folder / SUMMARY_FILE).write_text("{}")
    return folder


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
def test_a_missing_or_empty_folder_may_be_used(tmp_path: Path, mode: Any):
    check_usable(tmp_path / "absent", mode)
    check_usable(tmp_path, mode)


def test_an_unfinished_run_may_be_resumed_or_overwritten(tmp_path: Path):
    folder = begun(tmp_path / "run")
    check_usable(folder, "resume")
    check_usable(folder, "overwrite")
    with raises_code("run.exists", "unfinished", "--resume", "--overwrite", folder=folder):
        check_usable(folder, "new")


def test_a_finished_run_may_only_be_overwritten(tmp_path: Path):
    folder = begun(tmp_path / "run", finished=True)
    check_usable(folder, "overwrite")
    with raises_code("run.exists", "run.name", "--overwrite", folder=folder):
        check_usable(folder, "new")
    with raises_code("run.finished", "run.name", folder=folder):
        check_usable(folder, "resume")


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
def test_files_of_others_are_never_changed(tmp_path: Path, mode: Any):
    (tmp_path / "thesis.tex").write_text("important")
    with raises_code("output.foreign", "run.json", "run.name", folder=tmp_path):
        check_usable(tmp_path, mode)
    assert (tmp_path / "thesis.tex").read_text() == "important"


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
def test_files_of_a_process_that_was_killed_at_once_do_not_matter(tmp_path: Path, mode: Any):
    for name in (LOCK_FILE, "log.rank0000.txt", "events.rank0001.jsonl", ".run.json.99999999.tmp"):
        (tmp_path / name).write_text("")
    check_usable(tmp_path, mode)


def test_a_folder_that_cannot_be_read_is_not_one_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read all
    with raises_code("run.damaged", folder=tmp_path):
        check_usable(tmp_path, "new")


def test_a_file_with_the_name_of_the_folder_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with raises_code("output.foreign", tmp_path / "file", "run.name"):
        check_usable(tmp_path / "file", "overwrite")
    with raises_code("output.foreign", tmp_path / "file", "run.folder", folder=tmp_path / "file" / "run"):
        check_usable(tmp_path / "file" / "run", "new")


def same(folder: Path, *, size: int = 8, prints: Mapping[str, str] | None = None, **changes: Any) -> None:
    values = json.loads(json.dumps(CONFIG))
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values[section][name] = value
        else:
            values[section] = value
    check_same_run(folder, values, global_batch_size=size, fingerprints=prints or {"train": "abc", "validation": "def"})


def test_options_that_do_not_change_the_training_may_change(tmp_path: Path):
    folder = begun(tmp_path / "run")
    same(folder)
    same(folder, strategy={"kind": "ddp", "bucket_cap_mb": 1.0}, precision="bf16")
    same(folder, run__folder="elsewhere", data__cache_dir="/cache", batch__micro_batch_size=2)
    same(folder, batch={"per_device": 2, "grad_accum_steps": 2})  # 8 samples a step on two ranks, as before


FREE = [
    *("run.folder", "run.name", "run.hang_timeout_s", "run.callbacks"),
    *("strategy.kind", "device.kind", "precision", "measure.warmup_steps", "trackers.kind", "checkpoint.every_steps"),
    *("data.cache_dir", "data.figures", "data.num_workers", "data.prefetch_factor"),
    *("evaluate.batch_size", "batch.micro_batch_size"),
    *("train.activation_checkpointing", "train.compile", "train.deterministic"),
]
FIXED = ["run.seed", "data.max_length", "evaluate.best", "evaluate.every_steps", "train.learning_rate", "model.name"]


@pytest.mark.parametrize(("key", "is_free"), [*((key, True) for key in FREE), *((key, False) for key in FIXED)])
def test_every_option_that_may_differ_when_a_run_is_resumed(tmp_path: Path, key: str, is_free: bool):
    folder = begun(tmp_path / "run")
    section, _, name = key.partition(".")
    changed = {**CONFIG, section: {**cast("dict[str, Any]", CONFIG.get(section, {})), name: 7} if name else 7}
    assert (trained_fingerprint(changed) == trained_fingerprint(CONFIG)) is is_free
    if is_free:
        check_same_run(folder, changed)
    else:
        with raises_code("run.other_configuration", f"{key}: ", "7"):
            check_same_run(folder, changed)


def test_a_run_is_not_resumed_with_a_teacher_that_was_trained_again(tmp_path: Path):
    folder = begun(tmp_path / "run")
    record = read_json(folder / RUN_FILE)
    write_json(folder / RUN_FILE, {**record, "teachers": [{"name": "t", "inputs_sha256": "1"}]})
    check_same_run(folder, CONFIG, teachers={"t": "1"})
    with raises_code("run.other_configuration", "distil.teacher", "t"):
        check_same_run(folder, CONFIG, teachers={"t": "2"})


def test_a_run_is_not_resumed_with_a_changed_file_of_own_code(tmp_path: Path):
    folder = begun(tmp_path / "run")
    code = {"task.loss": {"function": "my:loss", "options": {}, "sha256": "ab" * 32}}
    check_same_run(folder, CONFIG, own_code=code)  # an older record has none
    check_same_run(tmp_path / "absent", CONFIG, own_code=code)  # --resume also starts a run
    (folder / RUN_FILE).write_text(json.dumps(json.loads((folder / RUN_FILE).read_text()) | {"own_code": code}))
    check_same_run(folder, CONFIG, own_code=code)
    check_same_run(folder, CONFIG, own_code={})
    with raises_code("run.other_configuration", "task.loss", "my:loss", folder=folder):
        check_same_run(folder, CONFIG, own_code={"task.loss": {**code["task.loss"], "sha256": "cd" * 32}})


@pytest.mark.parametrize("option", ["run.callbacks[0]", "data.train: my:rows"])
def test_a_run_is_resumed_with_a_corrected_callback_or_data_set(tmp_path: Path, option: str):
    folder = begun(tmp_path / "run")
    code = {option: {"function": "my:own", "options": {}, "sha256": "ab" * 32}}
    write_json(folder / RUN_FILE, {**read_json(folder / RUN_FILE), "own_code": code})
    check_same_run(folder, CONFIG, own_code={option: {**code[option], "sha256": "cd" * 32}})


def test_unknown_values_are_not_compared(tmp_path: Path):
    check_same_run(tmp_path, CONFIG)  # no run there
    folder = begun(tmp_path / "run")
    check_same_run(folder, CONFIG)
    with raises_code("run.other_configuration", "run.seed: 1", "2"):
        check_same_run(folder, {**CONFIG, "run": {**CONFIG["run"], "seed": 2}})


def test_options_that_change_the_training_are_all_listed(tmp_path: Path):
    folder = begun(tmp_path / "run")
    with raises_code("run.other_configuration", folder) as caught:
        same(
            folder,
            train__learning_rate=2e-4,
            run__seed=2,
            data__train="other.csv",
            precision="bf16",
            size=16,
            prints={"train": "xyz", "validation": "def"},
        )
    text = str(caught.value)
    for line in (
        "train.learning_rate: 0.0001 then, 0.0002 now",
        "run.seed: 1 then, 2 now",
        "data.train: 'train.csv' then, 'other.csv' now",
        "global batch: 8 samples then, 16 now",
        "data.train: the content of train.csv",
    ):
        assert line in text
    assert "precision" not in text


def test_a_missing_split_is_an_error(tmp_path: Path):
    with raises_code("run.other_configuration", "data.validation", "dev.csv"):
        same(begun(tmp_path / "run"), prints={"train": "abc"})


def test_weights_of_16_bits_are_another_experiment(tmp_path: Path):
    values = {"train": {"epochs": 1}, "strategy": {"kind": "zero3"}, "precision": "bf16"}

    def key(**strategy: Any) -> str:
        return trained_fingerprint({**values, "strategy": strategy})

    plain = key(kind="ddp")
    assert key(kind="zero3", param_dtype="fp32") == key(kind="zero3") == plain
    assert len({plain, key(kind="zero3", param_dtype="bf16"), key(kind="deepspeed", param_dtype="fp16")}) == 3
    # Whichever engine keeps them.
    assert key(kind="deepspeed", stage=3, param_dtype="bf16") == key(kind="zero2", param_dtype="bf16")


def test_a_run_is_not_resumed_with_weights_of_16_bits(tmp_path: Path):
    folder = begun(tmp_path / "run")
    half = {"kind": "zero3", "param_dtype": "bf16"}
    same(folder, strategy={"kind": "zero3", "param_dtype": "fp32"})
    with raises_code("run.other_configuration", "strategy.param_dtype: 'fp32'", "'bf16'"):
        same(folder, strategy=half)


@pytest.mark.parametrize(
    "change",
    [
        *({"config": 3}, {"data": 3}, {"data": {"train": "a"}}, {"data": {"train": {"source": "train.csv"}}}),
        *({"batch": None}, {"teachers": 3}, {"teachers": [{}]}, {"teachers": ["a"]}),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, change: Any):
    folder = begun(tmp_path / "run")
    record = json.loads((folder / RUN_FILE).read_text())
    for text in ("{", "{}", json.dumps(record | change)):
        (folder / RUN_FILE).write_text(text)
        with raises_code("run.damaged", "run.json"):
            same(folder)


def test_taking_makes_the_folder_and_a_lock(tmp_path: Path):
    lock = take_folder(tmp_path / "runs" / "a", "new")
    assert (tmp_path / "runs" / "a").is_dir()
    lock.release()
    take_folder(tmp_path / "runs" / "a", "resume").release()


def test_overwriting_empties_the_folder(tmp_path: Path):
    folder = begun(tmp_path / "run", finished=True)
    (folder / "checkpoints" / "step_000001").mkdir(parents=True)
    # The second process checks again when it has the lock: the run may be finished by then.
    with raises_code("run.exists"):
        take_folder(folder, "new")
    assert (folder / RUN_FILE).exists()
    take_folder(folder, "overwrite").release()
    assert {path.name for path in folder.iterdir()} <= {LOCK_FILE}


LOCKS_FOLDER = """
import sys
from pathlib import Path
from paratune.records.run_folder import take_folder
lock = take_folder(Path(sys.argv[1]), "resume")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
def test_two_processes_cannot_train_in_one_folder(tmp_path: Path, mode: Any):
    folder = begun(tmp_path / "run")
    other = subprocess.Popen(
        [sys.executable, "-c", LOCKS_FOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "locked\n"
        with raises_code("run.in_use"):
            take_folder(folder, mode)
        with raises_code("run.in_use"):
            check_usable(folder, mode)  # before anything slow
        assert (folder / RUN_FILE).exists()
    finally:
        other.kill()  # however it dies, the lock goes with it
        other.communicate()
    take_folder(folder, "resume" if mode == "new" else mode).release()


def test_ranks_can_check_the_folder_at_the_same_time(tmp_path: Path):
    folder = begun(tmp_path / "run")
    take_folder(folder, "resume").release()
    with (folder / LOCK_FILE).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as `check_usable` of another rank does for a moment
        check_usable(folder, "resume")


def test_a_folder_on_a_full_disk_is_an_error_at_once_without_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check_usable(tmp_path / "runs" / "a", "new")
    assert list(tmp_path.iterdir()) == []
    tried = []

    def refuse(dir: Path) -> None:
        tried.append(dir)
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with raises_code("output.not_writable", "Read-only file system", "run.folder", folder=tmp_path / "runs" / "a"):
        check_usable(tmp_path / "runs" / "a", "new")
    assert tried == [tmp_path], "where the folder would be made"


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with raises_code("output.not_writable"):
        take_folder(tmp_path / "file" / "run", "new")


def test_overwriting_deletes_a_link_and_not_its_target(tmp_path: Path):
    folder = begun(tmp_path / "run")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "step_000001").touch()
    (folder / "checkpoints").symlink_to(tmp_path / "scratch")
    take_folder(folder, "overwrite").release()
    assert [path.name for path in folder.iterdir()] == [LOCK_FILE]
    assert (tmp_path / "scratch" / "step_000001").exists()


@pytest.mark.parametrize("num_deleted", [0, 1, 2, 3, 4])
def test_a_process_that_is_killed_while_it_overwrites_leaves_a_folder_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_deleted: int
):
    class Killed(BaseException):
        pass

    folder = begun(tmp_path / "run", finished=True)
    for name in ("events.rank0000.jsonl", "log.rank0000.txt"):
        (folder / name).write_text("")
    unlink, calls = Path.unlink, []

    def kill(path: Path, *, missing_ok: bool = False) -> None:
        calls.append(path.name)
        if len(calls) == num_deleted + 1:
            raise Killed
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kill)
        with pytest.raises(Killed):
            take_folder(folder, "overwrite")
    assert (folder / RUN_FILE).exists()
    assert calls[0] == SUMMARY_FILE
    (folder / LOCK_FILE).unlink()
    check_usable(folder, "overwrite")
    take_folder(folder, "overwrite").release()
    assert [path.name for path in folder.iterdir()] == [LOCK_FILE]


def test_a_process_that_is_killed_while_it_deletes_checkpoints_leaves_none_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def kill(path: Path) -> None:
        raise KeyboardInterrupt

    folder = begun(tmp_path / "run")
    (folder / "checkpoints" / "step_000001").mkdir(parents=True)
    (folder / "checkpoints" / "step_000001" / "manifest.json").touch()
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", kill)
        with pytest.raises(KeyboardInterrupt):
            take_folder(folder, "overwrite")
    assert not (folder / "checkpoints").exists()
    assert (folder / RUN_FILE).exists()
    (folder / LOCK_FILE).unlink()
    take_folder(folder, "resume").release()
    assert {path.name for path in folder.iterdir()} == {RUN_FILE, LOCK_FILE}


def test_the_order_of_sums_may_change_when_a_run_is_resumed(tmp_path: Path):
    folder = begun(tmp_path / "run")
    other = {**CONFIG, "train": {**CONFIG["train"], "deterministic": False}}
    check_same_run(folder, other)
    assert trained_fingerprint(other) == trained_fingerprint(CONFIG)

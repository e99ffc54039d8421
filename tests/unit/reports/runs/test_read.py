"""Reading run folders: what is damaged is refused by name, what is not finished is listed."""

import pytest
from make_run import edit_json, make_run
from raised import raises_code

from paratune.errors import CheckpointError
from paratune.reports.runs.read import read_runs


def test_read_runs_keeps_the_order_given(tmp_path):
    folders = [make_run(tmp_path / name) for name in ("b", "a")]
    assert [run.name for run in read_runs(folders).runs] == ["b", "a"]


def test_read_runs_lists_an_unfinished_run_and_how_far_it_came(tmp_path):
    found = read_runs([make_run(tmp_path / "a"), make_run(tmp_path / "cut", num_steps=100, finished=False)])
    assert [run.name for run in found.runs] == ["a"]
    assert found.unfinished[0].name == "cut"
    assert "step 50 of 100" in found.unfinished[0].reason


def test_read_runs_names_the_signal_that_stopped_a_run(tmp_path):
    cut = make_run(tmp_path / "cut", finished=False)
    with (cut / "events.rank0000.jsonl").open("a") as file:
        file.write('{"event": "stop", "time": 1, "step": 112, "signal": "SIGTERM"}\n')
    assert "SIGTERM" in read_runs([make_run(tmp_path / "a"), cut]).unfinished[0].reason


def test_read_runs_names_the_command_that_measures_a_form(tmp_path):
    form = make_run(tmp_path / "fp32", finished=False)
    edit_json(form / "run.json", kind="form")
    reason = read_runs([make_run(tmp_path / "a"), form]).unfinished[0].reason
    assert "paratune compress" in reason
    assert "--resume" not in reason


def test_read_runs_refuses_when_no_run_is_finished(tmp_path):
    with raises_code("run.not_found", "step 112", "225"):
        read_runs([make_run(tmp_path / "cut", finished=False)])


def test_read_runs_refuses_an_empty_list():
    with raises_code("run.not_found"):
        read_runs([])


def test_read_runs_shows_a_folder_given_twice_once(tmp_path):
    folder = make_run(tmp_path / "a")
    again = tmp_path / "x" / ".." / "a"
    found = read_runs([folder, again, again, folder])
    assert len(found.runs) == 1
    assert [(str(folder) in note, " 4 " in note) for note in found.notes] == [(True, True)]


def test_read_runs_keeps_the_certificates_among_runs_apart(tmp_path):
    certificate = tmp_path / "a.certificate"
    certificate.mkdir()
    (certificate / "certificate.json").write_text("{}")
    found = read_runs([make_run(tmp_path / "a"), certificate])
    assert [run.folder for run in found.runs] == [tmp_path / "a"]
    assert [certificate.name in note for note in found.notes] == [True]  # it is damaged
    with raises_code("run.not_found", "a.certificate: a"):
        read_runs([certificate])


def test_read_runs_names_the_logs_of_finished_runs_that_lost_steps(tmp_path):
    whole, torn, without = (make_run(tmp_path / name, num_steps=20) for name in ("whole", "torn", "without"))
    log = torn / "events.rank0000.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    (without / "events.rank0000.jsonl").unlink()
    found = read_runs([whole, torn, without])
    (warning,) = found.warnings
    assert warning.startswith(f"{log} has 19 of 20 steps, {without}/events.rank0000.jsonl has 0 of 20 steps. ")
    assert found.notes == ()


@pytest.mark.parametrize(("rank", "content"), [(0, None), (0, b""), (1, None), (1, b'{"event": "step", "ti')])
def test_the_log_of_any_rank_may_be_lost(tmp_path, rank, content):
    log = make_run(tmp_path / "a", world_size=2, num_steps=20) / f"events.rank{rank:04d}.jsonl"
    assert read_runs([log.parent]).warnings == ()
    log.unlink() if content is None else log.write_bytes(content)
    assert [f"{log} has 0 of 20 steps" in warning for warning in read_runs([log.parent]).warnings] == [True]


def test_a_rank_that_only_some_sessions_had_lacks_nothing(tmp_path):
    log = make_run(tmp_path / "a", world_size=2, num_steps=20) / "events.rank0001.jsonl"
    edit_json(log.parent / "run.json", sessions=[{"step": 0, "world_size": 2}, {"step": 9, "world_size": 1}])
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:9]))
    assert read_runs([log.parent]).warnings == ()


@pytest.mark.parametrize("step", ["[1]", "{}", "true"])
def test_read_runs_does_not_count_steps_without_a_number(tmp_path, step):
    log = make_run(tmp_path / "a", num_steps=20) / "events.rank0000.jsonl"
    with log.open("a") as file:
        file.write(f'{{"event": "step", "time": 1.0, "step": {step}}}\n')
    assert read_runs([log.parent]).warnings == ()


def test_read_runs_adds_folders_to_equal_ids(tmp_path):
    folders = [make_run(tmp_path / parent / "same", seed=seed) for seed, parent in enumerate(("x", "y"))]
    assert [run.name for run in read_runs(folders).runs] == ["x/same", "y/same"]


def test_read_runs_reports_all_problems_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    other, torn = make_run(tmp_path / "other"), make_run(tmp_path / "torn")
    edit_json(other / "run.json", schema_version=99)
    (torn / "summary.json").write_text('{"schema_version": 1, ')
    folders = [tmp_path / "nowhere", tmp_path / "empty", tmp_path / "file", other, torn, make_run(tmp_path / "good")]
    with pytest.raises(CheckpointError) as error:
        read_runs(folders)
    text = str(error.value)
    assert "5 of 6" in text
    for part in ("nowhere does not exist", "empty is not a run", "file is a file", "schema_version 99", "damaged"):
        assert part in text
    assert str(torn / "summary.json") in text
    assert "good" not in text


def test_the_runs_of_a_matrix_without_its_record_are_named(tmp_path):
    make_run(tmp_path / "m" / "runs" / "a")
    with raises_code("run.not_found", "runs/a", str(tmp_path / "m" / "runs" / "a")):
        read_runs([tmp_path / "m"])


def test_read_runs_names_the_runs_in_a_folder_of_runs(tmp_path):
    make_run(tmp_path / "runs" / "a")
    with raises_code("run.not_found", "1"):
        read_runs([tmp_path / "runs"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((text, "run.damaged") for text in ("[]", "3", "null", '{"schema_version": 1}', "[" * 100_000)),
        ('{"schema_version": "1"}', "run.other_version"),
    ],
)
def test_read_runs_refuses_a_run_file_that_is_no_record(tmp_path, text, code):
    folder = make_run(tmp_path / "a")
    (folder / "run.json").write_text(text)
    with raises_code(code, "a/run.json"):
        read_runs([folder])


@pytest.mark.parametrize(
    "line", ["not json", "[1]", '{"no": "event"}', "null", '{"event": "step", "time": 1.0, "step": 9, \0\0}']
)
def test_read_runs_refuses_events_that_are_none(tmp_path, line):
    folder = make_run(tmp_path / "a")
    with (folder / "events.rank0000.jsonl").open("a") as file:
        file.write(line + "\n")
    with raises_code("run.damaged", "events.rank0000.jsonl"):
        read_runs([folder])


def test_read_runs_leaves_out_a_torn_last_line(tmp_path):
    folder = make_run(tmp_path / "a")
    with (folder / "events.rank0000.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert read_runs([folder]).warnings == ()


@pytest.mark.parametrize("value", ["fast", [1], True, {}])
def test_a_number_of_another_type_is_damaged(tmp_path, value):
    folder = make_run(tmp_path / "a", summary_changes={"time.train_s": value})
    with raises_code("run.damaged", "summary.json", "time.train_s"):
        read_runs([folder])


def test_number_of_an_absent_field_is_none(tmp_path):
    run = read_runs([make_run(tmp_path / "a", summary_changes={"time": None})]).runs[0]
    assert run.summary.time.train_s is None

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_work import dies, dies_at_3, dies_once, even, marked, process_id, refuses
from raised import raises_code

from paratune.console import Display
from paratune.corpus.stage import Processes, Stage, begin, is_finished, run_stage, stage_tables

SCHEMA = pa.schema([("number", pa.int64())])
DISPLAY = Display(speaks=False)


def stage(folder, work=even, settings=1):
    return Stage("odd", folder, SCHEMA, work, settings, [1])


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


INPUTS = [(0, 3), (3, 3), (3, 10)]


def test_rows_are_kept_or_dropped_with_the_reason(tmp_path):
    totals = run_stage(stage(tmp_path / "a"), INPUTS, workers=1, display=DISPLAY)
    assert (totals["shards"], totals["kept"], totals["dropped"]) == (3, 5, {"odd": 5})
    kept_rows = [pq.read_table(path)["number"].to_pylist() for path in stage_tables(tmp_path / "a")]
    assert kept_rows == [[0, 2], [], [4, 6, 8]]
    dropped = pq.read_table(tmp_path / "a" / "dropped-00000.parquet").to_pylist()
    assert dropped == [{"id": None, "url": "u1", "reason": "odd", "detail": "1"}]


def test_any_number_of_workers_gives_the_same_files(tmp_path):
    for workers in (1, 2, 3):
        run_stage(stage(tmp_path / str(workers)), INPUTS, workers=workers, display=DISPLAY)
    assert files(tmp_path / "1") == files(tmp_path / "2") == files(tmp_path / "3")
    assert "stage.json" in files(tmp_path / "1")


def test_a_finished_stage_is_not_made_again_and_a_changed_one_is(tmp_path):
    run_stage(stage(tmp_path / "a"), INPUTS, workers=1, display=DISPLAY)
    before = files(tmp_path / "a")
    run_stage(stage(tmp_path / "a", refuses), INPUTS, workers=1, display=DISPLAY)
    assert files(tmp_path / "a") == before
    changed = stage(tmp_path / "a", settings=2)
    assert not is_finished(changed)
    assert run_stage(changed, INPUTS[:1], workers=1, display=DISPLAY)["shards"] == 1
    assert not (tmp_path / "a" / "part-00001.parquet").exists()


def test_an_interrupted_deletion_leaves_no_record_of_missing_shards(tmp_path, monkeypatch):
    run_stage(stage(tmp_path / "a"), INPUTS, workers=1, display=DISPLAY)
    before, unlinked, unlink = files(tmp_path / "a"), [], Path.unlink

    def killed(path):
        if len(unlinked) == 5:
            raise KeyboardInterrupt
        unlinked.append(path.name)
        unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            begin(stage(tmp_path / "a", settings=2))
    # The earlier settings again: missing shards are made.
    assert {"stage.json", *(f"counts-0000{n}.json" for n in range(3))} < set(unlinked)
    run_stage(stage(tmp_path / "a"), INPUTS, workers=1, display=DISPLAY)
    assert files(tmp_path / "a") == before


def test_an_interrupted_stage_resumes(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    inputs = [(str(marks), number) for number in range(3)]
    whole = run_stage(stage(tmp_path / "a", marked), inputs, workers=1, display=DISPLAY)
    before = files(tmp_path / "a")
    # As a process leaves it that is killed while it writes the second shard.
    for name in ("stage.json", "counts-00001.json"):
        (tmp_path / "a" / name).unlink()
    (tmp_path / "a" / "part-00001.parquet").write_bytes(b"torn")
    (tmp_path / "a" / ".part-00001.parquet.99999999.tmp").write_bytes(b"torn")
    assert run_stage(stage(tmp_path / "a", marked), inputs, workers=1, display=DISPLAY) == whole
    assert files(tmp_path / "a") == before
    assert sorted(path.name[0] for path in marks.iterdir()) == ["0", "1", "1", "2"]


def test_a_worker_that_dies_is_replaced(tmp_path):
    inputs = [(str(tmp_path / "flag"), number) for number in range(4)]
    totals = run_stage(stage(tmp_path / "a", dies_once), inputs, workers=2, display=DISPLAY)
    assert totals["kept"] == 4
    assert (tmp_path / "flag").exists()


def process_ids(folder, tables, processes, *, is_slow=False):
    made = Stage("odd", folder, SCHEMA, process_id, 1, [1], is_slow)
    run_stage(made, [(table,) for table in tables], workers=processes, display=DISPLAY)
    return {pq.read_table(path)["number"][0].as_py() for path in stage_tables(folder)}


def test_all_stages_have_the_same_processes(tmp_path):
    with Processes(2) as processes:
        first, second = (process_ids(tmp_path / name, [tmp_path] * 8, processes) for name in ("a", "b"))
    assert len(first) == 2
    assert second <= first
    assert os.getpid() not in first


def test_small_tables_start_no_process(tmp_path):
    tables = [tmp_path / "x.parquet", tmp_path / "y.parquet"]
    for table in tables:
        table.write_bytes(bytes(50))
    own = {os.getpid()}
    with Processes(2, small_bytes=101) as processes:
        assert process_ids(tmp_path / "small", tables, processes) == own
        assert not process_ids(tmp_path / "network", tables, processes, is_slow=True) & own
        # Processes that run are used.
        assert not process_ids(tmp_path / "again", tables, processes) & own
    with Processes(2, small_bytes=100) as processes:
        assert not process_ids(tmp_path / "large", tables, processes) & own


def test_one_input_that_kills_every_worker_ends_the_stage_and_not_the_command(tmp_path):
    # After the first death, one shard is left: this process must not make it.
    with raises_code("corpus.shards_failed", "3"), Processes(2) as processes:
        run_stage(
            stage(tmp_path / "a", dies_at_3), [(number,) for number in range(4)], workers=processes, display=DISPLAY
        )


def test_an_input_that_kills_every_worker_is_named(tmp_path):
    with raises_code("corpus.shards_failed", "3", "0", "7"):
        run_stage(stage(tmp_path / "a", dies), [(7,), (8,)], workers=2, display=DISPLAY)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_an_input_leaves_no_partial_files(tmp_path, workers):
    with raises_code("data.empty", "input 0 is bad"):
        run_stage(stage(tmp_path / "a", refuses), [(0,), (0,)], workers=workers, display=DISPLAY)
    # A process that was ended may leave what it had begun, aside; the next start deletes it.
    assert [name for name in files(tmp_path / "a") if not name.startswith(".")] == ["begun.json"]


def test_parts_of_an_unfinished_stage_are_refused(tmp_path):
    begin(stage(tmp_path / "a"))
    with raises_code("corpus.not_finished", name="a"):
        stage_tables(tmp_path / "a")


@pytest.mark.parametrize("folder", ["1_lisbon/3_extract", "1_lisbon/3_extract/2_other", "work/4_clean/2_language"])
def test_the_missing_stage_is_named_in_any_folder(tmp_path, folder):
    name = "clean" if "clean" in folder else "extract"
    with raises_code("corpus.not_finished", name, name, "--only"):
        stage_tables(tmp_path / folder)


def test_a_folder_with_other_files_is_not_changed(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with raises_code("output.foreign"):
        begin(stage(tmp_path))
    assert (tmp_path / "thesis.txt").exists()


def test_the_output_hash_depends_only_on_the_rows(tmp_path):
    result = [run_stage(stage(tmp_path / str(n), settings=n), INPUTS, workers=1, display=DISPLAY) for n in (1, 2)]
    assert result[0]["output"] == result[1]["output"]
    assert result[0]["fingerprint"] != result[1]["fingerprint"]
    assert json.loads((tmp_path / "1" / "stage.json").read_text()) == result[0]

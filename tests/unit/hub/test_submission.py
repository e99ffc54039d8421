"""Tables of a submission, and the zip that has them."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raised import raises_code
from whole_records import WHOLE_RUN

from paratune.config.glue import GLUE
from paratune.hub.submission import TABLES, run_tables, table_text, write_tables


def test_names_and_sizes_are_those_of_the_benchmark():
    # The file names on gluebenchmark.com/faq; num_examples of the test splits on the data card of nyu-mll/glue.
    assert {name: table.num_rows for name, table in TABLES.items()} == {
        "CoLA.tsv": 1063,
        "SST-2.tsv": 1821,
        "MRPC.tsv": 1725,
        "STS-B.tsv": 1379,
        "QQP.tsv": 390965,
        "MNLI-m.tsv": 9796,
        "MNLI-mm.tsv": 9847,
        "QNLI.tsv": 5463,
        "RTE.tsv": 3000,
        "WNLI.tsv": 146,
        "AX.tsv": 1104,
    }
    assert {table.task for table in TABLES.values()} == set(GLUE)


@pytest.mark.parametrize(
    ("name", "values", "written"),
    [
        ("RTE.tsv", ["not_entailment", "entailment"], ["not_entailment", "entailment"]),
        ("WNLI.tsv", ["entailment", "not_entailment"], ["1", "0"]),
        ("MRPC.tsv", ["not_equivalent", "equivalent"], ["0", "1"]),
        ("CoLA.tsv", ["acceptable", "0"], ["1", "0"]),
        ("QQP.tsv", ["duplicate", "not_duplicate"], ["1", "0"]),
        ("SST-2.tsv", ["positive", "negative"], ["1", "0"]),
        ("QNLI.tsv", ["entailment"], ["entailment"]),
        ("MNLI-mm.tsv", ["neutral", "contradiction"], ["neutral", "contradiction"]),
        ("AX.tsv", ["entailment"], ["entailment"]),
        ("STS-B.tsv", [3.14159, -0.2, 5.2, 5], ["3.142", "0.000", "5.000", "5.000"]),
    ],
)
def test_predictions_are_written_with_the_words_of_the_benchmark(name, values, written):
    text = table_text(name, values, Path("here"))
    assert text.splitlines() == ["index\tprediction", *(f"{row}\t{word}" for row, word in enumerate(written))]


@pytest.mark.parametrize(
    ("name", "values", "refused"),
    [
        ("RTE.tsv", ["entailment", None, "entailment"], ("submission.invalid", "1 of 3")),
        ("RTE.tsv", ["LABEL_1"], ("submission.invalid", "row 0", "LABEL_1", "RTE", "ent")),
        ("STS-B.tsv", ["good"], ("submission.invalid", "STS-B.tsv")),
        ("STS-B.tsv", [float("nan")], ("submission.invalid", "STS-B.tsv")),
        ("STS-B.tsv", [None], ("submission.invalid", "STS-B.tsv")),
    ],
)
def test_predictions_that_make_no_table_are_refused(name, values, refused):
    with raises_code(*refused):
        table_text(name, values, Path("p"))


def test_the_archive_is_reproducible(tmp_path):
    texts = {"WNLI.tsv": "index\tprediction\n0\t1\n", "RTE.tsv": "index\tprediction\n0\tentailment\n"}
    for name in ("a.zip", "b.zip"):
        write_tables(tmp_path / name, texts)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == texts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]
    with raises_code("output.not_writable"):
        write_tables(tmp_path / "no" / "a.zip", texts)


def make_run(folder: Path, glue: str | None, sets: dict[str, list[Any]], *, num_dropped: int = 0) -> Path:
    data: dict[str, Any] = {"train": {"num_rows": 9, "num_dropped": {}}, "test": None}
    for name, values in sets.items():
        data[name] = {"num_rows": len(values), "num_dropped": {"text": num_dropped} if num_dropped else {}}
    folder.mkdir()
    (folder / "run.json").write_text(
        json.dumps({**WHOLE_RUN, "task": {"kind": "classification", "glue": glue}, "data": data})
    )
    (folder / "summary.json").write_text("{}")
    for name, values in sets.items():
        table = pa.table({"index": list(range(len(values))), "prediction": values})
        pq.write_table(table, folder / f"predictions.{name}.parquet")
    return folder


def test_a_run_of_mnli_gives_three_tables(tmp_path):
    sets = {"test": ["neutral"], "test_mismatched": ["entailment"], "ax": ["contradiction"], "mine": ["neutral"]}
    result = run_tables(make_run(tmp_path / "run", "mnli", sets))
    assert {name: text.split()[-1] for name, text in result.items()} == {
        "MNLI-m.tsv": "neutral",
        "MNLI-mm.tsv": "entailment",
        "AX.tsv": "contradiction",
    }


def test_rows_that_were_dropped_are_missing(tmp_path):
    with raises_code("submission.invalid", "2 of 5", "3", "4"):
        run_tables(make_run(tmp_path / "run", "rte", {"test": ["entailment"] * 3}, num_dropped=2))


def test_predictions_without_a_table_are_an_error(tmp_path):
    both = {"test": ["neutral"], "test_matched": ["neutral"]}
    cases = [
        (("task.unsupported", "GLUE"), make_run(tmp_path / "a", None, {"test": ["x"]})),
        (("run.no_predictions", "test"), make_run(tmp_path / "b", "rte", {"other": ["x"]})),
        (("task.unsupported", "test and test_matched", "MNLI-m.tsv"), make_run(tmp_path / "e", "mnli", both)),
        (("run.not_found",), tmp_path),
    ]
    unfinished = make_run(tmp_path / "c", "rte", {"test": ["x"]})
    (unfinished / "summary.json").unlink()
    torn = make_run(tmp_path / "d", "rte", {"test": ["x"]})
    (torn / "predictions.test.parquet").write_text("x")
    for refused, folder in [*cases, (("run.not_finished",), unfinished), (("run.damaged",), torn)]:
        with raises_code(*refused, folder):
            run_tables(folder)

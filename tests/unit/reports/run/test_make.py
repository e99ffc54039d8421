"""From run folders to files: all formats, hostile text, and what is never overwritten."""

import base64
import csv
import hashlib
import importlib
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from make_run import edit_json, make_run
from page_text import page_text
from raised import raises_code
from rich.console import Console
from whole_records import WHOLE_RUN, WHOLE_SUMMARY

import paratune
from paratune import __version__, reports
from paratune.reports.figures import canvas
from paratune.reports.run import run_document
from paratune.reports.tables.table import Table
from paratune.reports.terminal import terminal_runs

GOLDEN = Path(__file__).parents[3] / "golden"
SCRIPT = "<script>alert(1)</script>"
FILES = {"index.html", "table.csv", "report.json", "report.pdf"}
TEXTS = FILES - {"report.pdf"}


class Page(HTMLParser):
    """The elements of a page as a browser would find them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Leave out the PDF, which takes most of the time."""
    module = importlib.import_module("paratune.reports.output")
    monkeypatch.setattr(module, "document_pdf", lambda document: b"%PDF-")


@pytest.fixture
def hostile(tmp_path):
    changes = {
        "run_id": f"=1+1{SCRIPT}[red]x[/red]\x1b[31m",
        "versions.torch": SCRIPT,
        "config.data.columns.text": f"\"'{SCRIPT}",
        "config_origin": {"data.columns.text": SCRIPT},
        "strategy.traits.phases.forward": SCRIPT,
        "strategy.kind": SCRIPT,
        "hardware": [{"cpu_model": SCRIPT, SCRIPT: 1, "gpus": [{"name": SCRIPT, "memory_bytes": SCRIPT}]}],
        "command": [SCRIPT],
        "model.name": SCRIPT,
    }
    summary = {
        f"scores.test.{SCRIPT}": 0.5,
        "memory.kind": SCRIPT,
        "stop_reason": SCRIPT,
        "ranks": [{"device": SCRIPT}],
    }
    labels = (SCRIPT, "$\\frac", "=cmd|'/c calc'!A0", "\x1b[31mred")
    folder = make_run(tmp_path / "<b>$x$", labels=labels, run_changes=changes, summary_changes=summary)
    unfinished = make_run(tmp_path / "cut", finished=False, run_changes={"run_id": SCRIPT})
    return [make_run(tmp_path / "good"), folder, unfinished]


def test_make_without_a_folder_writes_nothing(tmp_path):
    folder = make_run(tmp_path / "runs" / "a")
    before = sorted(tmp_path.rglob("*"))
    assert reports.make([folder], None).files == ()
    assert sorted(tmp_path.rglob("*")) == before


def files_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_make_writes_four_files_and_those_for_a_paper_if_they_are_wanted(tmp_path, monkeypatch):
    monkeypatch.undo()
    run, out = make_run(tmp_path / "a"), tmp_path / "out" / "deep"
    made = reports.make([run], out)
    assert {path.relative_to(out).as_posix() for path in made.files} == set(files_in(out)) == FILES
    reports.make([run], out, wanted=("latex", "figures"))
    tables = {"comparison", "confusion", "systems", "models", "software", "reproduce"}
    figures = {"phases", "over_steps"}
    paper = {f"tables/{name}.tex" for name in tables} | {f"figures/{name}.svg" for name in figures}
    assert set(files_in(out)) == FILES | paper
    reports.make([run], out)  # those that this report does not have go
    assert set(files_in(out)) == FILES


@pytest.mark.parametrize("option", ["latex", "figures"])
def test_files_for_a_paper_need_a_folder(tmp_path, option):
    with raises_code("cli.no_effect", f"--{option}"):
        paratune.report(make_run(tmp_path / "a"), **{option: True})


def test_page_loads_no_other_file_and_allows_one_script(tmp_path):
    reports.make([make_run(tmp_path / "a"), make_run(tmp_path / "b", task="regression")], tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text()
    page = Page(text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in text
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not {tag for tag, _ in page.elements} & {
        "link",
        "iframe",
        "object",
        "embed",
        "img",
        "base",
        "form",
    }
    assert "default-src 'none'" in text
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src"):
            assert attributes.get(name, "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import|https?://", text)


def test_ids_of_the_page_are_unique_and_links_lead_somewhere(tmp_path):
    folders = [make_run(tmp_path / name, task="regression", seed=n) for n, name in enumerate("abc")]
    reports.make(folders, tmp_path / "out")
    elements = Page((tmp_path / "out" / "index.html").read_text()).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for _, attributes in elements if "href" in attributes} <= set(ids)


def test_every_cell_of_the_page_names_its_run(tmp_path):
    reports.make([make_run(tmp_path / "a"), make_run(tmp_path / "b")], tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text()
    table = text[text.index('id="comparison"') : text.index("<figure")]
    cells = [attributes for tag, attributes in Page(table).elements if tag == "td"]
    assert len(cells) > 40
    assert {cell["title"].partition(": ")[0] for cell in cells} == {"a", "b"}


def test_hostile_text_does_not_act_in_the_page(tmp_path, hostile):
    reports.make(hostile, tmp_path / "out")
    page = Page((tmp_path / "out" / "index.html").read_text())
    assert [tag for tag, _ in page.elements].count("script") == 1  # our own
    assert SCRIPT in " ".join(page.text)
    assert not [name for _, attributes in page.elements for name in attributes if "script" in name]


def test_hostile_text_is_no_formula_in_csv(tmp_path, hostile):
    reports.make(hostile, tmp_path / "out")
    rows = list(csv.reader(io.StringIO((tmp_path / "out" / "table.csv").read_text())))
    assert rows[2][0].startswith("'=1+1")
    for cell in (cell for row in rows for cell in row):
        assert not cell.startswith(("=", "+", "-", "@"))


def test_hostile_text_does_not_act_in_a_terminal(tmp_path):
    folder = make_run(tmp_path / "a", run_changes={"run_id": "[red]x[/red]\x1b[31my"})
    console = Console(file=io.StringIO(), width=200, color_system="truecolor", force_terminal=True)
    console.print(terminal_runs(reports.make([folder, make_run(tmp_path / "b", kind="ddp")], None)))
    text = console.file.getvalue()
    assert r"[red]x[/red]\x1b[31my" in text
    assert "\x1b[31m" not in text  # no style of our own is plain red


def test_csv_has_one_line_for_each_run_in_base_units(tmp_path):
    reports.make([make_run(tmp_path / "a", step_ms=80), make_run(tmp_path / "b")], tmp_path / "out")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "table.csv").read_text())))
    assert [row["run"] for row in rows] == ["a", "b"]
    assert float(rows[0]["train_s"]) == pytest.approx(225 * 0.080)
    assert float(rows[0]["epoch_s"]) == pytest.approx(75 * 0.080)  # 225 steps are 3 epochs
    assert float(rows[0]["forward_mean_ms"]) == pytest.approx(24.0)


def test_json_is_what_as_dict_returns(tmp_path):
    made = reports.make([make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1)], tmp_path / "out")
    value = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(value.pop("reproduce")) == ["1-a.yaml", "2-b.yaml"]
    assert value == made.as_dict()
    assert value["same_experiment"]["verdict"] == "other_seeds"
    assert value["seed_groups"][0]["spread"]["test_accuracy"]["num_runs"] == 2


def test_the_spread_over_seeds_is_the_sample_standard_deviation(tmp_path):
    runs = [
        make_run(tmp_path / name, seed=seed, summary_changes={"time.train_s": train_s})
        for seed, (name, train_s) in enumerate({"a": 2.0, "b": 4.0, "c": 6.0}.items())
    ]
    # 2, 4, 6: mean 4; deviations -2, 0, 2; (4 + 0 + 4) / (3 - 1) = 4; root 2.
    (group,) = reports.make(runs, None).as_dict()["seed_groups"]
    expected = {"mean": 4.0, "standard_deviation": 2.0, "min": 2.0, "max": 6.0, "num_runs": 3}
    assert group["spread"]["train_s"] == expected


@pytest.mark.parametrize("name", sorted(FILES))
def test_make_overwrites_no_files_of_others(tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{}")
    with raises_code("output.foreign", name):
        reports.make([make_run(tmp_path / "a")], out)
    assert [path.name for path in out.iterdir()] == [name]
    assert (out / name).read_text() == "{}"


def test_make_replaces_an_earlier_report_and_leaves_other_files(tmp_path):
    reports.make([make_run(tmp_path / "a")], tmp_path / "out", wanted=["latex"])
    (tmp_path / "out" / "mine.txt").write_text("kept")
    (tmp_path / "out" / "tables" / "mine.tex").write_text("kept")
    reports.make([make_run(tmp_path / "b", task="mlm")], tmp_path / "out", wanted=["latex"])
    found = files_in(tmp_path / "out")
    assert b"Run b" in found["index.html"]
    assert found["mine.txt"] == found["tables/mine.tex"] == b"kept"
    assert "tables/comparison.tex" in found
    assert "tables/confusion.tex" not in found, "a table of the earlier report was left"


def test_make_replaces_no_table_that_is_not_the_report_s(tmp_path):
    reports.make([make_run(tmp_path / "a", task="mlm")], tmp_path / "out", wanted=["latex"])
    (tmp_path / "out" / "tables" / "confusion.tex").write_text("mine")
    with raises_code("output.foreign", "tables", "confusion.tex"):
        reports.make([make_run(tmp_path / "b")], tmp_path / "out", wanted=["latex"])
    assert "Run a" in (tmp_path / "out" / "index.html").read_text()


def test_an_edited_list_of_files_removes_no_other_files(tmp_path):
    out = tmp_path / "out"
    reports.make([make_run(tmp_path / "a")], out, wanted=["latex"])
    kept = [out / "mine.txt", out / "tables" / "mine.txt", tmp_path / "above.csv"]
    for path in kept:
        path.write_text("kept")
    listed = json.loads((out / "report.json").read_text())
    listed["files"] += [*map(str, kept), str(out / "tables" / ".." / ".." / "above.csv"), 7]
    (out / "report.json").write_text(json.dumps(listed))
    reports.make([make_run(tmp_path / "b")], out)
    assert [path.read_text() for path in kept] == ["kept"] * 3


def test_make_refuses_a_file_as_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with raises_code("output.foreign"):
        reports.make([make_run(tmp_path / "a")], tmp_path / "out")


def test_make_leaves_the_earlier_report_whole_when_writing_fails(tmp_path, monkeypatch):
    reports.make([make_run(tmp_path / "a")], tmp_path / "out")
    before = files_in(tmp_path / "out")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with raises_code("output.not_writable", "No space left on device"):
        reports.make([make_run(tmp_path / "b")], tmp_path / "out")
    assert files_in(tmp_path / "out") == before
    with raises_code("output.not_writable", "No space left on device"):
        reports.make([tmp_path / "a"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_make_refuses_a_damaged_number_before_it_writes(tmp_path):
    folder = make_run(tmp_path / "a", summary_changes={"time.train_s": "fast"})
    with raises_code("run.damaged", "time.train_s", "'fast'"):
        reports.make([folder], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_that_trained_different_things_are_marked_in_every_format(tmp_path):
    other = make_run(tmp_path / "b", run_changes={"batch.global_batch_size": 16})
    made = reports.make([make_run(tmp_path / "a"), other], tmp_path / "out")
    console = Console(file=io.StringIO(), width=200)
    console.print(terminal_runs(made))
    for text in (console.file.getvalue(), (tmp_path / "out" / "index.html").read_text()):
        assert "Not all of these runs are the same experiment" in text
    assert made.as_dict()["same_experiment"]["differ"] == {"global_batch_size": {"a": 32, "b": 16}}


def test_an_unfinished_run_is_listed_in_every_format(tmp_path):
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "cut-off", finished=False)]
    made = reports.make(folders, tmp_path / "out")
    console = Console(file=io.StringIO(), width=200)
    console.print(terminal_runs(made))
    for text in (console.file.getvalue(), *((tmp_path / "out" / name).read_text() for name in TEXTS - {"table.csv"})):
        assert "cut-off" in text
        assert "step 112 of 225" in text


def test_confusion_of_many_classes_becomes_a_list(tmp_path):
    labels = tuple(f"class {number}" for number in range(30))
    reports.make([make_run(tmp_path / "a", labels=labels)], tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "30 classes; report.json has the whole matrix." in text


def test_a_confusion_of_20_000_classes_is_a_list_of_the_most_frequent(tmp_path):
    labels = tuple(f"class {number}" for number in range(20_000))
    counts = {"num_classes": 20_000, "counts": [[5, 5, 7], [5, 6, 3], [19_999, 0, 2]]}
    run = make_run(tmp_path / "a", run_changes={"task.labels": labels}, summary_changes={"confusion": {"test": counts}})
    reports.make([run], tmp_path / "out")
    text = page_text((tmp_path / "out" / "index.html").read_text())
    assert "class 5 class 6 3 " in text
    assert "class 19999 class 0 2 " in text
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"][0]["confusion"] == {"test": counts}


@pytest.mark.parametrize("confusion", [None, {"test": None}, {"test": [[1, 2]]}, {"test": "x"}, {"test": [["a"]]}])
def test_a_damaged_confusion_matrix_has_a_message(tmp_path, confusion):
    reports.make([make_run(tmp_path / "a", summary_changes={"confusion": confusion})], tmp_path / "out")
    assert "No confusion matrix" in (tmp_path / "out" / "index.html").read_text()


def test_probes_have_no_section_of_predictions(tmp_path):
    probe = make_run(tmp_path / "probe", run_changes={"config.measure.probe": True}, summary_changes={"confusion": {}})
    reports.make([probe], tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "No confusion matrix" not in page
    assert "Predictions" not in page
    # Beside others it is passed over.
    reports.make([probe, make_run(tmp_path / "full", run_changes={"run_id": "full"})], tmp_path / "both")
    page = (tmp_path / "both" / "index.html").read_text()
    assert "No confusion matrix" not in page
    assert "Predictions" in page


@pytest.mark.parametrize("damage", ["absent", "torn"])
def test_unreadable_predictions_have_a_message(tmp_path, damage):
    folder = make_run(tmp_path / "a", task="regression")
    path = folder / "predictions.test.parquet"
    path.unlink()
    if damage == "torn":
        path.write_bytes(b"PAR1 torn")
    reports.make([folder], tmp_path / "out")
    assert "No figure: " in (tmp_path / "out" / "index.html").read_text()


def test_a_record_of_little_still_makes_a_report(tmp_path):
    folder = make_run(tmp_path / "a")
    for name, record in (("run.json", WHOLE_RUN), ("summary.json", WHOLE_SUMMARY)):
        (folder / name).write_text(json.dumps(record))
    (folder / "events.rank0000.jsonl").unlink()
    reports.make([folder], tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_values_that_json_does_not_have_become_null(tmp_path):
    folder = make_run(tmp_path / "a")
    edit_json(folder / "run.json", code={"git_commit": float("nan")})
    reports.make([folder], tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"][0]["code"] == {"git_commit": None}


def test_page_without_matplotlib_names_the_package_and_has_the_tables(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    reports.make([make_run(tmp_path / "a")], tmp_path / "out")
    assert not (tmp_path / "out" / "report.pdf").exists()
    text = (tmp_path / "out" / "index.html").read_text()
    assert "paratune[plots]" in text
    assert "Real tokens/s" in text


def test_report_is_imported_without_torch_and_matplotlib():
    code = "import sys, paratune.reports; print([m for m in ('torch', 'matplotlib', 'jinja2') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_report_is_the_one_that_was_read_and_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Figures differ between versions of matplotlib; they have tests of their own.
    monkeypatch.setattr(canvas, "can_draw", lambda: "matplotlib is not installed")
    folders = [make_run(Path("runs/single")), make_run(Path("runs/ddp"), kind="ddp", world_size=2, step_ms=46.1)]
    reports.make([*folders, make_run(Path("runs/cut"), finished=False)], Path("out"))
    made = Path("out", "index.html").read_text(encoding="utf-8").replace(f"paratune {__version__}", "paratune VERSION")
    golden = GOLDEN / "report_index.html"
    assert made == golden.read_text(encoding="utf-8"), (
        f"read the difference; to accept it copy {Path('out', 'index.html').resolve()}"
    )


def test_interruptions_are_counted_in_words(tmp_path):
    for count, says in ((1, "interrupted once;"), (2, "interrupted 2 times;")):
        run = make_run(tmp_path / f"{count}", summary_changes={"num_interruptions": count})
        (note,) = (note for note in reports.make([run], None).notes if "nterrupted" in note)
        assert says in note.lower()
        assert not any("Slurm" in note for note in reports.make([run], None).notes)
    run = make_run(tmp_path / "job", summary_changes={"num_interruptions": 2, "num_requeued": 3})
    (note,) = (note for note in reports.make([run], None).notes if "Slurm" in note)
    assert "job was queued again 3 times by Slurm" in note
    run = make_run(tmp_path / "restarted", summary_changes={"num_restarts": 2})
    (note,) = (note for note in reports.make([run], None).notes if "torchrun" in note)
    assert "processes were started again 2 times by torchrun" in note


def test_many_runs_have_tables_and_figures_of_the_first_ones(tmp_path):
    folders = [make_run(tmp_path / f"run-{n}", num_steps=10, seed=n) for n in range(30)]
    made = reports.make(folders, tmp_path / "out", folders[3])
    found = files_in(tmp_path / "out")
    tables = {part.key: part for part in run_document(made).parts if isinstance(part, Table)}
    assert len(tables["comparison"].columns) == 1 + 24
    assert len(list(csv.DictReader(io.StringIO(found["table.csv"].decode())))) == 30
    assert "confusion-24" in tables
    assert "confusion-25" not in tables
    assert "The first 24 of 30 runs." in found["index.html"].decode()
    assert len(made.as_dict()["runs"]) == 30
    assert [len(member.runs) for member in made.systems.measured] == [30]


def test_one_note_has_the_cost_of_measuring_of_all_runs(tmp_path):
    costs = {"a": (10.25, 0.002), "b": (9.5, 0.0005), "c": (9.75, 0.001)}
    runs = [
        make_run(
            tmp_path / name,
            summary_changes={"recorder.cost_ms_per_step": cost, "recorder.cost_share": share},
        )
        for name, (cost, share) in costs.items()
    ]
    (note,) = (note for note in reports.make(runs, None).notes if "measuring itself" in note)
    assert note == "All runs: measuring itself cost at most 10.250 ms a step (0.20%)."
    unknown = make_run(tmp_path / "d", summary_changes={"recorder": None})
    (note,) = (note for note in reports.make([runs[0], unknown], None).notes if "measuring itself" in note)
    assert note == "a: measuring itself cost at most 10.250 ms a step (0.20%)."

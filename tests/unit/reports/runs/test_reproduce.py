import json
import shutil
import subprocess
from dataclasses import replace

import pytest
from make_matrix import STRATEGY, Made, make_matrix
from make_run import make_run

from paratune.config.yaml_tree import read_tree
from paratune.records.finished import read_record
from paratune.records.sweep import read_sweep
from paratune.reports.document import Listing, ReportDocument, ReportSection
from paratune.reports.matrix import make_sweep
from paratune.reports.page.document import document_html
from paratune.reports.run import make
from paratune.reports.runs.reproduce import command_line, reproduction, reproduction_texts


def read(folder, **changes):
    return read_record(make_run(folder, run_changes=changes), folder.name)


def listings(parts):
    return {part.title: part.text for part in parts if isinstance(part, Listing)}


def test_command_is_one_that_a_shell_takes():
    words = ["/env/lib/paratune/__main__.py", "train", "my file.yaml", "--set", "a.token=abc"]
    assert command_line(words) == "paratune train 'my file.yaml' --set 'a.token=***'"
    assert command_line(["/env/bin/paratune", "sweep", "m.yaml"]) == "paratune sweep m.yaml"
    assert command_line([]) == "n/a"


def test_resolved_configuration_is_read_back_as_recorded(tmp_path):
    run = read(tmp_path / "a")
    assert read_tree(reproduction_texts([run])["1-a.yaml"], "a.yaml").value == run.run.config


def test_dates_code_and_data_come_from_the_record(tmp_path):
    run = read(tmp_path / "a", **{"code.git_commit": "c" * 40, "code.git_dirty": True, "directory": "/work"})
    facts = dict(reproduction([replace(run, name="a")], [run])[0].rows)
    assert "c" * 40 in facts["Code"]
    assert "uncommitted" in facts["Code"]
    assert facts["Working directory"] == "/work"
    assert facts["Runs finished"] == run.summary.finished
    assert run.data("train").fingerprint in facts["Data: train"]


def test_recorded_batch_script_is_listed_once(tmp_path):
    script = "#!/bin/bash\nsrun paratune train a.yaml"
    runs = [
        read(tmp_path / name, job={"id": number, "batch_script": script}) for name, number in (("a", "7"), ("b", "8"))
    ]
    scripts = {title: text for title, text in listings(reproduction([], runs)).items() if "atch script" in title}
    assert scripts == {"Batch script of Slurm job 7": script}


def test_listing_cannot_act_as_markup():
    section = ReportSection("x", "X", (Listing("<b>", "a: <script>\n  b: 1\x1b[0m"),))
    html = document_html(ReportDocument("T", (), (section,), ""))
    assert "<details>" in html
    assert html.count("<script>") == 1  # the page's own
    assert "\n  b: 1\\x1b[0m" in html


def test_report_of_runs_has_the_configurations_in_its_json(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    make(runs, tmp_path / "out")
    texts = json.loads((tmp_path / "out" / "report.json").read_text())["reproduce"]
    assert read_tree(texts["2-b.yaml"], "b.yaml").value == read_record(runs[1], "b").get("run.config")
    page = (tmp_path / "out" / "index.html").read_text()
    assert 'id="reproduce"' in page
    assert page.count("<details><summary>Resolved configuration of a") == 1


def test_report_of_a_matrix_has_its_file_and_command(tmp_path):
    folder = make_matrix(
        tmp_path / "m", [STRATEGY], lambda values: Made(kind=values["strategy"]),
        matrix_text="name: m\naxes: {strategy: [ddp, zero3]}\n", command=("/bin/paratune", "sweep", "m.yaml"),
        directory="/work", version="1.0",
    )  # fmt: skip
    make_sweep(folder, tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "axes: {strategy: [ddp, zero3]}" in page
    assert "paratune sweep m.yaml" in page
    values = json.loads((tmp_path / "out" / "report.json").read_text())
    assert values["matrix_text"] == values["reproduce"]["matrix.yaml"] == "name: m\naxes: {strategy: [ddp, zero3]}\n"


def test_only_configurations_are_trained_again(tmp_path):
    run = read(tmp_path / "a")
    shown = [replace(run, name=f"run {number}") for number in range(30)]
    folder = make_matrix(tmp_path / "m", [STRATEGY], lambda values: Made(), matrix_text="name: m\n")
    commands = listings(reproduction(shown, shown, [read_sweep(folder)]))["Commands to reproduce the runs"]
    trained = [line.split()[2] for line in commands.splitlines() if line.startswith("paratune train")]
    assert trained == [f"{number + 1}-run-{number}.yaml" for number in range(24)]


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_the_listed_command_writes_the_configurations(tmp_path):
    make([make_run(tmp_path / "a"), make_run(tmp_path / "b c")], tmp_path / "out")
    shown = [read_record(tmp_path / name, name) for name in ("a", "b c")]
    commands = listings(reproduction(shown, shown))["Commands to reproduce the runs"].splitlines()
    (command,) = (line for line in commands if line.startswith("for name"))
    subprocess.run(["bash", "-c", command.replace("REPORT", str(tmp_path / "out"))], cwd=tmp_path, check=True)
    texts = reproduction_texts(shown)
    assert list(texts) == ["1-a.yaml", "2-b-c.yaml"]
    for name, text in texts.items():
        assert (tmp_path / name).read_text() == text
        assert f"paratune train {name} --set run.folder=reproduced" in commands


def test_configurations_whose_names_differ_in_signs_have_a_file_each(tmp_path):
    names = ("lr 1e-5, fp16", "LR 1e-5 fp16", "matrix")
    shown = [
        replace(read(tmp_path / str(seed), **{"config.run.seed": seed}), name=name) for seed, name in enumerate(names)
    ]
    files = reproduction_texts(shown)
    assert list(files) == [f"{name}.yaml" for name in ("1-lr-1e-5-fp16", "2-LR-1e-5-fp16", "3-matrix")]
    assert [f"seed: {seed}" in text for seed, text in enumerate(files.values())] == [True] * 3
    commands = listings(reproduction(shown, shown))["Commands to reproduce the runs"]
    assert [line.split()[2] for line in commands.splitlines()[3:]] == list(files)


def test_joined_matrices_are_run_again_each_by_its_file(tmp_path):
    folders = [
        make_matrix(
            tmp_path / name, [STRATEGY], lambda values: Made(kind=values["strategy"]),
            matrix=f"{name}.yaml", matrix_text=f"name: {name}\n", command=("paratune", "sweep", f"{name}.yaml"),
        )
        for name in ("one", "two")
    ]  # fmt: skip
    report = make_sweep(folders, tmp_path / "out")
    found = listings(part for section in report.sections if section.key == "reproduce" for part in section.parts)
    assert found["Original commands"].splitlines()[:2] == ["paratune sweep one.yaml", "paratune sweep two.yaml"]
    again = found["Commands to reproduce the runs"].splitlines()
    assert {"paratune sweep one.yaml", "paratune sweep two.yaml"} <= {*again}
    texts = json.loads((tmp_path / "out" / "report.json").read_text())["reproduce"]
    assert [texts[f"matrix-{number}.yaml"] for number in (1, 2)] == ["name: one\n", "name: two\n"]

import json
import math

import pytest
from make_run import make_run

from paratune.records import events_file
from paratune.records.finished import read_record
from paratune.reports.figures.canvas import Drawing, page_figure
from paratune.reports.page.document import document_html
from paratune.reports.run import build_report, run_document
from paratune.reports.runs.read import read_runs
from paratune.reports.systems import figures
from paratune.reports.systems.figures import band, step_drawings, step_line


def run_with(folder, events, batch=32, seed=1):
    changes = {"batch.global_batch_size": batch, "seed": seed, "config.run.seed": seed}
    make_run(folder, run_changes=changes)
    (folder / events_file(0)).write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))
    return read_record(folder, folder.name)


def step(number, wall_ms, noise=None, **more):
    event = {"event": "step", "step": number, "epoch": 0.1, "loss": 1.0, "wall_ms": wall_ms, "warmup": False}
    return {**event, **({"noise_scale": noise} if noise else {}), **more}


def test_a_point_is_of_totals_without_warm_up(tmp_path):
    events = [
        step(1, 9000.0, warmup=True),
        {"event": "sample", "step": 2, "seconds": 1.0, "utilisation": 0.5},
        {"event": "sample", "step": 2, "seconds": 3.0, "utilisation": 0.9},
        step(2, 100.0, {"trace": 60.0, "squared_norm": 2.0}),
        step(3, 300.0, {"trace": 20.0, "squared_norm": 2.0}),
    ]
    line = step_line([run_with(tmp_path / "a", events)], 16)
    assert line.steps.tolist() == [1.0, 2.0, 3.0]
    # 32 samples in 0.1 s and in 0.3 s; (0.5 x 1 + 0.9 x 3) / 4 = 80%.
    assert line.values["throughput"][0] == pytest.approx([math.nan, 320.0, 32 / 0.3], nan_ok=True)
    assert line.values["utilisation"][0] == pytest.approx([math.nan, 80.0, math.nan], nan_ok=True)
    # 60 / 2 = 30; (60 + 20) / (2 + 2) = 20. Pollux, equation 7: (20 + 16) / (20 + 32).
    assert line.values["noise"][0] == pytest.approx([math.nan, 30.0, 20.0], nan_ok=True)
    assert line.values["goodput"][0][2] == pytest.approx(32 / 0.3 * 36 / 52)


def test_the_noise_scale_under_adamw_is_drawn_from_its_own_samples(tmp_path):
    noise = {"trace": 60.0, "squared_norm": 2.0, "preconditioned": {"trace": 90.0, "squared_norm": 1.0}}
    line = step_line([run_with(tmp_path / "a", [step(1, 100.0, noise)])], 16, "preconditioned")
    assert line.values["noise"].tolist() == [[90.0]]


def test_goodput_at_the_reference_batch_is_throughput(tmp_path):
    line = step_line([run_with(tmp_path / "a", [step(1, 100.0)])], 32)
    assert line.values["goodput"].tolist() == [[320.0]]


def test_long_runs_have_points_of_equally_many_steps(tmp_path):
    line = step_line([run_with(tmp_path / "a", [step(number, 100.0) for number in range(1, 401)])], 32)
    assert len(line.steps) == 40
    assert line.steps[0] == 10.0
    assert line.values["throughput"][0] == pytest.approx([320.0] * 40)


def test_a_band_goes_from_the_smallest_to_the_largest_run(tmp_path):
    runs = [run_with(tmp_path / f"s{seed}", [step(1, wall)], seed=seed) for seed, wall in ((1, 100.0), (2, 200.0))]
    line = step_line(runs, 32)
    _, mean, low, high = band(line.steps, line.values["throughput"])
    assert (mean[0], low[0], high[0]) == (240.0, 160.0, 320.0)


def evaluation(number, loss, split="validation"):
    return {"event": "evaluation", "step": number, "split": split, "scores": {"loss": loss}}


def test_losses_are_those_of_all_steps_and_of_the_evaluations_that_all_runs_have(tmp_path):
    events = [step(1, 9000.0, warmup=True, loss=4.0), step(2, 100.0, loss=2.0), step(3, 100.0, loss=None)]
    events += [evaluation(2, 1.0), evaluation(3, 0.5), evaluation(3, 9.0, "other")]
    runs = [run_with(tmp_path / "a", events), run_with(tmp_path / "b", [*events[:2], evaluation(2, 3.0)], seed=2)]
    line = step_line(runs, 32)
    # The second run logged no third step; both have the loss of the warm-up.
    assert line.values["loss"][0] == pytest.approx([4.0, 2.0, math.nan], nan_ok=True)
    assert line.values["loss"][1] == pytest.approx([4.0, 2.0, math.nan], nan_ok=True)
    assert line.validation.index.tolist() == [2.0]
    assert line.validation.to_numpy().tolist() == [[1.0, 3.0]]
    # A point has the mean of the runs.
    (drawing,) = step_drawings([("both", runs)], 32)
    assert "both: validation loss 2.0000 at step 2" in page_figure(drawing)


def test_no_figure_without_events(tmp_path):
    run = run_with(tmp_path / "a", [])
    assert list(step_drawings([("a", [run])], 32)) == []


def test_logs_that_are_too_large_have_a_note_in_place_of_the_figure(tmp_path, monkeypatch):
    run = run_with(tmp_path / "a", [step(1, 100.0)])
    monkeypatch.setattr(figures, "MAX_DRAWN_BYTES", 10)
    (drawing,) = step_drawings([("a", [run])], 32)
    assert "10 B" in (drawing.note or "")
    assert "10 B" in document_html(run_document(build_report(read_runs([run.folder]))))


def test_goodput_is_held_against_the_reference_batch_of_the_baseline(tmp_path):
    noise = {"trace": 60.0, "squared_norm": 2.0}
    run = run_with(tmp_path / "a", [step(1, 100.0, noise)])
    record = json.loads((run.folder / "run.json").read_text())
    record["config"]["measure"]["reference_batch"] = 16
    (run.folder / "run.json").write_text(json.dumps(record))
    document = run_document(build_report(read_runs([run.folder])))
    (found,) = (drawing for drawing in document.parts if isinstance(drawing, Drawing) and drawing.key == "over_steps")
    # Not the batch of the run, 32, as in the table of efficiency.
    assert "100% at 16 samples a step" in found.caption

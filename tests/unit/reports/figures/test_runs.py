"""The figures: what they may not leave behind, what they may not interpret, and that they are the same each time."""

import re
import warnings
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from make_run import make_run
from pyarrow import parquet

from paratune.reports.figures import canvas
from paratune.reports.figures import runs as figures
from paratune.reports.runs.read import read_runs

matplotlib = pytest.importorskip("matplotlib")
HOSTILE = '$\\frac{<script>alert(1)</script>\x1b[31m\u202e日本 "id="x'


def _runs(tmp_path, names=("a", "b"), **changes):
    return read_runs(
        [make_run(tmp_path / str(n), run_changes={"run_id": name}, **changes) for n, name in enumerate(names)]
    ).runs


def _all(runs):
    styles = {run.name: position for position, run in enumerate(runs)}
    labels, predictions = np.arange(20.0), np.arange(20.0) + 0.5
    pictures = [
        figures.loss_curves(runs, styles),
        figures.phase_bars(runs),
        figures.memory_bars(runs),
        figures.predicted_against_actual(labels, predictions, runs[0].name, "test", limits=(0, 20)),
    ]
    return [_svg(picture) for picture in pictures]


def _svg(picture):
    return canvas.page_figure(picture, prefix=picture.key)


def test_figures_leave_no_global_state_behind(tmp_path):
    before = dict(matplotlib.rcParams)
    filters = list(warnings.filters)
    _all(_runs(tmp_path))
    assert dict(matplotlib.rcParams) == before
    assert warnings.filters == filters


def test_figures_are_the_same_each_time(tmp_path):
    runs = _runs(tmp_path)
    assert _all(runs) == _all(runs)


def test_hostile_names_are_text_in_figures(tmp_path):
    for svg in _all(_runs(tmp_path, (HOSTILE, "b"))):
        assert "<script" not in svg
        assert "\x1b" not in svg
        assert "\u202e" not in svg
    assert "$\\frac" in _svg(figures.phase_bars(_runs(tmp_path / "short", ("$\\frac$", "b"))))


def test_ids_of_figures_are_unique_on_a_page(tmp_path):
    page = "".join(_all(_runs(tmp_path)))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert ids
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"', page) + re.findall(r"url\(#([^)]+)\)", page)
    assert set(targets) <= set(ids)


def test_figures_follow_the_colours_of_the_page(tmp_path):
    for svg in _all(_runs(tmp_path)):
        assert "currentColor" in svg
        assert not {canvas.INK, canvas.MUTED, canvas.RULE} & set(re.findall(r"#[0-9a-f]{6}", svg))
        assert "font-family" not in svg


def test_bars_have_tooltips_with_their_values(tmp_path):
    # 30% of an 80 ms step.
    svg = _svg(figures.phase_bars(_runs(tmp_path, step_ms=80.0)))
    assert "<title>a: forward 24.0 ms (30.0%)</title>" in svg


def test_losses_of_runs_with_other_batches_are_drawn_over_epochs(tmp_path):
    first = make_run(tmp_path / "a")
    second = make_run(tmp_path / "b", run_changes={"batch.global_batch_size": 64})
    runs = read_runs([first, second]).runs
    assert ">Epoch<" in _svg(figures.loss_curves(runs, {"a": 0, "b": 1}))
    assert ">Optimizer step<" in _svg(figures.loss_curves(runs[:1], {"a": 0}))


def test_unknown_losses_and_memory_leave_gaps(tmp_path):
    folder = make_run(tmp_path / "a", summary_changes={"ranks": [{"rank": 0, "peak_memory_bytes": None}]})
    (folder / "events.rank0000.jsonl").write_text(
        '{"event": "step", "time": 1, "step": 1, "epoch": 0.1, "loss": null}\n'
    )
    runs = read_runs([folder]).runs
    assert _svg(figures.loss_curves(runs, {"a": 0})).startswith("<svg")
    assert _svg(figures.memory_bars(runs)).startswith("<svg")


def test_run_styles_differ_for_twelve_runs():
    assert len({figures.run_style(position) for position in range(12)}) == 12


def test_read_predictions_leaves_out_rows_without_a_label(tmp_path):
    path = tmp_path / "p.parquet"
    parquet.write_table(pa.table({"label": [1.0, None, 3.0], "prediction": [1.5, 2.0, float("nan")]}), path)
    labels, predictions = figures.read_predictions(path)
    assert (labels.tolist(), predictions.tolist()) == ([1.0], [1.5])


@pytest.mark.parametrize(
    "columns", [{"label": [1.0]}, {"label": ["a"], "prediction": ["b"]}, {"label": [None], "prediction": [1.0]}]
)
def test_read_predictions_raises_for_files_that_cannot_be_drawn(tmp_path, columns):
    path = tmp_path / "p.parquet"
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(ValueError, match=r"."):
        figures.read_predictions(path)


def test_a_long_run_is_drawn_with_few_points(tmp_path):
    assert figures.num_shown(800) == 800
    assert figures.num_shown(25_000) == 782  # every 32nd: 25,000 / 800 rounded up


def test_a_picture_by_itself_has_its_legend_and_no_fonts_of_others(tmp_path):
    runs = _runs(tmp_path, ("first", "second"))
    files = canvas.figure_files(figures.loss_curves(runs, {"first": 0, "second": 1}))
    svg = files["svg"].decode()
    assert files["png"].startswith(b"\x89PNG")
    assert "<text" not in svg
    # matplotlib writes each text that it draws as outlines into a comment.
    assert {"<!-- first -->", "<!-- second -->", "<!-- Optimizer step -->", "<!-- Loss -->"} <= set(
        re.findall("<!-- .+? -->", svg)
    )


def test_page_and_files_are_written_of_one_figure():
    drawn = []

    def draw(axes, hovers):
        drawn.append(axes)
        axes.plot([0, 1], [0, 1], gid="hover-line")
        hovers["hover-line"] = "from 0 to 1"

    picture = canvas.Drawing("k", "A line", "", draw, 2.0, legend=(canvas.Key("which line", canvas.RUN_COLOURS[0]),))
    page, again = _svg(picture), _svg(picture)
    svg = canvas.figure_files(picture)["svg"].decode()
    assert len(drawn) == 1
    assert page == again
    assert "from 0 to 1" in page
    # The page has the legend beside the figure: there the figure ends below it.
    assert "which line" not in page
    assert "<!-- which line -->" in svg
    heights = [float(re.search(r'viewBox="0 0 \S+ (\S+)"', text)[1]) for text in (page, svg)]
    assert heights[1] == pytest.approx(72 * 2.2)  # inches of the axes, and a line of legend
    assert heights[1] - 0.35 * 72 < heights[0] < heights[1] - 0.15 * 72


def test_each_file_draws_its_figure_once(tmp_path, monkeypatch):
    times = []
    draw = matplotlib.figure.Figure.draw
    monkeypatch.setattr(matplotlib.figure.Figure, "draw", lambda *given: (times.append(1), draw(*given)))
    picture = figures.phase_bars(_runs(tmp_path))
    _svg(picture)
    assert len(times) == 1
    canvas.figure_files(picture)
    assert len(times) == 3  # SVG and PNG more; a figure with a layout engine would be drawn twice for each


def test_a_title_names_six_runs_and_how_many_more_there_are():
    runs = [SimpleNamespace(name=f"run-{at}") for at in range(9)]
    assert figures._names(runs[:6]) == "run-0, run-1, run-2, run-3, run-4, run-5"
    assert figures._names(runs) == "run-0, run-1, run-2, run-3, run-4, run-5 and 3 more"

"""The figures: what they may not leave behind, what they may not interpret, and that they are the same each time."""

import re
import warnings
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from make_run import make_run
from pyarrow import parquet

from paratune.reports.comparison import systems_of_runs
from paratune.reports.figures import canvas, plots
from paratune.reports.runs.read import read_runs
from paratune.reports.systems import figures

matplotlib = pytest.importorskip("matplotlib")
HOSTILE = '$\\frac{<script>alert(1)</script>\x1b[31m\u202e日本 "id="x'


def _runs(tmp_path, names=("a", "b"), **changes):
    return read_runs(
        [make_run(tmp_path / str(n), run_changes={"run_id": name}, **changes) for n, name in enumerate(names)]
    ).runs


def loss_curves(runs):
    (drawing,) = figures.step_drawings([(run.name, [run]) for run in runs], 32)
    return drawing


def phase_bars(runs):
    return figures.phase_drawing(systems_of_runs(runs), per_step=True)


def _all(runs):
    predictions = {runs[0].name: ("test", np.arange(20.0), np.arange(20.0) + 0.5)}
    pictures = [
        loss_curves(runs),
        phase_bars(runs),
        *figures.prediction_figures(predictions),
    ]
    return [_svg(picture) for picture in pictures]


def _svg(picture):
    return canvas.page_figure(picture)


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
    assert "$\\frac" in _svg(phase_bars(_runs(tmp_path / "short", ("$\\frac$", "b"))))


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
    svg = _svg(phase_bars(_runs(tmp_path, step_ms=80.0)))
    assert "<title>a: forward 24.0 ms (30.0%)</title>" in svg


def test_a_step_with_an_unknown_phase_has_no_bar_and_no_shares(tmp_path):
    runs = read_runs(
        [
            make_run(tmp_path / "0", run_changes={"run_id": "a"}, step_ms=80.0),
            make_run(
                tmp_path / "1",
                run_changes={"config.train.learning_rate": 1.0},
                summary_changes={"phases.backward": {"total_s": None}},
            ),
        ]
    ).runs
    svg = _svg(phase_bars(runs))
    first, second = (run.name for run in runs)
    assert f"<title>{first}: forward 24.0 ms (30.0%)</title>" in svg
    assert f"<title>{second}: backward n/a ms (n/a)</title>" in svg
    assert f"<title>{second}: forward n/a ms (n/a)</title>" in svg


def test_losses_of_runs_with_other_batches_are_drawn_over_samples(tmp_path):
    first = make_run(tmp_path / "a")
    second = make_run(tmp_path / "b", run_changes={"batch.global_batch_size": 64})
    runs = read_runs([first, second]).runs
    assert ">Samples seen<" in _svg(loss_curves(runs))
    assert ">Optimizer step<" in _svg(loss_curves(runs[:1]))


def test_run_styles_differ_for_twelve_runs():
    assert len({plots.run_style(position) for position in range(12)}) == 12


def with_predictions(tmp_path, columns):
    folder = make_run(tmp_path / "a", task="regression")
    index = list(range(len(next(iter(columns.values())))))
    parquet.write_table(pa.table({"index": index, **columns}), folder / "predictions.test.parquet")
    return read_runs([folder]).runs[0]


def test_predictions_leave_out_rows_without_a_label(tmp_path):
    run = with_predictions(tmp_path, {"label": [1.0, None, 3.0], "prediction": [1.5, 2.0, float("nan")]})
    split, labels, predictions = figures.read_predictions(run)
    assert (split, labels.tolist(), predictions.tolist()) == ("test", [1.0], [1.5])


@pytest.mark.parametrize(
    "columns",
    [
        {"label": [1.0, 2.0]},
        {"label": ["a", "b"], "prediction": ["b", "c"]},
        {"label": [None, None], "prediction": [1.0, 2.0]},
    ],
)
def test_predictions_that_cannot_be_drawn_have_a_reason(tmp_path, columns):
    assert figures.read_predictions(with_predictions(tmp_path, columns)).startswith("No figure: ")


def test_a_long_run_is_drawn_with_few_points():
    assert len(plots.thinned(range(800))[0]) == 800
    assert len(plots.thinned(range(25_000))[0]) == 782  # every 32nd: 25,000 / 800 rounded up


def test_a_file_has_its_legend_and_no_fonts_of_others(tmp_path):
    (content,) = canvas.drawing_files([loss_curves(_runs(tmp_path, ("first", "second")))]).values()
    svg = content.decode()
    assert "<text" not in svg
    # matplotlib writes each text that it draws as outlines into a comment.
    assert {"<!-- first -->", "<!-- second -->", "<!-- Optimizer step -->", "<!-- Loss -->"} <= set(
        re.findall("<!-- .+? -->", svg)
    )


def test_page_pdf_and_file_are_written_of_one_figure_which_is_laid_out_once(monkeypatch):
    from matplotlib.figure import Figure

    drawn, times = [], []
    draw_figure = Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda *given: (times.append(1), draw_figure(*given)))

    def draw(axes, hovers):
        drawn.append(axes)
        axes.plot([0, 1], [0, 1], gid=hovers.add("from 0 to <1>"))

    picture = canvas.Drawing("k", "A line", "", draw, 2.0, legend=(canvas.Key("which line", canvas.RUN_COLOURS[0]),))
    assert _svg(picture) == _svg(picture)
    assert ">which line</text>" in picture.svg
    assert len(times) == 1
    assert b"<!-- which line -->" in canvas.drawing_files([picture])["figures/k.svg"]
    assert (len(drawn), len(times)) == (1, 2)
    assert "<g><title>from 0 to &lt;1&gt;</title>" in _svg(picture)


def test_a_text_that_looks_like_a_tag_stays_a_text():
    hostile = '<g id="part-0"> url(#x) #0072b2'
    picture = canvas.Drawing("k", "t", "", partial(plots.bars, [hostile], [plots.Bars([1.0], texts=["one"])]), 1.0)
    svg = _svg(picture)
    assert svg.count("<title>one</title>") == 1
    assert '&lt;g id="part-0"&gt; url(#x) #0072b2</text>' in svg


def drawn_axes(draw, whole=False):
    """Return the axes of a figure, inside the style of figures."""
    with canvas.figure_style():
        figure, hovers = canvas.Drawing("k", "t", "", draw, 2.0, whole).laid_out
    return figure.axes, hovers


def texts_of(axes):
    return [text.get_text().strip() for text in axes.texts]


@pytest.mark.parametrize(
    ("intervals", "limit", "cut"),
    [
        # All fit: the largest end is at the limit.
        ([(10.0, 8.0, 12.0), (-5.0, -9.0, -1.0)], 12.0, []),
        # 50 is over 3 times the largest change, 10: the axis ends at 30, and an arrow has the number.
        ([(10.0, -20.0, 50.0)], 30.0, ["+50"]),
        ([(1.0, -400.0, 0.5), (-2.0, -2.5, 300.0)], 6.0, ["\u2212400", "+300"]),
        # Changes of 0: nothing to scale by but the interval.
        ([(0.0, -7.0, 7.0)], 7.0, []),
        ([(None, None, None), (4.0, None, None)], 4.0, []),
    ],
)
def test_a_forest_plot_cuts_no_interval_without_its_number(intervals, limit, cut):
    rows = {at: plots.Interval(*numbers) for at, numbers in enumerate(intervals)}
    (axes,), _ = drawn_axes(partial(plots.forest, ["a", "b"][: len(rows)], rows))
    assert axes.get_xlim() == pytest.approx((-1.06 * limit, 1.06 * limit))
    assert [text for text in texts_of(axes) if text != "n/a"] == cut
    assert texts_of(axes).count("n/a") == sum(value is None for value, *_ in intervals)
    ends = [abs(x) for line in axes.lines for x in line.get_xdata()]
    assert max(ends) <= limit


def test_an_unknown_bar_is_no_bar_of_0():
    (axes,), hovers = drawn_axes(partial(plots.bars, ["a", "b"], [plots.Bars([2.0, None], texts=["two", "unknown"])]))
    assert texts_of(axes) == ["n/a"]
    assert list(hovers.values()) == ["two", "unknown"]


def test_stacked_bars_begin_where_the_one_before_ends():
    layers = [plots.Bars([1.0, 4.0]), plots.Bars([2.0, 0.0], numbers=["2", "0"])]
    (axes,), _ = drawn_axes(partial(plots.bars, ["a", "b"], layers, stacked=True))
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 1), (0, 4), (1, 2), (4, 0)]
    assert texts_of(axes) == ["2"]  # a bar without room has no number


def test_a_histogram_stacks_its_layers_between_the_edges():
    layers = [plots.Bars([1, 2]), plots.Bars([3, 0])]
    (axes,), _ = drawn_axes(partial(plots.histogram, [0.0, 1.0, 3.0], layers, marks={0.5: "mean"}))
    assert [(bar.get_x(), bar.get_y(), bar.get_height()) for bar in axes.patches] == [
        (0, 0, 1), (1, 0, 2), (0, 1, 3), (1, 2, 0),
    ]  # fmt: skip
    assert [line.get_xdata()[0] for line in axes.lines] == [0.5]
    assert texts_of(axes) == ["mean"]


def test_a_heat_map_has_a_number_for_each_pair_and_no_image():
    (axes,), _ = drawn_axes(partial(plots.heat_map, ["a", "b"], [[1.0, -0.004], [None, 1.0]]))
    assert texts_of(axes) == ["1.00", "0.00", "n/a", "1.00"]
    assert not axes.images


def test_panels_share_names_and_leave_no_empty_axes():
    one = partial(plots.lines, [plots.Line([1, 2], [3, 4])], xlabel="x")
    axes, _ = drawn_axes(partial(plots.panels, [one, one, one]), whole=True)
    assert [each.axison for each in axes] == [True, True, True, False]
    named = partial(plots.bars, ["a"], [plots.Bars([1.0])])
    axes, _ = drawn_axes(partial(plots.panels, [named, named], share_y=True), whole=True)
    assert [each.yaxis.get_visible() for each in axes] == [True, False]

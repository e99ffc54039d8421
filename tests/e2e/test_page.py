"""The page of a report in headless Chromium: its display, keyboard, print and missing network requests."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, browser
from make_matrix import NPROC, SEED, STRATEGY, Made, make_matrix
from make_run import make_run

from paratune.records.sweep import Axis
from paratune.reports import make
from paratune.reports.document import ReportDocument, ReportSection
from paratune.reports.matrix import make_sweep
from paratune.reports.page.document import document_html
from paratune.reports.tables.table import Column, Table, TableCell

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make chromium` as root, or apt-get install chromium"),
]
SCRIPT = "<script>document.title='owned'</script>"
TABLE = "document.querySelector('#summary table, #runs table')"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of four runs with different speeds, one with a hostile name, one a regression."""
    folder = tmp_path_factory.mktemp("report")
    runs = [
        make_run(folder / "a", step_ms=90.0),
        make_run(folder / "b", step_ms=8.0, run_changes={"config.train.learning_rate": 1e-3}),
        make_run(folder / "c", step_ms=700.0, run_changes={"run_id": SCRIPT, "config.train.learning_rate": 1e-4}),
        make_run(folder / "d", task="regression", summary_changes={"time.train_s": None}),
    ]
    make(runs, folder / "out")
    return folder / "out" / "index.html"


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as result:
        yield result


@pytest.fixture
def opened(one_browser: Browser, report: Path) -> Browser:
    one_browser.events.clear()
    one_browser.look()
    one_browser.open(report)
    return one_browser


def test_a_phone_shows_two_runs_side_by_side(one_browser: Browser, tmp_path: Path):
    runs = [make_run(tmp_path / f"a_run_with_a_long_name_{name}", step_ms=ms) for name, ms in (("a", 90.0), ("b", 8.0))]
    make(runs, tmp_path / "out")
    one_browser.look(width=400)
    one_browser.events.clear()
    one_browser.open(tmp_path / "out" / "index.html")
    widths = one_browser.js(
        "[...document.querySelectorAll('.scroll:has(.figures, svg)')].filter(box => box.offsetParent)"
        ".map(box => box.scrollWidth - box.clientWidth)"
    )
    assert len(widths) > 3
    assert max(widths) <= 1
    assert one_browser.js("document.documentElement.scrollWidth") == 400


def column(opened: Browser, at: int) -> list[str]:
    return opened.js(f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[{at}].textContent)")


def test_the_page_sends_no_requests_and_logs_no_errors(opened: Browser, report: Path):
    opened.look(dark=True)
    opened.js("document.querySelectorAll('button, summary').forEach(each => each.click())")
    assert opened.complaints() == [f"request: {report.as_uri()}"]


@pytest.fixture(scope="module")
def matrix_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of 12 runs: two strategies with 1, 2 and 4 processes, two seeds each."""
    folder = tmp_path_factory.mktemp("matrix")
    sizes = {"nproc-1": 1, "nproc-2": 2, "nproc-4": 4}

    def make_run(values: Mapping[str, str]) -> Made:
        size = sizes[values["nproc"]]
        return Made(step_ms=100.0 / size, world_size=size, kind=values["strategy"])

    make_sweep(make_matrix(folder / "m", (NPROC, STRATEGY, SEED), make_run), folder / "out")
    return folder / "out" / "index.html"


def test_the_page_of_a_matrix_sends_no_requests_and_sorts(one_browser: Browser, matrix_page: Path):
    one_browser.events.clear()
    one_browser.look()
    one_browser.open(matrix_page)
    head = "document.querySelector('table[data-sortable] thead th:last-child')"
    one_browser.js(f"{head}.querySelector('button').focus()")
    one_browser.press("Enter")
    assert one_browser.js(f"{head}.ariaSort") == "ascending"
    one_browser.look(width=400, height=800)
    assert one_browser.js("document.documentElement.scrollWidth") <= 400
    assert len(re.findall(rb"/Type /Page\b", one_browser.pdf())) >= 3
    assert one_browser.complaints() == [f"request: {matrix_page.as_uri()}"]


def test_sections_that_say_nothing_new_open_on_request_by_link_and_for_print(one_browser: Browser, matrix_page: Path):
    one_browser.events.clear()
    one_browser.look(width=1400)
    one_browser.open(matrix_page)
    is_open = "document.querySelector('#resources').closest('details').open"
    assert one_browser.js(is_open) is False
    one_browser.js("document.querySelector('nav a[href=\"#resources\"]').click()")
    assert one_browser.js(f"new Promise(done => setTimeout(() => done({is_open}), 200))") is True
    closed = "[...document.querySelectorAll('details')].filter(each => !each.open).length"
    num_closed = one_browser.js(closed)
    assert num_closed > 5
    one_browser.js("dispatchEvent(new Event('beforeprint'))")
    assert one_browser.js(closed) == 0
    one_browser.js("dispatchEvent(new Event('afterprint'))")
    assert one_browser.js(closed) == num_closed


def test_the_page_of_27_runs_is_short_and_begins_with_the_conclusion(one_browser: Browser, tmp_path: Path):
    rates = Axis("train.learning_rate", "rate", {"low": "1e-05", "mid": "2e-05", "high": "5e-05"},
                 keys=("train.learning_rate",))  # fmt: skip
    kinds = replace(STRATEGY, values={kind: kind for kind in ("ddp", "zero2", "zero3")})
    seeds = replace(SEED, values={f"seed-{at}": str(at) for at in (1, 2, 3)})

    def made(values: Mapping[str, str]) -> Made:
        off = 1 + 0.001 * int(values["seed"][-1])
        rate = {"low": 1e-5, "mid": 2e-5, "high": 5e-5}[values["rate"]]
        noise = {"noise_scale": {"value": 96.0, "trace": 192.0, "squared_norm": 2.0, "num_steps": 10}}
        return Made(
            step_ms=off * 80.0, kind=values["strategy"], run={"config.train.learning_rate": rate}, summary=noise
        )

    make_sweep(make_matrix(tmp_path / "m", (kinds, rates, seeds), made), tmp_path / "out")
    one_browser.events.clear()
    one_browser.look(width=1400, height=900)
    one_browser.open(tmp_path / "out" / "index.html")
    assert one_browser.js("document.documentElement.scrollHeight") <= 4000
    assert one_browser.js("document.querySelector('#summary').getBoundingClientRect().bottom") <= 900
    places = one_browser.js(
        "[...document.querySelectorAll('#verdicts figure')].map(e => e.getBoundingClientRect().top)"
    )
    assert places[0] == places[1]  # two figures in a row
    # At most three lines of 20 pixels, also over narrow columns that are outside of the window.
    assert one_browser.js("document.querySelector('#overview thead').getBoundingClientRect().height") <= 70
    one_browser.look(width=400, height=800)
    assert one_browser.js("document.documentElement.scrollWidth") <= 400


def test_names_are_not_html(opened: Browser):
    assert opened.js("document.title") == "4 runs compared"
    assert opened.js("document.scripts.length") == 1
    assert SCRIPT in opened.js("document.body.innerText")


def test_no_other_script_runs(opened: Browser):
    opened.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    opened.js("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    assert opened.js("new Promise(done => setTimeout(() => done(window.ran === undefined), 200))")
    assert any("Content Security Policy" in entry for entry in opened.complaints())


def test_a_table_is_sorted_by_keyboard(opened: Browser):
    heads = opened.js(f"[...{TABLE}.tHead.rows[0].cells].map(cell => cell.textContent)")
    at = next(at for at, head in enumerate(heads) if head.startswith("Training time"))
    assert column(opened, 0) == ["a", "b", SCRIPT, "d"]
    opened.js(f"{TABLE}.tHead.rows[0].cells[{at}].querySelector('button').focus()")
    opened.press("Enter")
    # 225 steps of 90, 8 and 700 ms; unknown values are last in both orders.
    assert column(opened, 0) == ["b", "a", SCRIPT, "d"]
    opened.press("Enter")
    assert column(opened, 0) == [SCRIPT, "a", "b", "d"]
    orders = opened.js(f"[...{TABLE}.tHead.rows[0].cells].map(cell => cell.ariaSort)")
    assert orders[at] == "descending"
    assert set(orders[:at] + orders[at + 1 :]) == {"none"}


def test_every_focused_element_is_visible(opened: Browser):
    seen = []
    for _ in range(14):
        opened.press("Tab")
        element, style, width = opened.js(
            "(e => [e.tagName + e.className, getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth])"
            "(document.activeElement)"
        )
        seen.append(element)
        assert (style, width) == ("solid", "2px"), element
    assert seen[0] == "Askip"
    assert "BUTTONsort" in seen


def test_the_colour_scheme_follows_the_system_by_default(opened: Browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    dark, light = "rgb(21, 23, 26)", "rgb(255, 255, 255)"
    assert opened.js(paper) == light
    opened.look(dark=True)
    assert opened.js(paper) == dark


def test_a_narrow_window_scrolls_tables_and_not_the_page(opened: Browser):
    opened.look(width=400, height=800)
    assert opened.js("document.documentElement.scrollWidth") <= 400
    small = "[...document.querySelectorAll('td, th, p, li')].filter(e => parseFloat(getComputedStyle(e).fontSize) < 12)"
    assert opened.js(f"{small}.map(e => e.textContent)") == []


def test_the_page_prints_completely(opened: Browser):
    pdf = opened.pdf()
    num_pages = len(re.findall(rb"/Type /Page\b", pdf))
    assert 6 <= num_pages <= 14
    # A4 in points.
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([\d. ]+)\]", pdf)}
    sizes = {(round(right), round(top)) for _, _, right, top in boxes}
    assert sizes == {(595, 842)}
    # No table is wider than the paper inside its margins, 180 mm: 1 mm is 96 / 25.4 px.
    opened.call("Emulation.setEmulatedMedia", media="print", features=[])
    width = round(180 * 96 / 25.4)
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
    rights = "[...document.querySelectorAll('table')].map(e => e.getBoundingClientRect().right)"
    assert opened.js(f"Math.max(0, ...{rights})") <= width + 1
    opened.call("Emulation.setEmulatedMedia", media="", features=[])


def test_a_thousand_lines_are_sorted_and_scroll(one_browser: Browser, tmp_path: Path):
    columns = (Column("Run", is_text=True), *(Column(f"Figure {at}") for at in range(10)))
    lines = tuple(
        (TableCell(f"run {line}"), *(TableCell(f"{line * 7919 % 1000:,}", line * 7919 % 1000, (f"run {line}",), "x")
         for _ in range(10)))
        for line in range(1000)
    )  # fmt: skip
    table = Table("runs", "All runs", columns, lines)
    file = tmp_path / "index.html"
    file.write_text(document_html(ReportDocument("many", (), (ReportSection("runs", "All runs", (table,)),), "")))
    one_browser.events.clear()
    one_browser.look()
    one_browser.open(file)
    one_browser.js(f"{TABLE}.tHead.rows[0].cells[1].querySelector('button').click()")
    assert column(one_browser, 1)[:3] == ["0", "1", "2"]
    assert column(one_browser, 1)[-1] == "999"
    # They scroll in a window of their own; the print has all lines.
    height = "document.querySelector('.long').getBoundingClientRect().height"
    assert one_browser.js(height) < 700
    one_browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert one_browser.js(height) > 10_000
    one_browser.call("Emulation.setEmulatedMedia", media="", features=[])

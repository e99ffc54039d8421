"""The pages of a corpus, from figures that are written out here."""

import re

from paratune.reports.corpus import (
    _sections,
    corpus_html,
    corpus_tables,
    funnel_table,
    perplexity_page,
    reasons_table,
)
from paratune.reports.figures.canvas import Drawing, Hovers

EVIL = '<script>alert("x")</script>\x1b[31m'
SPREAD = {"mean": 4.5, "quantiles": {"0": 1, "0.5": 4, "1": 9}}


def group(*pairs):
    return [{"value": value, "num": num, "num_words": 10 * num} for value, num in pairs]


FOUND = {
    "funnel": [
        {"stage": "index", "shards": 1, "kept": 8, "dropped": {"mime": 2}, "is_stale": False},
        {"stage": "clean/duplicates", "shards": 1, "kept": 6, "dropped": {"near duplicate": 2}, "is_stale": False},
        {"stage": "sentences", "shards": 1, "kept": 20, "dropped": {EVIL: 5}, "is_stale": False},
    ],
    "documents": {
        "num": 6,
        "num_characters": 400,
        "num_words": 60,
        "num_masked": None,
        "num_hosts": 70,
        "by_language": group(("pt", 6)),
        "by_variety": group((None, 6)),
        "by_year": group((2008, 2), (2011, 4)),
        "by_host": group((EVIL, 4), (None, 2)),
        "by_mime": group(("text/html", 6)),
        "by_extractor": group((None, 6)),
        "by_charset": group((None, 6)),
        "by_licence": group((None, 6)),
        "by_split": group(("train", 6)),
        "words": SPREAD,
    },
    "sentences": {"num": 20, "words": SPREAD, "perplexity": SPREAD},
}
ROWS = [{"reason": "short", "url": "http://a.pt/", "detail": "3 words", "text": f"Um  dois\n{EVIL}"}]
SAMPLES = [("Dropped by clean/quality", ROWS), ("Nothing", [])]


def test_funnel_has_read_and_kept_rows():
    table = funnel_table(FOUND["funnel"])
    assert [[entry.value for entry in line[1:]] for line in table.lines] == [
        *([10, 8, 2, 80.0], [8, 6, 2, 75.0], [25, 20, 5, 80.0])
    ]
    stale = funnel_table([FOUND["funnel"][0] | {"is_stale": True, "kept": 0, "dropped": {}}])
    assert stale.rows == (("index (of an earlier run)", "0", "0", "0", "n/a"),)
    assert "run the corpus again" in stale.notes[0]


def test_of_many_reasons_the_rest_is_summed_up():
    dropped = {f"reason {number:02d}": number for number in range(1, 21)}
    table = reasons_table([{"stage": "s", "kept": 790, "dropped": dropped}])
    assert [line[1].text for line in table.lines][:2] == ["reason 20", "reason 19"]
    # 20 reasons, of which 12 are named; 1 to 8 are left: 36 of 1000 rows.
    assert [entry.text for entry in table.lines[-1]] == ["s", "8 more reasons", "36", "3.6%"]
    assert sum(line[2].value for line in table.lines) == 210


def test_empty_tables_are_left_out():
    keys = [table.key for table in corpus_tables(FOUND)]
    assert keys == [
        *("totals", "funnel", "reasons", "by_language", "by_year", "by_host", "by_mime", "by_split"),
        "lengths",
    ]
    unfinished = {**FOUND, "documents": None, "sentences": None}
    assert [table.key for table in corpus_tables(unfinished)] == ["funnel", "reasons"]


def test_page_has_all_sections_and_escaped_texts():
    page = corpus_html("Corpus <b>", FOUND, SAMPLES)
    assert page.count("<script>") == 1  # the page's own
    assert "alert(&#34;x&#34;)" in page
    assert "\x1b" not in page
    assert "src=" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert "Um dois" in page


def perplexities(**changed):
    sample = {"perplexity": 19.96, "text": "<b>Olá</b> \x1b[31m", "url": "http://a.pt/?a=1&b=<script>"}
    threshold = {"perplexity": 20.0, "num_above": 1234, "share_above": 0.25, "below": [sample], "above": []}
    return {
        "scorer": "ngram",
        "num_sentences": 5000,
        "num_unknown": 64,
        "max_perplexity": None,
        "quantiles": {"0.75": 20.0},
        "histogram": {"edges": [10.0, 12.59, 15.85, 19.95, 25.12], "counts": [100, 0, 200, 50]},
        "thresholds": [threshold],
        **changed,
    }


def test_page_has_the_numbers_of_the_record():
    page = perplexity_page(perplexities())
    for text in ("4,936 sentences, scored by an n-gram model; 64 more have no perplexity.", "1,234", "25.0%"):
        assert text in page
    assert "No sentence is dropped" in page
    assert "15.85 to 19.95: 200 sentences" in page
    assert "None." in page


def test_bars_have_the_counts_and_lines_the_thresholds():
    from matplotlib.figure import Figure

    axes, hovers = Figure().subplots(), Hovers()
    parts = [part for section in _sections(perplexities()) for part in section.parts]
    next(part for part in parts if isinstance(part, Drawing)).draw(axes, hovers)
    assert [bar.get_height() for bar in axes.patches] == [100, 0, 200, 50]
    assert axes.get_xscale() == "log"
    assert [line.get_xdata()[0] for line in axes.lines] == [20.0]
    axes.figure.canvas.draw()
    labels = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_xticklabels(minor=True))]
    assert {"10", "20"} <= set(labels)
    assert not any("$" in label for label in labels)
    assert hovers[axes.patches[2].get_gid()] == "15.85 to 19.95: 200 sentences"


def test_page_names_the_threshold_above_which_sentences_are_dropped():
    page = perplexity_page(perplexities(max_perplexity=20.0))
    assert "Sentences above 20 are dropped" in page
    assert "n-gram" in page


def test_sentences_are_escaped():
    page = perplexity_page(perplexities())
    assert "&lt;b&gt;Olá&lt;/b&gt; \\x1b[31m" in page
    assert "<b>" not in page
    assert page.count("<script>") == 1
    assert "http" not in re.sub(r"http://a\.pt/\?a=1&amp;b=&lt;script&gt;", "", page).replace("http-equiv", "")


def test_page_without_perplexities_has_no_figure():
    page = perplexity_page(perplexities(scorer="none", histogram={"edges": [], "counts": []}, thresholds=[]))
    assert "No sentence has a perplexity." in page
    assert "<svg" not in page

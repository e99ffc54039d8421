"""The page of perplexities: its counts and its histogram, and texts that are escaped."""

import re

from paratune.reports.corpus.perplexity import _histogram, perplexity_page
from paratune.reports.figures.canvas import Hovers


def found(**changed):
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
    page = perplexity_page(found())
    for text in ("4,936 sentences, scored by an n-gram model; 64 more have no perplexity.", "1,234", "25.0%"):
        assert text in page
    assert "No sentence is dropped" in page
    assert "15.85 to 19.95: 200 sentences" in page
    assert "None." in page


def test_bars_have_the_counts_and_lines_the_thresholds():
    from matplotlib.figure import Figure

    axes, hovers = Figure().subplots(), Hovers()
    _histogram(found()).draw(axes, hovers)
    assert [bar.get_height() for bar in axes.patches] == [100, 0, 200, 50]
    assert axes.get_xscale() == "log"
    assert [line.get_xdata()[0] for line in axes.lines] == [20.0]
    axes.figure.canvas.draw()
    labels = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_xticklabels(minor=True))]
    assert {"10", "20"} <= set(labels)
    assert not any("$" in label for label in labels)
    assert hovers[axes.patches[2].get_gid()] == "15.85 to 19.95: 200 sentences"


def test_page_names_the_threshold_above_which_sentences_are_dropped():
    page = perplexity_page(found(max_perplexity=20.0))
    assert "Sentences above 20 are dropped" in page
    assert "n-gram" in page


def test_sentences_are_escaped():
    page = perplexity_page(found())
    assert "&lt;b&gt;Olá&lt;/b&gt; \\x1b[31m" in page
    assert "<b>" not in page
    assert page.count("<script>") == 1
    assert "http" not in re.sub(r"http://a\.pt/\?a=1&amp;b=&lt;script&gt;", "", page).replace("http-equiv", "")


def test_page_without_perplexities_has_no_figure():
    page = perplexity_page(found(scorer="none", histogram={"edges": [], "counts": []}, thresholds=[]))
    assert "No sentence has a perplexity." in page
    assert "<svg" not in page

"""The page of perplexities: what it counts and draws, and that no sentence acts in it."""

import re

import pytest

from paratune.report.perplexity import _ticks, perplexity_page


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


def test_the_page_says_what_the_record_says():
    page = perplexity_page(found())
    for said in ("4,936 sentences, read by an n-gram model; 64 more have no perplexity.", "1,234", "25.0%"):
        assert said in page
    assert "Nothing is dropped" in page
    assert "15.85 to 19.95: 200 sentences" in page
    assert "None." in page


def test_bars_are_as_high_as_their_counts():
    heights = [float(each) for each in re.findall(r'<rect[^>]* height="([\d.]+)"', perplexity_page(found()))]
    assert heights == pytest.approx([105, 210, 52.5])  # 210 for the most, none for none


def test_thresholds_stand_where_the_axis_has_them():
    page = perplexity_page(found(histogram={"edges": [10.0, 100.0, 1000.0], "counts": [1, 1]}))
    line = re.search(r"<g><title>25.0%[^<]*</title><line x1=\"([\d.]+)\"", page)
    # From 70 to 748 there are two decades; log10 of 20 is 0.301 of them further than 10.
    assert float(line[1]) == pytest.approx(70 + 678 * 0.301 / 2, abs=0.2)


def test_what_is_dropped_is_said():
    page = perplexity_page(found(max_perplexity=20.0, scorer="mlm"))
    assert "Sentences above 20 are dropped" in page
    assert "pseudo-perplexity" in page


def test_nothing_of_a_sentence_acts():
    page = perplexity_page(found())
    assert "&lt;b&gt;Olá&lt;/b&gt; \\x1b[31m" in page
    assert "<b>" not in page
    assert page.count("<script>") == 1
    assert "http" not in re.sub(r"http://a\.pt/\?a=1&amp;b=&lt;script&gt;", "", page).replace("http-equiv", "")


def test_without_perplexities_there_is_nothing_to_draw():
    page = perplexity_page(found(scorer="none", histogram={"edges": [], "counts": []}, thresholds=[]))
    assert "No sentence has a perplexity." in page
    assert "<svg" not in page


@pytest.mark.parametrize(
    ("most", "ticks"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (9, [0, 5]), (1600, [0, 500, 1000, 1500]), (100, [0, 50, 100])]
)
def test_ticks_are_round(most, ticks):
    assert _ticks(most) == ticks

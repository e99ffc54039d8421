"""The report of a corpus, from figures that are written out here."""

import re

from paratune.reports.corpus.report import corpus_html, corpus_tables, funnel_table, reasons_table

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
    assert "alert(&quot;x&quot;)" in page
    assert "\x1b" not in page
    assert "src=" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert "Um dois" in page

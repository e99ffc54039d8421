import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paratune.corpus.sentences.run import NUM_SAMPLES, SCORED_SCHEMA, evaluate_thresholds
from paratune.corpus.settings import SentenceSettings


def look(tmp_path, shards, **options):
    """Of shards of perplexities; row 0 of each shard repeats another sentence and has none."""
    split, scored = [], []
    for number, values in enumerate(shards):
        rows = range(1, len(values) + 1)
        texts = pa.table({"text": ["again", *(f"{number}:{row}" for row in rows)], "url": ["u"] * (len(values) + 1)})
        pq.write_table(texts, tmp_path / f"split-{number}")
        pq.write_table(
            pa.table({"row": rows, "perplexity": values}, schema=SCORED_SCHEMA), tmp_path / f"scored-{number}"
        )
        split.append(tmp_path / f"split-{number}")
        scored.append(tmp_path / f"scored-{number}")
    return evaluate_thresholds(tmp_path, split, scored, SentenceSettings(**options))


def test_the_histogram_has_ten_bins_a_decade(tmp_path):
    result = look(tmp_path, [[10.0, 11.0, 12.0], [100.0, None], []])
    edges, counts = result["histogram"]["edges"], result["histogram"]["counts"]
    assert edges == pytest.approx([10 ** (1 + n / 10) for n in range(12)], rel=1e-3)
    assert counts == [3, *[0] * 9, 1]  # 12 < 12.59, and 100 is in the bin of 100 to 126
    assert (result["num_sentences"], result["num_unknown"], result["scorer"]) == (5, 1, "ngram")


def test_quantiles_are_within_a_bin(tmp_path):
    values = [math.exp(n / 100) for n in range(1000)]
    result = look(tmp_path, [values[::2], values[1::2]])["quantiles"]
    for quantile, value in result.items():
        assert value == pytest.approx(values[round(float(quantile) * 1000) - 1], rel=0.015)


def test_samples_are_the_nearest_on_both_sides_of_all_shards(tmp_path):
    result = look(tmp_path, [[1.0 + n for n in range(0, 40, 2)], [1.0 + n for n in range(1, 40, 2)]], thresholds=[20.0])
    (threshold,) = result["thresholds"]
    assert [item["perplexity"] for item in threshold["below"]] == [15.0, 16.0, 17.0, 18.0, 19.0, 20.0]
    assert [value["perplexity"] for value in threshold["above"]] == [21.0, 22.0, 23.0, 24.0, 25.0, 26.0]
    assert threshold["above"][0] == {"perplexity": 21.0, "text": "0:11", "url": "u"}
    assert threshold["above"][1]["text"] == "1:11"
    assert (threshold["num_above"], threshold["share_above"]) == (20, 0.5)


def test_equal_perplexities_come_in_the_order_of_the_corpus(tmp_path):
    (threshold,) = look(tmp_path, [[5.0] * 5, [5.0] * 5], thresholds=[5.0])["thresholds"]
    assert [item["text"] for item in threshold["below"]][: NUM_SAMPLES - 1] == [f"0:{row}" for row in range(1, 6)]
    (threshold,) = look(tmp_path, [[5.0, 4.0] * 50], thresholds=[5.0])["thresholds"]
    assert [value["text"] for value in threshold["below"]] == [f"0:{row}" for row in range(1, 12, 2)]


def test_the_limit_is_among_the_thresholds(tmp_path):
    result = look(tmp_path, [[1.0, 2.0, 3.0]], thresholds=[2.0], max_perplexity=2.5)
    assert [item["perplexity"] for item in result["thresholds"]] == [2.0, 2.5]
    assert [value["num_above"] for value in result["thresholds"]] == [1, 1]


def test_a_threshold_of_many_digits_is_compared_as_the_table_has_it(tmp_path):
    (threshold,) = look(tmp_path, [[12.3, 12.4]], thresholds=[12.3])["thresholds"]
    assert threshold["num_above"] == 1


@pytest.mark.parametrize("shards", [[[]], [[None]]])
def test_nothing_to_show(tmp_path, shards):
    result = look(tmp_path, shards, thresholds=[3.0])
    assert (result["thresholds"], result["quantiles"], result["histogram"]) == ([], {}, {"edges": [], "counts": []})

"""The recipe of sentence embeddings: gradients by ranks and accumulation, scores, predictions and files."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from raised import raises_code
from scipy import stats
from tiny import tiny_config, tiny_tokenizer
from transformers import BertConfig, BertModel

from paratune.config.sections import Columns, ModelOptions
from paratune.config.task_sections import EmbeddingTask
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import PackedCollator, TrainBatches, eval_batches
from paratune.models.embedding import COSINE, NEGATIVE, RANK
from paratune.models.packed import enable_packed_batches
from paratune.models.save import SentenceModules, write_modules
from paratune.precision import POLICIES
from paratune.tasks import make_recipe
from paratune.verdicts.scoring import score_rows
from paratune.verdicts.slices import read_rows, scored_task

TOKENIZER = tiny_tokenizer()
WORDS = ["good", "bad", "fine", "poor", "great", "awful", "nice", "ugly", "film", "book", "food", "place", "phone"]
TEXTS = [" ".join(WORDS[number % 13 : number % 13 + 1 + number % 4]) for number in range(22)]
TABLE = pa.table(
    {
        "text": TEXTS,
        "pair": [f"the {text}" for text in TEXTS],
        "other": [f"{text} not" for text in TEXTS[::-1]],
        "score": [number % 6 for number in range(22)],
        "is_same": [number % 2 for number in range(22)],
    }
)
MNR = EmbeddingTask(kind="embedding", group_size=4)
COLUMNS = {
    "multiple_negatives_ranking": Columns(text="text", text_pair="pair", negative="other"),
    "cosine_similarity": Columns(text="text", text_pair="pair", label="score"),
    "triplet": Columns(text="text", text_pair="pair", negative="other"),
    "contrastive": Columns(text="text", text_pair="pair", label="is_same"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = tiny_config(dropout=0.0)
    config.initializer_range = 0.2  # so that vectors differ
    BertModel(config, add_pooling_layer=False).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def model_of(task, folder, precision="fp64"):
    return make_recipe(task).load_model(ModelOptions(name=str(folder)), TOKENIZER, POLICIES[precision], 0)


def split_of(task, tmp_path, table=TABLE, *, columns=None, require_labels=True, recipe=None):
    options = TokenizeOptions(TOKENIZER, 32, need_token_type_ids=True, cache_dir=tmp_path)
    return (recipe or make_recipe(task)).load_split(
        "here", table, columns or COLUMNS[task.loss], options, missing="refuse", require_labels=require_labels
    )


def outputs_of(task, model, split, **options):
    collator, rows = make_recipe(task).collator(split, TOKENIZER), []
    collator = PackedCollator(collator, rounds=True) if model.entry is not None else collator
    recipe = make_recipe(task)
    for batch in eval_batches(collator, batch_size=8, group_size=recipe.group_size, **options):
        outputs = model.row_outputs(model(batch), batch)
        rows += [(index, row) for index, row in zip(batch.index.tolist(), outputs.tolist(), strict=True) if index >= 0]
    return np.array([row for _, row in sorted(rows)])


@pytest.mark.parametrize(
    ("ranks", "size", "steps", "options"),
    [(1, 4, 4, {}), (2, 4, 2, {"equal_shapes": True}), (2, 8, 1, {}), (1, 16, 1, {"num_buckets": 2})],
)
def test_gradients_do_not_depend_on_ranks_and_accumulation(tmp_path, folder, ranks, size, steps, options):
    model = model_of(MNR, folder)
    collator = make_recipe(MNR).collator(split_of(MNR, tmp_path), TOKENIZER)

    def gradients(ranks, size, steps, step, options, make=lambda collator: collator):
        losses, total = [], 0.0
        for rank in range(ranks):
            for batch in TrainBatches(
                make(collator), 1, 16, size, steps, rank, ranks, group_size=4, **options
            ).step(step):  # fmt: skip
                losses.append(model.loss_sum(model(batch), batch) / batch.loss_denominator)
        total = torch.stack(losses).sum()
        found = torch.autograd.grad(total, list(model.parameters()))
        return total.item(), torch.cat([gradient.flatten() for gradient in found])

    for step in range(2):  # the second step has 6 samples: a group of 4 and one of 2
        loss, expected = gradients(1, 16, 1, step, {})
        computed, found = gradients(ranks, size, steps, step, options)
        assert computed == pytest.approx(loss, rel=1e-12)
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))
        if "equal_shapes" not in options:
            enable_packed_batches(model)
            assert model.entry is not None, model.why_padded
            computed, found = gradients(ranks, size, steps, step, options, PackedCollator)
            assert computed == pytest.approx(loss, rel=1e-12)
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("loss", COLUMNS)
def test_scores_files_and_intervals_agree(tmp_path, folder, loss):
    task = EmbeddingTask(kind="embedding", loss=loss, **({"score_range": [0, 5]} if "cosine" in loss else {}))
    model, recipe, split = model_of(task, folder, "fp32"), make_recipe(task), split_of(task, tmp_path)
    outputs = outputs_of(task, model, split)
    scores = recipe.scores(split, outputs)
    if loss == "cosine_similarity":
        assert scores["spearman"] == pytest.approx(stats.spearmanr(outputs[:, 0], TABLE["score"].to_pylist()).statistic)
    if "negative" not in (COLUMNS[loss].model_dump(exclude_none=True)):
        assert set(scores) & {"accuracy"} == set()
    else:
        assert scores["accuracy"] == pytest.approx((outputs[:, COSINE] > outputs[:, NEGATIVE]).mean())
    if loss == "multiple_negatives_ranking":
        assert scores["mrr"] == pytest.approx((1 / outputs[:, RANK]).mean())
        assert outputs[:, RANK].max() > 1  # else the test shows nothing
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    scored = scored_task("run", tmp_path, "embedding", options=task.model_dump())
    rows = read_rows(scored, "data")
    for metric, value in scores.items():
        again = score_rows(scored, rows, metric)
        assert again.score == pytest.approx(value, rel=1e-6)
    assert score_rows(scored, rows, "mrr" if "mrr" not in scores else "spearman") is None
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").column_names
    assert ("label" in written) == (COLUMNS[loss].label is not None)


def test_predictions_are_cosines_of_pairs_and_vectors_of_texts(tmp_path, folder):
    task = MNR.model_copy(update={"normalize": True})
    model, recipe = model_of(task, folder, "fp32"), make_recipe(task)
    # A prediction compares pairs: a table without the column of negatives is enough.
    pairs = split_of(task, tmp_path, TABLE.drop_columns("other"), require_labels=False)
    texts = split_of(task, tmp_path, columns=Columns(text="text"), require_labels=False)
    others = split_of(task, tmp_path, columns=Columns(text="pair"), require_labels=False)
    enable_packed_batches(model)
    cosines = recipe.prediction_columns(pairs, outputs_of(task, model, pairs), TOKENIZER)["prediction"]
    vectors, other = (
        np.array(recipe.prediction_columns(split, outputs_of(task, model, split), TOKENIZER)["embedding"].to_pylist())
        for split in (texts, others)
    )
    assert vectors.shape == (22, 32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert (vectors * other).sum(axis=1) == pytest.approx(cosines, abs=1e-5)


def test_labels_and_scores_outside_are_refused(tmp_path):
    with raises_code("data.target_out_of_range", "task.score_range", 5):
        split_of(EmbeddingTask(kind="embedding", loss="cosine_similarity"), tmp_path)
    contrastive = EmbeddingTask(kind="embedding", loss="contrastive")
    with raises_code("data.label_unseen", 2):
        split_of(contrastive, tmp_path, columns=COLUMNS["cosine_similarity"])
    with raises_code("data.value_missing", "negative (column other) in 22 of 22 rows"):
        empty = TABLE.set_column(2, "other", pa.nulls(22, pa.string()))
        split_of(MNR, tmp_path, empty)


def test_the_range_of_scores_is_read_from_the_data(tmp_path):
    task = EmbeddingTask(kind="embedding", loss="cosine_similarity", score_range=None)
    recipe = make_recipe(task)
    split = split_of(task, tmp_path, recipe=recipe)
    assert recipe.task.score_range == [0, 5]
    assert recipe.collator(split, TOKENIZER).labels[:6].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    equal = TABLE.set_column(3, "score", pa.array([4] * 22))
    with raises_code("data.one_class", value=4.0):
        split_of(task, tmp_path, equal, recipe=make_recipe(task))


def test_equal_texts_have_the_same_number(tmp_path):
    table = pa.table({"text": ["good film", "GOOD  film", "bad"], "pair": ["bad", "fine", "good film"]})
    columns = Columns(text="text", text_pair="pair")
    assert split_of(MNR, tmp_path, table, columns=columns).labels.tolist() == [[0, 1], [0, 2], [1, 0]]


def test_models_that_do_not_fit_are_refused_or_logged(tmp_path, folder, caplog):
    write_modules(tmp_path, SentenceModules("cls", True), width=32)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    model_of(MNR, tmp_path)
    assert [record.code for record in caplog.records if hasattr(record, "code")] == ["model.other_pooling"]
    BertConfig(is_encoder_decoder=True).save_pretrained(tmp_path)
    with raises_code("model.unsupported", key="model.name"):
        model_of(MNR, tmp_path)


def test_equal_pairs_and_equal_labels_give_a_warning(tmp_path):
    split = split_of(MNR, tmp_path, columns=Columns(text="text", text_pair="text"))
    ((warning, extra),) = make_recipe(MNR).warnings({"train": split})
    assert (extra["code"], extra["facts"]["num_rows"]) == ("data.pairs_equal", 22)
    assert "22 of 22 pairs" in warning
    task = EmbeddingTask(kind="embedding", loss="contrastive")
    split = split_of(task, tmp_path)
    same = replace(split, samples=replace(split.samples, labels=np.ones(22, dtype=np.float32)))
    ((warning, extra),) = make_recipe(task).warnings({"train": same})
    assert extra["code"] == "data.labels_constant"
    assert "all 22 pairs have the label 1" in warning

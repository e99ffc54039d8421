"""Options of sentence embeddings that do not fit together, and groups that do not fit into micro-batches."""

import pytest
from raised import check_code, raises_code

from paratune.config.batch_size import BatchSize, ResolvedBatch, resolve_batch
from paratune.config.load import load_config
from paratune.config.metric_names import EMBEDDING_SCORES, METRICS
from paratune.config.traits import TRAITS

CLASSES = "  kind: classification\n  labels: [negative, positive]\n"
COLUMNS = {
    "multiple_negatives_ranking": ("data.columns.label=null",),
    "cosine_similarity": (),
    "triplet": ("data.columns.label=null", "data.columns.negative=c"),
    "contrastive": (),
}


def options(loss: str) -> list[str]:
    """Return the overrides with which an embedding with a loss is valid."""
    return ["data.split.stratify=false", "data.columns.text_pair=b", *COLUMNS[loss]]


def swap(loss: str) -> tuple[str, str]:
    return CLASSES, f"  kind: embedding\n  loss: {loss}\n"


@pytest.mark.parametrize("loss", COLUMNS)
def test_each_loss_has_its_metrics(good, good_text, loss):
    good.write_text(good_text.replace(*swap(loss)))
    for metric in (*EMBEDDING_SCORES[loss], "loss"):
        extra = ["data.columns.negative=c"] if metric == "accuracy" else []
        config = load_config(good, [*options(loss), *extra, f"evaluate.best={metric}"]).config
        assert config.evaluate.best == metric in METRICS["embedding"]


@pytest.mark.parametrize(
    ("loss", "override", "code", "values"),
    [
        ("multiple_negatives_ranking", "data.columns.label=y", "config.no_effect", ["data.columns.label: y"]),
        ("multiple_negatives_ranking", "data.columns.text_pair=null", "config.required", ["data.columns.text_pair"]),
        ("multiple_negatives_ranking", "task.margin=1", "config.no_effect", ["task.margin: 1"]),
        ("multiple_negatives_ranking", "task.score_range=null", "config.no_effect", ["task.score_range: null"]),
        ("multiple_negatives_ranking", "evaluate.best=spearman", "metric.unknown", ["spearman", "mrr"]),
        ("multiple_negatives_ranking", "evaluate.best=accuracy", "config.no_effect", ["accuracy", "negative"]),
        ("multiple_negatives_ranking", "data.truncation=only_first", "config.no_effect", ["only_first"]),
        ("multiple_negatives_ranking", "train.freeze_encoder=true", "config.conflict", ["train.freeze_encoder"]),
        ("cosine_similarity", "data.columns.label=null", "config.required", ["data.columns.label"]),
        ("cosine_similarity", "data.columns.negative=c", "config.no_effect", ["data.columns.negative: c"]),
        ("cosine_similarity", "task.score_range=[5, 0]", "config.invalid_value", ["task.score_range", "5"]),
        ("cosine_similarity", "task.group_size=8", "config.no_effect", ["task.group_size: 8"]),
        ("cosine_similarity", "evaluate.slices=[label]", "config.no_effect", ["evaluate.slices"]),
        ("triplet", "data.columns.negative=null", "config.required", ["data.columns.negative"]),
        (
            "triplet",
            "data.columns.negative=b",
            "config.conflict",
            ["data.columns.negative", "data.columns.text_pair"],
        ),
        ("triplet", "task.scale=2", "config.no_effect", ["task.scale: 2"]),
        ("contrastive", "task.score_range=[0, 5]", "config.no_effect", ["task.score_range"]),
        (
            "contrastive",
            "evaluate.metrics=[{name: a, function: b:c, higher_is_better: true}]",
            "task.unsupported",
            ["embedding"],
        ),
        ("contrastive", "distil.teacher=runs/a", "task.unsupported", ["embedding"]),
    ],
)
def test_options_of_embeddings(reject, loss, override, code, values):
    key = override.partition("=")[0]
    overrides = [option for option in options(loss) if not option.startswith(f"{key}=")]
    check_code(reject(*overrides, override, swap=swap(loss)), code, *values)


def test_negatives_are_for_embeddings(reject):
    check_code(reject("data.columns.negative=c"), "config.no_effect", "data.columns.negative: c")


def test_micro_batches_are_whole_groups():
    def resolved(ranks: int, **values: int) -> ResolvedBatch:
        batch = BatchSize.model_validate(values)
        return resolve_batch(batch, TRAITS["ddp"], data_world_size=ranks, group_size=8)

    assert resolved(2, **{"global": 64, "micro_batch_size": 16}) == ResolvedBatch(64, 16, 2, 1, 8)
    whole = resolved(1, **{"global": 48})
    assert whole.possible() == [8, 16, 24, 48]
    assert (whole.at_most(20).micro_batch_size, whole.at_most(1).micro_batch_size) == (16, 8)
    assert whole.halved() == ResolvedBatch(48, 24, 2, 1, 8)
    assert resolved(1, **{"global": 8}).halved() is None
    with raises_code("batch.group", 24, 2, 8, nearest=[16, 32]):
        resolved(2, **{"global": 24})
    with raises_code("batch.group", 4, nearest=[8]):
        resolved(1, per_device=4)
    # 96 is 3 groups of 32: the micro-batches cut them, and another batch.global would not help.
    batch = BatchSize.model_validate({"global": 96, "micro_batch_size": 48})
    with raises_code("batch.group", keys=("batch.micro_batch_size", "task.group_size"), nearest=[32]):
        resolve_batch(batch, TRAITS["ddp"], data_world_size=1, group_size=32)


def test_a_pipeline_has_micro_batches_of_whole_groups():
    batch = BatchSize.model_validate({"global": 64})
    assert resolve_batch(batch, TRAITS["pipeline"], data_world_size=1, group_size=8).micro_batch_size == 8
    with raises_code("batch.too_few_micro_batches", 1, 2):
        resolve_batch(BatchSize.model_validate({"global": 8}), TRAITS["pipeline"], data_world_size=1, group_size=8)

import pytest
from raised import raises_code
from tiny import tiny_model

from paratune.config.sections import FreezeOptions, Train
from paratune.models.task_model import TaskModel
from paratune.models.trained_weights import freeze_weights, layer_depths, layer_rate_factors


def model(new: tuple[str, ...] = ()) -> TaskModel:
    """Return a BERT with embeddings, two blocks, a pooler and a classifier."""
    return TaskModel(tiny_model(), "classification", new_weights=new)


def frozen(options: FreezeOptions) -> set[str]:
    frozen_model = model()
    freeze_weights(frozen_model, Train(freeze=options))
    return {name for name, parameter in frozen_model.hf.named_parameters() if not parameter.requires_grad}


def names(*starts: str) -> set[str]:
    return {name for name, _ in model().hf.named_parameters() if name.startswith(starts)}


def test_depths_of_bert():
    by_depth = {0: "bert.embeddings.", 1: "bert.encoder.layer.0.", 2: "bert.encoder.layer.1.", 3: ("bert.pooler", "cl")}
    depths = layer_depths(model())
    for name, depth in depths.items():
        assert name.startswith(by_depth[depth])
    assert set(depths.values()) == {0, 1, 2, 3}


def test_rates_fall_with_the_distance_from_the_head():
    # BEiT: head 1, last block decay, embeddings decay^(blocks + 1).
    factors = layer_rate_factors(model(), 0.5)
    assert factors["hf.classifier.weight"] == factors["hf.bert.pooler.dense.weight"] == 1.0
    assert factors["hf.bert.encoder.layer.1.output.dense.weight"] == 0.5
    assert factors["hf.bert.encoder.layer.0.output.dense.bias"] == 0.25
    assert factors["hf.bert.embeddings.LayerNorm.weight"] == 0.125
    assert layer_rate_factors(model(), 1.0) == {}


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        (FreezeOptions(embeddings=True), ("bert.embeddings.",)),
        (FreezeOptions(blocks=1), ("bert.encoder.layer.0.",)),
        (FreezeOptions(embeddings=True, blocks=2), ("bert.embeddings.", "bert.encoder.")),
        (FreezeOptions(names=["bert.encoder.layer.1.*", "*.pooler.*"]), ("bert.encoder.layer.1.", "bert.pooler.")),
    ],
    ids=str,
)
def test_frozen_weights_are_those_named(options, starts):
    assert frozen(options) == names(*starts)


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        (FreezeOptions(blocks=3), "model.unsupported", ("train.freeze.blocks", "3", "2")),
        (FreezeOptions(names=["bert.layers.*"]), "config.no_effect", ("bert.layers.*", "bert.embeddings")),
        (FreezeOptions(names=["*"]), "model.nothing_trained", ("train.freeze",)),
    ],
)
def test_freezing_nothing_or_everything_is_refused(options, code, values):
    with raises_code(code, *values):
        freeze_weights(model(), Train(freeze=options))


def test_new_weights_are_not_frozen():
    with raises_code("model.nothing_trained", "train.freeze", "bert.pooler.dense.weight"):
        freeze_weights(model(("bert.pooler.dense.weight",)), Train(freeze=FreezeOptions(names=["bert.pooler.*"])))

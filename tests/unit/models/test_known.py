"""Shapes of published models, held to their published numbers of parameters (encoder with pooler, without a head)."""

import pytest
import torch
from transformers import AutoModel

from paratune.models.known import SHAPES, known_config

NUM_PARAMETERS = {
    # From the models on the hub; the papers have them in millions: 110, 340, 66, 125, 355, 12, 110, 184, 149.
    "bert-base-uncased": 109_482_240,
    "bert-large-uncased": 335_141_888,
    "distilbert-base-uncased": 66_362_880,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "albert-base-v2": 11_683_584,
    "google/electra-base-discriminator": 108_891_648,
    "microsoft/deberta-v3-base": 183_831_552,
    "answerdotai/ModernBERT-base": 149_014_272,
}


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_they_have_as_many_parameters_as_is_published(name: str) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(known_config(name))
    assert sum(each.numel() for each in model.parameters()) == NUM_PARAMETERS[name]


def test_a_name_may_have_its_owner_in_front() -> None:
    assert known_config("google-bert/bert-base-cased").vocab_size == 28996
    assert known_config("someone/bert-base-cased") is None
    assert len(SHAPES) == 20

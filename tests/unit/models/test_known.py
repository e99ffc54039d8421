"""Shapes of published models have the published numbers of parameters (encoder with pooler, without a head)."""

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
    # From the model cards, without the layer that predicts words (of LLaMA 2 that has 32,000 x 4,096 weights).
    "bigscience/bloom-1b1": 1_065_314_304,
    "bigscience/bloomz-7b1": 7_069_016_064,
    "EleutherAI/gpt-neo-1.3B": 1_315_575_808,
    "PORTULAN/gervasio-7b-portuguese-ptpt-decoder": 6_738_415_616 - 32_000 * 4_096,
}


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_known_shapes_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(known_config(name))
    assert sum(value.numel() for value in model.parameters()) == NUM_PARAMETERS[name]


def test_names_may_include_the_owner() -> None:
    assert known_config("google-bert/bert-base-cased").vocab_size == 28996
    assert known_config("someone/bert-base-cased") is None
    assert len(SHAPES) == 38


@pytest.mark.parametrize(
    ("name", "millions"),
    [  # As the papers give them.
        ("PORTULAN/albertina-100m-portuguese-ptpt-encoder", 139),
        ("PORTULAN/albertina-900m-portuguese-ptbr-encoder", 900),
        ("PORTULAN/albertina-1b5-portuguese-ptpt-encoder", 1500),
        ("NOVA-vision-language/GlorIA-1.3B", 1300),
        ("ai-forever/mGPT", 1400),
        ("Nos-PT/Carvalho_pt-gl-1.3B", 1300),
        ("AiBERTa", 110),
    ],
)
def test_models_of_the_studies_have_about_the_number_of_parameters_in_their_papers(name: str, millions: int) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(known_config(name))
    assert sum(value.numel() for value in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.08)

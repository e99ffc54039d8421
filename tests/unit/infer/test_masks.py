"""Masks of texts that are typed: the words of transformers' own pipeline, and what is refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from raised import raises_code
from tiny import VOCABULARY, tiny_masked_lm, tiny_model
from transformers import pipeline

from paratune.infer.masks import Guess, fill_masks
from paratune.infer.trained import NamedColumns, load_trained

TEXTS = ["the [MASK] was very [MASK]", "one two [MASK]", "a bad [MASK] and a good story"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    tiny_masked_lm(tmp_path / "model")
    return str(tmp_path / "model")


def fill(model: str, texts: Sequence[str], top_k: int = 3) -> list[list[list[Guess]]]:
    return fill_masks(load_trained(model, NamedColumns(text="text"), "cpu"), texts, top_k)


@pytest.mark.parametrize("top_k", [1, 7])  # less and more than `predict` keeps
def test_words_and_probabilities_equal_those_of_transformers_pipeline(model: str, top_k: int):
    filled = fill(model, TEXTS, top_k)
    theirs = pipeline("fill-mask", model=model, top_k=top_k)
    assert [len(masks) for masks in filled] == [2, 1, 1]
    for text, masks in zip(TEXTS, filled, strict=True):
        wanted = theirs(text)
        wanted = wanted if len(masks) > 1 else [wanted]
        assert [[guess.token for guess in mask] for mask in masks] == [
            [word["token_str"] for word in mask] for mask in wanted
        ]
        for mask, scores in zip(masks, wanted, strict=True):
            assert [guess.probability for guess in mask] == pytest.approx(
                [guess["score"] for guess in scores], rel=1e-4
            )


def test_probabilities_of_all_words_sum_to_1(model: str):
    ((guesses,),) = fill(model, ["a [MASK]"], len(VOCABULARY))
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)
    assert {guess.token for guess in guesses} == set(VOCABULARY)


def test_typed_texts_are_not_cached(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    fill(model, TEXTS)
    assert not (tmp_path / "cache").exists()


def test_a_text_without_a_mask_is_named(model: str):
    with raises_code("data.no_mask", "2", "a <mask>", "MASK"):
        fill(model, ["a [MASK]", "a <mask>"])


def test_a_mask_beyond_the_maximum_length_is_an_error(model: str):
    with raises_code("data.no_mask", "2", "64"):
        fill(model, ["a [MASK]", "[MASK] " + "good " * 70 + "[MASK]", "a [MASK]"])


@pytest.mark.parametrize("top_k", [0, -1, len(VOCABULARY) + 1])
def test_top_k_is_at_most_the_vocabulary(model: str, top_k: int):
    with raises_code("cli.out_of_range", top_k, len(VOCABULARY), "--top-k", "1"):
        fill(model, TEXTS, top_k)


def test_a_model_for_another_task_is_refused(tmp_path: Path):
    tiny_model(tmp_path / "classes")
    with raises_code("task.unsupported", "classification"):
        fill(str(tmp_path / "classes"), TEXTS)

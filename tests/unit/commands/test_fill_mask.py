"""`fill-mask`: the output, the words of transformers' own pipeline, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from raised import raises_code
from tiny import VOCABULARY, tiny_masked_lm, tiny_model
from transformers import pipeline

from paratune.commands import fill_mask as command
from paratune.commands.fill_mask import fill_mask, fill_masks
from paratune.infer.trained import NamedColumns, load_trained


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(command, "set_up_process", lambda: None)
    tiny_masked_lm(tmp_path / "model")
    return str(tmp_path / "model")


def filled(model: str, *texts: str, as_json: bool) -> None:
    fill_mask(model, *texts, top_k=2, device="cpu", json=as_json)


def test_terminal_and_json_show_the_same_words(model: str, capsys: pytest.CaptureFixture[str]):
    texts = ("the [MASK] was [MASK]", "a [MASK]\x1b[2J of the good films")
    filled(model, *texts, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == model
    assert [entry["text"] for entry in document["texts"]] == list(texts)
    assert [len(entry["masks"]) for entry in document["texts"]] == [2, 1]

    filled(model, *texts, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if "[MASK]" in line] == [
        "the [MASK] was [MASK]",
        r"a [MASK]\x1b[2J of the good films",
    ]
    assert lines[1].split() == ["mask", "1", "probability", "mask", "2", "probability"]
    for at, masks in ((2, document["texts"][0]["masks"]), (6, document["texts"][1]["masks"])):
        for rank in range(2):
            cells = [cell for mask in masks for cell in (mask[rank]["token"], f"{mask[rank]['probability']:.4f}")]
            assert lines[at + rank].split() == cells


TEXTS = ["the [MASK] was very [MASK]", "one two [MASK]", "a bad [MASK] and a good story"]


def fill(model: str, texts: Sequence[str], top_k: int = 3) -> list[list[list[dict]]]:
    return fill_masks(load_trained(model, NamedColumns(text="text"), "cpu"), texts, top_k)


@pytest.mark.parametrize("top_k", [1, 7])  # less and more than `predict` keeps
def test_words_and_probabilities_equal_those_of_transformers_pipeline(model: str, top_k: int):
    filled = fill(model, TEXTS, top_k)
    theirs = pipeline("fill-mask", model=model, top_k=top_k)
    assert [len(masks) for masks in filled] == [2, 1, 1]
    for text, masks in zip(TEXTS, filled, strict=True):
        wanted = theirs(text)
        wanted = wanted if len(masks) > 1 else [wanted]
        assert [[guess["token"] for guess in mask] for mask in masks] == [
            [word["token_str"] for word in mask] for mask in wanted
        ]
        for mask, scores in zip(masks, wanted, strict=True):
            assert [guess["probability"] for guess in mask] == pytest.approx(
                [guess["score"] for guess in scores], rel=1e-4
            )


def test_probabilities_of_all_words_sum_to_1(model: str):
    ((guesses,),) = fill(model, ["a [MASK]"], len(VOCABULARY))
    assert sum(guess["probability"] for guess in guesses) == pytest.approx(1)
    assert {guess["token"] for guess in guesses} == set(VOCABULARY)


def test_typed_texts_are_not_cached(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    fill(model, TEXTS)
    assert not (tmp_path / "cache").exists()


def test_a_text_without_a_mask_is_named(model: str):
    with raises_code("tokenizer.token_missing", "2", "a <mask>", "MASK"):
        fill(model, ["a [MASK]", "a <mask>"])


def test_a_mask_beyond_the_maximum_length_is_an_error(model: str):
    with raises_code("tokenizer.token_missing", "2", "64"):
        fill(model, ["a [MASK]", "[MASK] " + "good " * 70 + "[MASK]", "a [MASK]"])


@pytest.mark.parametrize("top_k", [0, -1, len(VOCABULARY) + 1])
def test_top_k_is_at_most_the_vocabulary(model: str, top_k: int):
    with raises_code("cli.invalid_value", top_k, len(VOCABULARY), "--top-k", "1"):
        fill(model, TEXTS, top_k)


def test_a_model_for_another_task_is_refused(tmp_path: Path):
    tiny_model(tmp_path / "classes")
    with raises_code("task.unsupported", "classification"):
        fill(str(tmp_path / "classes"), TEXTS)

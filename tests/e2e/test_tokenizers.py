"""Models with a tokenizer whose offsets leave out the first letter of each word learn their training data by heart."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_config
from tokenizer_kinds import spaced_tokenizer
from transformers import BertForQuestionAnswering, BertForTokenClassification

import paratune

SENTENCES = [
    "A dog saw I and Anna in Lisbon",
    "I wrote a letter to B yesterday",
    "Is X a city or a dog of Anna ?",
    "B and I saw Lisbon , and a dog",
]
SETTINGS = {
    "train": {"epochs": 60, "learning_rate": 3e-3},
    "batch": {"global": 4},
    "device": "cpu",
}


def save_model(folder: Path, head: Any, num_labels: int) -> str:
    tokenizer = spaced_tokenizer(*SENTENCES)
    config = tiny_config(num_labels, dropout=0.0)
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    head(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def scores_on_training_data(data: Path, model: str, task: dict[str, Any]) -> Any:
    place = {"name": "run", "folder": str(data.parent / "runs")}
    columns = {"text": "question", "text_pair": "context", "label": "answers"}
    columns = columns if task["kind"] == "qa" else {"text": "tokens", "label": "tags"}
    files = {"train": str(data), "columns": columns}
    run = paratune.train({**SETTINGS, "run": place, "task": task, "data": files, "model": {"name": model}})
    return paratune.evaluate(run, str(data)).values["scores"]


@pytest.mark.slow
def test_answers_are_found_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    answers = ["dog", "letter", "X", "Lisbon"]
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": str(number),
                    "question": "what",
                    "answers": [{"text": answer, "answer_start": f" {context} ".index(f" {answer} ")}],
                }
            ],
        }
        for number, (context, answer) in enumerate(zip(SENTENCES, answers, strict=True))
    ]
    data = tmp_path / "train.json"
    data.write_text(json.dumps({"version": "1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    model = save_model(tmp_path / "model", BertForQuestionAnswering, 2)
    task = {"kind": "qa", "unanswerable": False, "stride": 8}
    assert scores_on_training_data(data, model, task)["exact"] == 100.0


@pytest.mark.slow
def test_words_of_one_letter_get_their_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "train.conll"
    names = {"I", "Anna", "B", "X"}
    lines = ["\n".join(f"{word} {'B-PER' if word in names else 'O'}" for word in text.split()) for text in SENTENCES]
    data.write_text("\n\n".join(lines) + "\n")
    model = save_model(tmp_path / "model", BertForTokenClassification, 2)
    task = {"kind": "token_classification", "labels": ["O", "B-PER"]}
    assert scores_on_training_data(data, model, task)["f1"] == 1.0

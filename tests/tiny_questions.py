"""Questions about tiny contexts, as a file and as a split: `from tiny_questions import write_squad, tiny_windows`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny import VOCABULARY
from transformers import BertForQuestionAnswering

from paratune.data.collators import window_batches
from paratune.data.encode import BOUNDS, CHAR_END, CHAR_START
from paratune.data.loader import ChangedBatches, Collator
from paratune.data.token_store import EXAMPLE, TokenStore

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
THINGS = ["film", "book", "food", "place", "phone", "story"]


def squad(num_questions: int, *, answerable: float = 0.7, seed: int = 0) -> dict[str, Any]:
    """Return questions in SQuAD's layout; some ask about things that the context does not contain.

    Args:
        num_questions: Number of questions, five per context.
        answerable: Share of the questions that have an answer.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    paragraphs: list[Any] = []
    for number in range(num_questions):
        if number % 5 == 0:
            amounts = dict(zip(random.permutation(THINGS)[:4].tolist(), random.permutation(NUMBERS)[:4], strict=True))
            context = " and ".join(f"the {thing} was {amount}" for thing, amount in amounts.items())
            paragraphs.append({"context": context, "qas": []})
        has_answer = random.random() < answerable
        thing = str(random.choice([candidate for candidate in THINGS if (candidate in amounts) == has_answer]))
        answers = [{"text": str(amounts[thing]), "answer_start": 0}] if has_answer else []
        for answer in answers:
            answer["answer_start"] = context.index(f"{thing} was {answer['text']}") + len(f"{thing} was ")
        paragraphs[-1]["qas"].append(
            {"id": f"{seed}-{number}", "question": f"{thing} was?", "answers": answers, "is_impossible": not has_answer}
        )
    return {"version": "v2.0", "data": [{"title": "things", "paragraphs": paragraphs}]}


def write_squad(path: Path, num_questions: int, **options: Any) -> Path:
    path.write_text(json.dumps(squad(num_questions, **options)))
    return path


def tiny_windows(num_windows: int, *, seed: int = 0) -> ChangedBatches:
    """Return windows of 6 to 20 random tokens, each for a different question; a third of them has no answer."""
    random = np.random.default_rng(seed)
    lengths = random.integers(6, 21, num_windows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = random.integers(5, len(VOCABULARY), offsets[-1]).astype(np.uint16)
    bounds = np.stack([np.zeros(num_windows, np.int64), np.full(num_windows, 3), lengths - 1], axis=1)
    first = random.integers(3, lengths - 1)
    last = np.minimum(first + random.integers(0, 3, num_windows), lengths - 2)
    labels = np.where((random.random(num_windows) < 0.3)[:, None], 0, np.stack([first, last], axis=1))
    chars = np.arange(offsets[-1])
    store = TokenStore(
        tokens,
        None,
        offsets,
        lengths.astype(np.int32),
        20,
        "0" * 64,
        {CHAR_START: chars, CHAR_END: chars + 1},
        {EXAMPLE: np.arange(num_windows), BOUNDS: bounds},
    )
    return window_batches(Collator(store, labels.astype(np.int64), pad_token_id=0))


def tiny_qa_model(config: Any, *, seed: int = 0) -> BertForQuestionAnswering:
    """Return a small BERT with two outputs per token, with weights that depend only on the seed."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BertForQuestionAnswering(config)

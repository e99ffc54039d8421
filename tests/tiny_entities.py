"""Generated sentences with named entities: a person is "zoe" or "max" with a surname, a place follows "in"."""

import random
from pathlib import Path

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
_FIRST, _LAST = ["zoe", "max", "ida"], ["one", "two", "three"]
_PLACES = [["place", "five"], ["place", "ten"]]


def tagged_sentences(num_sentences: int, seed: int = 0) -> list[list[tuple[str, str]]]:
    """Return sentences as lists of (word, tag)."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(num_sentences):
        sentence = [(draw.choice(["the", "film", "story", "really"]), "O") for _ in range(draw.randint(1, 4))]
        sentence += [(draw.choice(_FIRST), "B-PER"), (draw.choice(_LAST), "I-PER"), ("was", "O")]
        if draw.random() < 0.5:
            begin, inside = draw.choice(_PLACES)
            sentence += [("it", "O"), (begin, "B-LOC"), (inside, "I-LOC")]
        sentences.append([*sentence, (draw.choice(["good", "bad", "nine"]), "O")])
    return sentences


def write_conll(path: Path, num_sentences: int, seed: int = 0) -> None:
    """Write generated sentences in CoNLL format."""
    sentences = tagged_sentences(num_sentences, seed)
    text = "\n\n".join("\n".join(f"{word} {tag}" for word, tag in sentence) for sentence in sentences)
    path.write_text(text + "\n", encoding="utf-8")

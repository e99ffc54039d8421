"""The demo sets of 200 rows: sentences of templates about an imagined valley, written for paratune (CC0).

python tests/demo_sets.py   # writes src/paratune/demo/pairs.csv, words.conll, questions.json, choices.csv, texts.txt
"""

import csv
import io
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from demo_templates import (
    ARTICLES,
    ASKED,
    DAYS,
    EVENTS,
    FIRST_NAMES,
    LAST_NAMES,
    ORGANIZATIONS,
    PLACES,
    SENTENCES,
    THINGS,
    TOOLS,
    TOPICS,
    TOWNS,
)

FOLDER = Path(__file__).parents[1] / "src" / "paratune" / "demo"
NUM_ROWS = 200
T = TypeVar("T")


class Draws:
    """Random draws that are the same in every version of Python, which promises that of `random` alone."""

    def __init__(self, seed: str) -> None:
        self._source = random.Random(seed)

    def below(self, limit: int) -> int:
        return int(self._source.random() * limit)

    def one(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def some(self, values: Sequence[T], count: int) -> list[T]:
        return sorted(values, key=lambda _: self._source.random())[:count]

    def person(self) -> str:
        return f"{self.one(FIRST_NAMES)} {self.one(LAST_NAMES)}"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def pairs() -> str:
    """Score 5: the same event in other words; 4: without its day; 3 and 2: another place, and another thing, too; 1:
    another event with the same person; 0: another event. From 4 the pair is a paraphrase."""
    draws = Draws("pairs")
    rows = []
    for number in range(NUM_ROWS):
        score = (5, 4, 5, 4, 3, 2, 1, 0)[number % 8]
        event, other = draws.some(EVENTS, 2)
        who, stranger = draws.some(FIRST_NAMES, 2)
        (thing, thing_2), (place, place_2) = draws.some(THINGS, 2), draws.some(PLACES, 2)
        day, day_2 = draws.some(DAYS, 2)
        same = {"who": who, "thing": thing, "place": place, "day": f" on {day}"}
        text_a = event[0].format(**same)
        text_b = {
            5: event[1].format(**same),
            4: event[1].format(**same | {"day": ""}),
            3: event[1].format(**same | {"place": place_2}),
            2: event[1].format(**same | {"place": place_2, "thing": thing_2}),
            1: other[1].format(who=who, thing=thing_2, place=place_2, day=f" on {day_2}"),
            0: other[1].format(who=stranger, thing=thing_2, place=place_2, day=f" on {day_2}"),
        }[score]
        texts = (text_a, text_b[0].upper() + text_b[1:])
        first, second = texts if draws.below(2) else texts[::-1]
        rows.append({"text_a": first, "text_b": second, "label": "yes" if score > 3 else "no", "score": score})
    return as_csv(draws.some(rows, NUM_ROWS))


def words() -> str:
    """Words and tags in the BIO scheme, in the format CoNLL."""
    draws = Draws("words")
    sentences = []
    for number in range(NUM_ROWS):
        lines = []
        for part in re.findall(r"\w+|[.,]", SENTENCES[number % len(SENTENCES)]):
            kind = part if part in ("PER", "LOC", "ORG") else None
            text = {"PER": draws.person, "LOC": lambda: draws.one(TOWNS), "ORG": lambda: draws.one(ORGANIZATIONS)}
            for place, word in enumerate((text[kind]() if kind else part).split()):
                lines.append(f"{word} {'I' if place else 'B'}-{kind}" if kind else f"{word} O")
        sentences.append("\n".join(lines) + "\n")
    return "\n".join(draws.some(sentences, NUM_ROWS))


def questions() -> str:
    """Articles of SQuAD's layout: four questions about each of 50 contexts."""
    draws, articles = Draws("questions"), []
    for number in range(NUM_ROWS // 4):
        title, sentences = ARTICLES[number % len(ARTICLES)]
        town, near = draws.some(TOWNS, 2)
        facts = {"town": town, "near": near, "who": draws.person(), "other": draws.person()}
        facts |= {"year": str(1700 + draws.below(250)), "later": str(1960 + draws.below(60))}
        facts |= {"few": str(3 + draws.below(90)), "many": str(100 + draws.below(800)), "day": draws.one(DAYS)}
        facts |= {"org": draws.one(ORGANIZATIONS)}
        context, qas = "", []
        for sentence in sentences:
            # Each sentence has one answer in brackets, and its question.
            before, answer, after = re.split(r"[\[\]]", sentence[0].format(**facts))
            start = len(context) + len(before)
            context += f"{before}{answer}{after} "
            asked = sentence[1].format(**facts)
            qas.append({"id": f"{number}-{len(qas)}", "question": asked, "answers": [_answer(answer, start)]})
        paragraph = {"context": context.strip(), "qas": qas}
        articles.append({"title": title.format(**facts), "paragraphs": [paragraph]})
    return json.dumps({"version": "1.1", "data": articles}, separators=(",", ":"), ensure_ascii=False) + "\n"


def _answer(text: str, start: int) -> dict[str, Any]:
    return {"text": text, "answer_start": start}


def choices() -> str:
    """Which of four things does one need? Each purpose is asked in four ways."""
    draws, rows = Draws("choices"), []
    for number in range(NUM_ROWS):
        purpose, tool = TOOLS[number % len(TOOLS)]
        wrong = draws.some([other for _, other in TOOLS if other != tool], 3)
        offered = draws.some([tool, *wrong], 4)
        asked = ASKED[number // len(TOOLS)].format(purpose=purpose, who=draws.one(FIRST_NAMES))
        answer = "abcd"[offered.index(tool)]
        rows.append({"question": asked, **dict(zip("abcd", offered, strict=True)), "answer": answer})
    return as_csv(draws.some(rows, NUM_ROWS))


def texts() -> str:
    """A text in each line: four sentences about one subject."""
    draws, lines = Draws("valley"), []
    for number in range(NUM_ROWS):
        sentences = TOPICS[number % len(TOPICS)]
        drawn = draws.some(range(len(sentences)), 4)
        facts = {"who": draws.one(FIRST_NAMES), "town": draws.one(TOWNS), "place": draws.one(PLACES)}
        facts |= {"day": draws.one(DAYS), "few": 5 + draws.below(15), "year": 1900 + draws.below(120)}
        lines.append(" ".join(sentences[index].format(**facts) for index in sorted(drawn)) + "\n")
    return "".join(draws.some(lines, NUM_ROWS))


FILES = ("pairs.csv", "words.conll", "questions.json", "choices.csv", "texts.txt")
SETS = dict(zip(FILES, (pairs, words, questions, choices, texts), strict=True))

if __name__ == "__main__":
    for name, make in SETS.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")

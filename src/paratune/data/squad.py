"""Reads SQuAD's JSON layout, versions 1.1 and 2.0, as a table with one row for each question.

Imports no torch.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from paratune.errors import DataError

ANSWERS = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int64()))])
"""Gold answers of a question, in the same layout as in `datasets`."""
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        ("answers", ANSWERS),
        ("is_impossible", pa.bool_()),
    ]
)


def is_squad(value: Any) -> bool:
    """Return whether a JSON value has SQuAD's layout: an object whose `data` is a list of articles with paragraphs."""
    articles = value.get("data") if isinstance(value, dict) else None
    return isinstance(articles, list) and any(
        isinstance(article, dict) and "paragraphs" in article for article in articles
    )


def is_squad_table(table: pa.Table) -> bool:
    """Return whether a table has the schema of `squad_table`."""
    return bool(table.schema.equals(_SCHEMA))


def squad_table(value: Any, source: str) -> pa.Table:
    """Return id, title, context, question, answers and is_impossible of each question, null where they are absent.

    Raises:
        DataError: A required part is absent, or a part has another type.
    """
    rows = list(_questions(value["data"], source))
    if not rows:
        raise DataError(f"{source} has SQuAD's layout, but no question", code="data.empty", source=source)
    try:
        return pa.Table.from_pylist(rows, schema=_SCHEMA)
    except UnicodeEncodeError as error:
        raise surrogate_error(source, error, source=source) from error


def surrogate_error(place: str, error: UnicodeEncodeError, **facts: Any) -> DataError:
    """Return the error for a text that cannot be written as UTF-8."""
    message = f"{place}: half of a surrogate pair (such as \\ud83d alone) is not text: {error}"
    return DataError(message, code="data.encoding", **facts)


def _questions(articles: list[Any], source: str) -> Iterator[dict[str, Any]]:
    for number, article in enumerate(articles):
        where = f"{source}, data[{number}]"
        title = _part(article, "title", str, where, needed=False)
        for place, paragraph in enumerate(_part(article, "paragraphs", list, where)):
            inner = f"{where}.paragraphs[{place}]"
            context = _part(paragraph, "context", str, inner)
            for index, question in enumerate(_part(paragraph, "qas", list, inner)):
                here = f"{inner}.qas[{index}]"
                yield {
                    "id": str(_part(question, "id", (str, int), here)),
                    "title": title,
                    "context": context,
                    "question": _part(question, "question", str, here),
                    "answers": _answers(_part(question, "answers", list, here, needed=False), here),
                    "is_impossible": _part(question, "is_impossible", bool, here, needed=False),
                }


def _answers(answers: list[Any] | None, where: str) -> dict[str, list[Any]] | None:
    if answers is None:
        return None
    columns: dict[str, list[Any]] = {"text": [], "answer_start": []}
    for number, answer in enumerate(answers):
        here = f"{where}.answers[{number}]"
        columns["text"].append(_part(answer, "text", str, here))
        columns["answer_start"].append(_part(answer, "answer_start", int, here))
    return columns


def _part(value: Any, key: str, kind: Any, where: str, *, needed: bool = True) -> Any:
    if not isinstance(value, dict):
        raise DataError(
            f"{where} is {_shown(value)}, not an object with {key!r}", code="data.squad_layout", where=where, key=key
        )
    part = value.get(key)
    if part is None and not needed:
        return None
    # bool is a subclass of int, but True is no id and no position.
    if not isinstance(part, kind) or (isinstance(part, bool) and kind is not bool):
        wanted = " or ".join(expected_type.__name__ for expected_type in (kind if isinstance(kind, tuple) else (kind,)))
        state = "is absent" if key not in value else f"is {_shown(part)}"
        raise DataError(f"{where}.{key} {state}; expected {wanted}", code="data.squad_layout", where=where, key=key)
    return part


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."

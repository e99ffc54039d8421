"""Reads files in the formats of CoNLL: a word with its columns per line, an empty line between two sentences.

Imports no torch.
"""

from collections.abc import Iterator

import pyarrow as pa

from paratune.data.text_tables import decode
from paratune.errors import DataError

TOKENS, TAGS = "tokens", "tags"
"""Names of the columns of the table."""
_FORM, _UPOS, _NUM_COLUMNS = 1, 3, 10
"""Columns of CoNLL-U: the word, and its part of speech."""


def parse_conll(raw: bytes, source: str) -> pa.Table:
    """Parse lines of columns, as in CoNLL-2003: the first is the word, the last its tag.

    Columns are separated by tabs where a line has one, else by spaces. Lines with `-DOCSTART-` are left out, and lines
    `# key = value`, which are comments. A file with one column has words without tags, for prediction.

    Returns:
        `tokens` and `tags`, lists of texts; a row for each sentence.

    Raises:
        DataError: It is not UTF-8, or lines have different numbers of columns.
    """
    width = None
    sentences: list[list[list[str]]] = []
    for sentence in _sentences(decode(raw, source)):
        words = []
        for number, line in sentence:
            fields = line.rstrip("\r").split("\t") if "\t" in line else line.split()
            width = width or len(fields)
            if len(fields) != width or not fields[0].strip():
                raise DataError(
                    f"{source}, line {number}: {len(fields)} columns, and earlier lines have {width}; write one word "
                    "and its tag per line, and an empty line between two sentences",
                    code="data.conll",
                    source=source,
                    line=number,
                )
            words.append(fields)
        if words[0][0] != "-DOCSTART-":
            sentences.append(words)
    columns = {TOKENS: [[fields[0] for fields in words] for words in sentences]}
    if width != 1:
        columns[TAGS] = [[fields[-1] for fields in words] for words in sentences]
    return _table(columns)


def parse_conllu(raw: bytes, source: str) -> pa.Table:
    """Parse CoNLL-U, the format of Universal Dependencies, to words and their universal parts of speech (UPOS).

    Lines of several words in one (1-2) and of words that are not in the text (1.1) are left out.

    Returns:
        As `parse_conll`.

    Raises:
        DataError: It is not UTF-8, or a line does not have 10 columns.

    Source: https://universaldependencies.org/format.html
    """
    columns: dict[str, list[list[str]]] = {TOKENS: [], TAGS: []}
    for sentence in _sentences(decode(raw, source)):
        words = []
        for number, line in sentence:
            fields = line.rstrip("\r").split("\t")
            if len(fields) != _NUM_COLUMNS:
                raise DataError(
                    f"{source}, line {number}: {len(fields)} columns; a line of CoNLL-U has {_NUM_COLUMNS}, separated "
                    "by tabs; name a file with other columns *.conll",
                    code="data.conll",
                    source=source,
                    line=number,
                )
            if fields[0].isdigit():
                words.append(fields)
        if words:
            columns[TOKENS].append([fields[_FORM] for fields in words])
            columns[TAGS].append([fields[_UPOS] for fields in words])
    return _table(columns)


def _table(columns: dict[str, list[list[str]]]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.list_(pa.string())) for name, values in columns.items()})


def _sentences(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines of each sentence with their numbers, without comments."""
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
        elif not (line.startswith("# ") and " = " in line):
            sentence.append((number, line))
    if sentence:
        yield sentence

"""Reads files in the formats of CoNLL: a word with its columns per line, an empty line between two sentences.

Imports no torch.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa

from paratune.data.text_tables import decode
from paratune.errors import DataError

TOKENS, TAGS = "tokens", "tags"
"""Names of the columns of the table."""
_FORM, _UPOS, _NUM_COLUMNS = 1, 3, 10
"""Columns of CoNLL-U: the word, and its part of speech."""
_START_OF_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"#\s*[\w.:-]+(\s[\w.:-]+)* = |#\s*(newdoc|newpar)\b|#(begin|end) document\b")
"""Comments by their words: those of CoNLL-U, and the marks of documents of OntoNotes. A line `# O` is a word."""
_RANGE_OR_EMPTY = re.compile(r"\d+[-.]\d+")
"""Number of several words in one (1-2), or of a word that is not in the text (1.1)."""


def parse_conll(raw: bytes, source: str) -> pa.Table:
    """Parse lines of columns, as in CoNLL-2003: the first is the word, the last its tag.

    Columns are separated by tabs where a line has one, else by spaces. Lines `-DOCSTART-` are left out, and comments
    before a sentence: `# key = value`, and lines that begin with # and have another number of columns than the words
    (`#<tab>URL` in GermEval, `# id ...` in MultiCoNER). A file with one column has words without tags, for prediction.

    Returns:
        `tokens` and `tags`, lists of texts; a row for each sentence.

    Raises:
        DataError: It is not UTF-8, lines have different numbers of columns, or the first column numbers the words.
    """
    width = None
    sentences: list[list[list[str]]] = []
    for lines in _sentences(decode(raw, source)):
        words: list[list[str]] = []
        for number, line in lines:
            fields = _fields(line)
            is_start = fields[0] == _START_OF_DOCUMENT
            if is_start or (not words and line.startswith("#") and _is_comment(line, lines, width)):
                continue
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
        if words:
            sentences.append(words)
    _refuse_numbers_of_words(sentences, source)
    columns = {TOKENS: [[fields[0] for fields in words] for words in sentences]}
    if width != 1:
        columns[TAGS] = [[fields[-1] for fields in words] for words in sentences]
    return _table(columns)


def _fields(line: str) -> list[str]:
    return line.rstrip("\r").split("\t") if "\t" in line else line.split()


def _is_comment(line: str, lines: list[tuple[int, str]], width: int | None) -> bool:
    """Return whether a line that begins with # is a comment; `width` is None before the first word of the file."""
    if _COMMENT.match(line):
        return True
    if width is None:  # then the first line of this sentence without # has the columns of the file
        width = next((len(_fields(other)) for _, other in lines if not other.startswith("#")), None)
    return width is not None and len(_fields(line)) != width


def _refuse_numbers_of_words(sentences: list[list[list[str]]], source: str) -> None:
    """Raise a DataError where the first column counts the words, so that the words are in another column.

    In each sentence, each number is the one before it plus 1, whether a sentence begins with 0, with 1 or with the
    number after the last one. A file of one column, or with one word in each sentence, is not judged.
    """
    longest = 0
    for words in sentences:
        ids = [fields[0] for fields in words if not _RANGE_OR_EMPTY.fullmatch(fields[0])]
        if not all(number.isdecimal() for number in ids):
            return
        numbers = list(map(int, ids))
        if any(after != before + 1 for before, after in pairwise(numbers)):
            return
        longest = max(longest, len(numbers))
    if longest < 2 or len(sentences[0][0]) == 1:
        return
    width = len(sentences[0][0])
    rename = "name a file of Universal Dependencies *.conllu; else " if width == _NUM_COLUMNS else ""
    raise DataError(
        f"{source}: the first column, which must be the word, numbers the words of each sentence "
        f"({', '.join(fields[0] for fields in sentences[0][:3])}, ...); {rename}write a file without this column, "
        "whose last column is the tag, for example with cut -f 2- FILE for columns that are separated by tabs",
        code="data.conll_numbers",
        source=source,
        column=1,
    )


def parse_conllu(raw: bytes, source: str) -> pa.Table:
    """Parse CoNLL-U, the format of Universal Dependencies, to words and their universal parts of speech (UPOS).

    Lines that begin with # are comments. Lines of several words in one (1-2) and of words that are not in the text
    (1.1) are left out.

    Returns:
        As `parse_conll`.

    Raises:
        DataError: It is not UTF-8, or a line does not have 10 columns.

    Source: https://universaldependencies.org/format.html
    """
    columns: dict[str, list[list[str]]] = {TOKENS: [], TAGS: []}
    for lines in _sentences(decode(raw, source)):
        words = []
        for number, line in lines:
            if line.startswith("#"):  # a word has its number before it
                continue
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
    """Yield the lines of each sentence with their numbers; comments before a sentence are part of it."""
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
        else:
            sentence.append((number, line))
    if sentence:
        yield sentence

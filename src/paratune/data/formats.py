"""Formats of texts that are recognised by their content: those of CoNLL, fastText, GLUE, and JSON lines.

Parsers are as in `paratune.data.tables`. Imports no torch.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise

import pyarrow as pa

from paratune.config.sections import FileReading
from paratune.data.json_tables import parse_json
from paratune.data.tables import SAMPLE, line_error, parse_tsv
from paratune.errors import DataError, coded

log = logging.getLogger(__name__)

TOKENS, TAGS = "tokens", "tags"
"""Names of the columns of a table of CoNLL."""
_NUM_COLUMNS = 10
"""Columns of CoNLL-U."""
_COMMENT = re.compile(r"#\s*[\w.:-]+(\s[\w.:-]+)* = |#\s*(newdoc|newpar)\b|# id\s|#(begin|end) document\b")
"""Comments by their words: those of CoNLL-U and MultiCoNER, and the marks of documents of OntoNotes. A line `# O` is a
word."""
_RANGE_OR_EMPTY = re.compile(r"\d+[-.]\d+")
"""Number of several words in one (1-2), or of a word that is not in the text (1.1)."""


def parse_conll(text: str, source: str, reading: FileReading) -> pa.Table:
    """Parse lines of columns, as in CoNLL-2003: the first is the word, the last its tag.

    Columns are separated by tabs where a line has one, else by spaces. Lines `-DOCSTART-` are left out, and comments
    before a sentence: `# key = value`, and lines that begin with # and have another number of columns than the words
    (`#<tab>URL` in GermEval, `# id ...` in MultiCoNER). A file with one column has words without tags, for prediction.
    """
    width, has_tags = None, False
    sentences: list[list[list[str]]] = []
    for lines in _sentences(text):
        words: list[list[str]] = []
        for number, line in lines:
            fields = _fields(line)
            is_start = fields[0] == "-DOCSTART-"
            if is_start or (not words and line.startswith("#") and _is_comment(line, lines, width)):
                continue
            width = width or len(fields)
            has_tags = has_tags or bool(fields[-1].strip())
            empty = "word" if not fields[0].strip() else "tag" if has_tags and not fields[-1].strip() else None
            if len(fields) != width or empty:
                found = f"the {empty} is empty" if empty else f"{len(fields)} columns, and earlier lines have {width}"
                problem = f"{found}; write one word and its tag per line, and an empty line between two sentences"
                raise line_error(source, number, problem, code="data.unreadable")
            words.append(fields)
        if words:
            sentences.append(words)
    _refuse_numbers_of_words(sentences, source)
    if len(sentences) == 1 and len(sentences[0]) > 1000:  # a file without empty lines
        advice = """write one after each sentence: awk '{print} $1 ~ /[.!?]$/ {print ""}' FILE > NEW"""
        extra = coded("data.one_sentence", source=source, num_words=len(sentences[0]))
        log.warning(
            "%s: no empty line, so %d words are one sentence; %s", source, len(sentences[0]), advice, extra=extra
        )
    language = re.match(r"[a-z-]{2,12}:", sentences[0][0][0]) if sentences else None
    if language and all(fields[0].startswith(language[0]) for words in sentences for fields in words):
        log.info("%s: the words without %r before each, as in WikiANN", source, language[0])
        sentences = [[[fields[0].removeprefix(language[0]), *fields[1:]] for fields in words] for words in sentences]
    columns = {TOKENS: [[fields[0] for fields in words] for words in sentences]}
    if width != 1:
        columns[TAGS] = [[fields[-1] for fields in words] for words in sentences]
    return _sentence_table(columns)


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
    ids = [[fields[0] for fields in words if not _RANGE_OR_EMPTY.fullmatch(fields[0])] for words in sentences]
    is_one_column = not sentences or len(sentences[0][0]) == 1
    if is_one_column or max(map(len, ids)) < 2 or not all(number.isdecimal() for row in ids for number in row):
        return
    if any(int(after) != int(before) + 1 for row in ids for before, after in pairwise(row)):
        return
    message = (
        f"{source}: the first column, which must be the word, numbers the words of each sentence "
        f"({', '.join(fields[0] for fields in sentences[0][:3])}, ...); name a file of Universal Dependencies "
        "*.conllu, else write a file without this column, as cut -f 2- FILE does for tabs"
    )
    raise DataError(message, code="data.unreadable", source=source, column=1)


def parse_conllu(text: str, source: str, reading: FileReading) -> pa.Table:
    """Parse CoNLL-U, the format of Universal Dependencies, to words and their universal parts of speech (UPOS)."""
    return _numbered(text, source, {TOKENS: 1, TAGS: 3}, _NUM_COLUMNS, _NUM_COLUMNS)


def _numbered(text: str, source: str, places: dict[str, int], least: int, most: int) -> pa.Table:
    """Return the columns at `places` of sentences whose words have a number or a document before them.

    Lines that begin with # are comments. Lines of several words in one (1-2) and of words that are not in the text
    (1.1) are left out. A line with another number of columns than `least` to `most` is an error.
    """
    columns: dict[str, list[list[str]]] = {name: [] for name in places}
    for lines in _sentences(text):
        words = []
        for number, line in lines:
            fields = _fields(line)
            if not line.startswith("#") and not least <= len(fields) <= most:
                problem = f"{len(fields)} columns; a word has {least} here; name a file with other columns *.conll"
                raise line_error(source, number, problem, code="data.unreadable")
            if not line.startswith("#") and not _RANGE_OR_EMPTY.fullmatch(fields[0]):
                words.append(fields)
        for name, at in places.items() if words else ():
            columns[name].append([fields[at] for fields in words])
    return _sentence_table(columns)


def _sentence_table(columns: dict[str, list[list[str]]]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.list_(pa.string())) for name, values in columns.items()})


def _sentences(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines of each sentence with their numbers; comments before a sentence are part of it."""
    lines = enumerate(text.split("\n"), start=1)
    yield from ([*group] for has_text, group in groupby(lines, key=lambda line: bool(line[1].strip())) if has_text)


def _parse_conll_2012(text: str, source: str, reading: FileReading) -> pa.Table:
    """Parse CoNLL-2012 (OntoNotes): words, named entities as IOB2 tags, and parts of speech (`pos`)."""
    table = _numbered(text, source, {TOKENS: 3, TAGS: 10, "pos": 4}, 11, 10**6)
    tags: list[list[str]] = []
    for brackets in table[TAGS].to_pylist():  # "(ORG*", "*", "*)", "(GPE)"
        tags.append([])
        inside = ""
        for bracket in brackets:
            begins = re.match(r"\(([^*()]+)", bracket)
            inside = begins[1] if begins else inside
            tags[-1].append(f"{'B' if begins else 'I'}-{inside}" if inside else "O")
            inside = "" if bracket.endswith(")") else inside
    return table.set_column(1, TAGS, pa.array(tags, pa.list_(pa.string())))


def _parse_fasttext(text: str, source: str, reading: FileReading) -> pa.Table:
    """Parse lines `__label__a __label__b text` to `text` and `label`, a list."""
    rows = [re.match(r"((?:__label__\S+\s*)*)(.*)", line.strip()) for line in text.split("\n") if line.strip()]
    texts = pa.array([row and row[2] for row in rows], pa.string())
    labels = pa.array([re.findall(r"__label__(\S+)", row[1]) for row in rows if row], pa.list_(pa.string()))
    return pa.table({"text": texts, "label": labels})


def _refuse(text: str, source: str, reading: FileReading) -> pa.Table:
    message = f"{source} is a WebAnno TSV, the format of WebAnno and INCEpTION; export the document as CoNLL 2002"
    if not text.startswith("#FORMAT"):
        message = (
            f"{source} has annotations of BRAT, whose texts are in other files, which paratune does not read; write "
            'JSON lines with both: {"text": "Ana left", "spans": [{"start": 0, "end": 3, "label": "PER"}]}'
        )
    raise DataError(message, code="data.format", source=source)


def _all(rows: list[list[str]], width: int, patterns: dict[int, str]) -> bool:
    """Return whether all rows have `width` fields, and those at the keys match the patterns."""
    return all(len(row) == width and all(re.fullmatch(sign, row[at]) for at, sign in patterns.items()) for row in rows)


def _is_conll(rows: list[list[str]], text: str) -> bool:
    tags = Counter(row[-1] for row in rows)
    if len(tags) + ("O" not in tags) < 2 or any(len(row) != len(rows[0]) or " " in row[0] for row in rows):
        return False
    # Tags without B- and I-: O is one of few, line 1 is no header, and empty lines are between sentences.
    is_plain = "O" in tags and 10 * len(tags) < len(rows) and tags[rows[0][-1]] > 1 and re.search(r"\n\s*\n\S", text)
    return len(rows[0]) > 1 and (bool(is_plain) or all(re.fullmatch(_TAG, tag) for tag in tags))


Parser = Callable[[str, str, FileReading], pa.Table]
_TAG = r"O|[BIESLU]-\S+"
_GLUE = re.compile(r"Quality\t#1 ID\t|index\t(genre\tfilename|sentence1\tsentence2|question\tsentence|promptID)\b")
_COLA = ["source", "label", "star", "sentence"]
TEXT_FORMATS: tuple[tuple[str, Callable[[list[list[str]], str], bool], Parser], ...] = (
    ("JSON lines", lambda rows, text: all(row[0][:2] == '{"' and row[-1][-1:] == "}" for row in rows), parse_json),
    ("fastText", lambda rows, text: all(row[0].startswith("__label__") for row in rows), _parse_fasttext),
    ("BRAT", lambda rows, text: bool(re.match(r"T\d+\t\S+ \d+ \d+|#FORMAT=WebAnno TSV", text)), _refuse),
    ("CoNLL-U", lambda rows, text: _all(rows, _NUM_COLUMNS, {0: r"\d+([-.]\d+)?"}), parse_conllu),
    ("CoNLL-2012", lambda rows, text: text.startswith("#begin document") and len(rows[0]) > 10, _parse_conll_2012),
    (
        "GermEval 2014",
        lambda rows, text: text.startswith("#\t") and _all(rows, 4, {0: r"\d+", 2: _TAG, 3: _TAG}),
        lambda text, source, _: _numbered(text, source, {TOKENS: 1, TAGS: 2, "nested_tags": 3}, 4, 4),
    ),
    (
        "CoLA of GLUE",
        lambda rows, text: _all(rows, 4, {1: "[01]", 2: r"\*?"}),
        lambda text, source, _: parse_tsv(text, source, FileReading(quote="none", header=False)).rename_columns(_COLA),
    ),
    (
        "TSV of GLUE, in which quotes are plain characters",
        lambda rows, text: bool(_GLUE.match(text)),
        lambda text, source, reading: parse_tsv(text, source, reading._replace(quote="none")),
    ),
    ("CoNLL", _is_conll, parse_conll),
)
"""Formats in the order in which they are tried: name; sign, from the fields of the first lines without blank ones and
comments, and from the text; parser."""


def text_format(text: str) -> tuple[str, Parser] | None:
    """Return name and parser of the format that the beginning of a text has; None where it is not recognised."""
    lines = text[:SAMPLE].split("\n")[: -1 if len(text) > SAMPLE else None]
    marks = ("-DOCSTART-", "#\t", "# ", "#begin ", "#end ")
    rows = [_fields(line) for line in lines if line.strip() and not line.startswith(marks)]
    return next(((name, parse) for name, is_one, parse in TEXT_FORMATS if rows and is_one(rows, text)), None)

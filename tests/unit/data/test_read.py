"""Reading tables: every kind of file gives the same rows, and damage is reported."""

import gzip
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from raised import raises_code

from paratune.config.sections import FileReading
from paratune.data import read
from paratune.data.read import iterate_texts, read_table
from paratune.errors import DataError

ROWS = [
    {"text": "a good film", "label": "1"},
    {"text": 'he said "no", twice', "label": "0"},
    {"text": "two\nlines\tand a tab", "label": "1"},
    {"text": "Olá, às três; é isto \u2028 \x85", "label": "001"},
]


def csv_text(separator: str = ",", end: str = "\n") -> str:
    quoted = [['"' + row["text"].replace('"', '""') + '"', row["label"]] for row in ROWS]
    return end.join(separator.join(fields) for fields in [["text", "label"], *quoted]) + end


def write(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


def parquet_bytes(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, **options)
    return sink.getvalue().to_pybytes()


def damaged_parquet(part: bytes, *, has_checksums: bool = False) -> bytes:
    """Return a file with a byte in it that is not UTF-8: in the name `label`, or in the data at the end of `part`."""
    raw = parquet_bytes(compression="none", use_dictionary=False, write_page_checksum=has_checksums)
    place = raw.index(part) if part == b"label" else raw.rindex(part, 0, raw.index(b"label"))
    return raw[:place] + b"\xe9" + raw[place + 1 :]


LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
CONTENTS = {
    "a.csv": csv_text().encode(),
    "crlf.CSV": csv_text(end="\r\n").encode(),
    "bom.csv": csv_text().encode("utf-8-sig"),
    "semicolon.csv": csv_text(";").encode(),
    "no_last_newline.csv": csv_text().rstrip("\n").encode(),
    "a.tsv": csv_text("\t").encode(),
    "a.jsonl": LINES,
    "a.ndjson": LINES.replace(b"\n", b"\r\n"),
    "lines.json": LINES,
    "list.json": json.dumps(ROWS, indent=2).encode(),
    "a.parquet": parquet_bytes(),
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", CONTENTS)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name, suffix):
    assert read_table(write(tmp_path, name + suffix, CONTENTS[name])).to_pylist() == ROWS


def test_csv_equals_the_result_of_pyarrow(tmp_path):
    source = write(tmp_path, "a.csv", CONTENTS["a.csv"])
    options = {
        "parse_options": pyarrow.csv.ParseOptions(newlines_in_values=True),
        "convert_options": pyarrow.csv.ConvertOptions(column_types={"label": pa.string()}),
    }
    assert read_table(source) == pyarrow.csv.read_csv(source, **options)


def test_reading_csv_does_not_import_pandas(tmp_path):
    # pyarrow imports it, where it is installed, in every conversion of a list: half a second of each start.
    source = write(tmp_path, "data.csv", csv_text().encode())
    program = (
        f"import sys; from paratune.data.read import read_table; read_table({source!r}); print('pandas' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"


def test_tsv_with_plain_quotes_keeps_them(tmp_path):
    # As the files of GLUE are: a quote that opens a field need not close.
    source = write(tmp_path, "glue.tsv", b'text\tlabel\n"Never," he said\t1\n"\t0\nan 8" disk\t1\n')
    assert read_table(source)["text"].to_pylist() == ['"Never," he said', '"', 'an 8" disk']


def test_long_fields_and_blank_lines(tmp_path):
    long = "x" * 300_000
    table = read_table(write(tmp_path, "a.csv", f"text,label\n\n{long},1\n\n".encode()))
    assert table.to_pylist() == [{"text": long, "label": "1"}]


def test_json_keeps_types_and_fills_absent_keys_with_null(tmp_path):
    lines = b'{"a": 1, "b": 0.5, "day": "2020-01-01"}\n{"a": 2, "c": "late"}\n{"a": "x"}\n{"b": NaN}\n'
    table = read_table(write(tmp_path, "a.jsonl", lines))
    assert table["a"].to_pylist() == ["1", "2", "x", None]  # of several types: text
    assert str(table["b"].to_pylist()) == "[0.5, None, None, nan]"
    assert table["c"].to_pylist() == [None, "late", None, None]
    assert table["day"].to_pylist()[0] == "2020-01-01"


BAD = {
    "a.csv": [
        (b"", "is empty"),
        (b"\n\n", "no header"),
        (b"text,label\n", "no rows .columns: text, label"),
        (b"text,label\na,1\nb,1,2\n", "line 3: 3 fields, but the header has 2"),
        (b'text,label\n"a" b,1\n', "line 2"),
        (b'text,label\n"a,1\n', "line 2"),
        (b"text,text\na,1\n", "column text occurs more than once"),
        (b"text,label\nna\xef\x81,1\n", "line 2: byte 0xef at offset 13 is not UTF-8"),
        (b"text,label\n\x00\x01\xff,1\n", "binary"),
        (b"PNG\x03\x04\x00\x00\x00", "binary"),
    ],
    "bom.csv": [(b"\xef\xbb\xbfa\n\n\xff\n", "line 3: byte 0xff at offset 6")],
    "a.tsv": [(b"text\tlabel\na\n", "line 2: 1 fields, but the header has 2")],
    "a.jsonl": [
        (b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        (b'{"a": 1}\n[1]\n', r"line 2: \[1\] is not an object"),
        (b'{"a": "\\ud83d"}\n', "column a: half of a surrogate"),
        (b'{"a": 1}\n{"a": "\\ud83d"}\n', "column a: half of a surrogate"),
        (b'{"a": false}\n{"a": {"b": "\\ud83d"}}\n', "column a: half of a surrogate"),
        (b'{"\\ud83d": 1}\n', "half of a surrogate"),
        (b"\n", "no object"),
        (b'{"a": 1}\n{"a": 1, "b": 2, "a": 3}\n', "line 2: the key a occurs more than once"),
        (b'{"a": {"b": 1, "b": 2}}\n', "line 1: the key b occurs more than once"),
        (b'{"a": 1}\n{"a": ' + 5000 * b"[" + 5000 * b"]" + b"}\n", "line 2: not JSON"),
        (b'{"a": 1}\n{"a": ' + 5000 * b"1" + b"}\n", "line 2: not JSON"),
    ],
    "a.json": [
        (b"[1, 2]", "item 0: 1 is not an object"),
        (b'{\n "a": 1\n}\n{\n "a": 2\n}', "line 1: not JSON"),
        (b'[{"a": 1, "a": 2}]', "the key a occurs more than once"),
        (5000 * b"[" + 5000 * b"]", "JSON"),
        (b'{"data": [{"paragraphs": [],\n "paragraphs": []}]}\n', "the key paragraphs occurs more than once"),
    ],
    "wide.csv": [
        (b",".join(b"c%d" % number for number in range(300_000)) + b"\n1\n", r"300000 \(c0, .*c19, and 299980 more\)")
    ],
    "a.parquet": [
        (b"PAR1 is not all of it", "damaged or not Parquet"),
        (parquet_bytes()[:-20], "Parquet"),
        (damaged_parquet(b"label"), "utf-8"),  # the name of a column
        (damaged_parquet(ROWS[-1]["text"].encode()), "UTF8"),
        (damaged_parquet(ROWS[-1]["text"].encode(), has_checksums=True), "checksum"),
    ],
    "a.docx": [(b"PK", r".docx .* \.csv, \.tsv, \.jsonl")],
    "noname": [(b"a", "no suffix")],
}


@pytest.mark.parametrize(("name", "content", "expected"), [(n, c, s) for n, cases in BAD.items() for c, s in cases])
def test_bad_files_are_reported_with_the_problem(tmp_path, name, content, expected):
    source = write(tmp_path, name, content)
    with pytest.raises(DataError, match=expected) as caught:
        read_table(source)
    assert source in str(caught.value)


def test_a_pipe_is_an_error_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    with raises_code("data.unreadable", "a.csv"):
        read_table(str(tmp_path / "a.csv"))


def test_a_gzip_bomb_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "_CHUNK_BYTES", 1000)
    source = write(tmp_path, "a.csv.gz", b"text,label\n" + b"good film,1\n" * 10_000)
    num_packed, num_unpacked = (tmp_path / "a.csv.gz").stat().st_size, 11 + 12 * 10_000
    # By the ratio, which counts past what is free; then by the size alone.
    monkeypatch.setattr(read, "FREE_UNPACKED_BYTES", num_unpacked)
    assert read_table(source).num_rows == 10_000
    monkeypatch.setattr(read, "FREE_UNPACKED_BYTES", 1024)
    monkeypatch.setattr(read, "MAX_UNPACKED_RATIO", num_unpacked // num_packed)
    with raises_code("data.too_large", "a.csv.gz", "KiB"):
        read_table(source)
    monkeypatch.setattr(read, "MAX_UNPACKED_RATIO", num_unpacked // num_packed + 1)
    assert read_table(source).num_rows == 10_000
    monkeypatch.setattr(read, "MAX_UNPACKED_BYTES", 2048)
    with raises_code("data.too_large", "2", "KiB"):
        read_table(source)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "a.csv.gz"
    for content in (b"not gzip", gzip.compress(b"text,label\n" * 100)[:-10]):
        path.write_bytes(content)
        with raises_code("data.unreadable"):
            read_table(str(path))


def test_absent_files_suggest_the_nearest_name(tmp_path):
    (tmp_path / "train.csv").write_text("text\na\n")
    with raises_code("data.not_found", "trian.csv", "train.csv"):
        read_table(str(tmp_path / "trian.csv"))
    with raises_code("data.not_found"):
        read_table(str(tmp_path / "nowhere" / "train.csv"))
    with raises_code("data.format", tmp_path) as error:
        read_table(str(tmp_path))
    assert "train.csv" not in str(error.value)  # names in a folder that a configuration of others names may be private


def test_embedded_sentences():
    table = read_table("demo:sentences")
    assert table.column_names == ["sentence", "label", "source"]
    assert table.num_rows == 3000
    counts = table.group_by(["label", "source"]).aggregate([([], "count_all")]).to_pylist()
    assert [row["count_all"] for row in counts] == [500] * 6
    assert len(set(table["sentence"].to_pylist())) == 2982
    with raises_code("data.not_found", "sentences"):
        read_table("demo:sentence")


@pytest.mark.parametrize("reason", ["HF_HUB_OFFLINE is set", "https://hub cannot be reached (no route)"])
def test_only_the_cache_is_used_when_the_hub_is_unreachable(monkeypatch, reason):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("paratune.hub.unreachable_reason", lambda: reason)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    asked = []

    def load_dataset(name, config, revision):
        assert datasets.config.HF_HUB_OFFLINE
        asked.append(name)
        if name != "cached":
            raise ConnectionError("Couldn't reach it")
        return {"train": datasets.Dataset.from_list(ROWS)}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_table("hub:cached").num_rows == len(ROWS)
    with pytest.raises(DataError) as caught:
        read_table("hub:imdb")
    assert f"hub:imdb is on the hub, it is not in the cache, and {reason}" in str(caught.value)
    assert asked == ["cached", "imdb"]
    assert not datasets.config.HF_HUB_OFFLINE
    # The cache of `datasets` gives the latest version, whatever is asked for.
    with raises_code("data.hub", source="hub:cached"):
        read_table("hub:cached", FileReading(hub_revision="v1"))
    assert asked == ["cached", "imdb"]


def test_hub_names_are_parsed(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("paratune.hub.unreachable_reason", lambda: None)
    asked = []

    def load_dataset(name, config, revision):
        asked.append((name, config, revision))
        if name != "glue":
            raise FileNotFoundError(name)
        return {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_table("hub:glue/sst2@test", FileReading(hub_revision="main")).num_rows == 1
    assert asked == [("glue/sst2", None, "main"), ("glue", "sst2", "main")]
    with raises_code("data.split_unknown", "2 splits", "hub:glue@train"):
        read_table("hub:glue")
    with raises_code("data.hub", "owner/name"):
        read_table("hub:owner/name/x")


def test_folders_saved_by_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    first = datasets.Dataset.from_list(ROWS)
    first.select([2, 0]).save_to_disk(tmp_path / "first")
    datasets.DatasetDict(train=first, test=first.select([1])).save_to_disk(tmp_path / "two")
    assert read_table(str(tmp_path / "first")).to_pylist() == [ROWS[2], ROWS[0]]
    assert read_table(f"{tmp_path}/two#test").to_pylist() == [ROWS[1]]
    with raises_code("data.split_unknown", "2 splits"):
        read_table(str(tmp_path / "two"))
    with raises_code("data.split_unknown", "tset"):
        read_table(f"{tmp_path}/two#tset")
    with raises_code("data.split_unknown", split="test"):
        read_table(f"{tmp_path}/first#test")


TEXT = "first line\n\n  second line \r\n \n\nthird\nand fourth\n"


@pytest.mark.parametrize("name", ["a.txt", "a.TXT", "a.txt.gz"])
def test_a_line_of_a_text_file_is_a_document(tmp_path, name):
    table = read_table(write(tmp_path, name, TEXT.encode()))
    assert table.to_pydict() == {"text": ["first line", "  second line ", "third", "and fourth"]}


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_paragraphs_are_documents_with_the_suffix_paragraphs(tmp_path, name):
    table = read_table(write(tmp_path, name, TEXT.encode("utf-8-sig")) + "#paragraphs")
    assert table.to_pydict() == {"text": ["first line", "  second line ", "third\nand fourth"]}


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_text_file_without_text_is_an_error(tmp_path, content):
    with raises_code("data.empty", "a.txt"):
        read_table(write(tmp_path, "a.txt", content))


@pytest.mark.parametrize(("name", "part"), [("a.txt", "sentences"), ("a.csv", "paragraphs")])
def test_other_suffixes_of_a_file_are_an_error(tmp_path, name, part):
    path = write(tmp_path, name, b"text\nx\n")
    with raises_code("data.split_unknown", part, "para"):
        read_table(f"{path}#{part}")


def test_a_binary_text_file_is_an_error(tmp_path):
    with raises_code("data.encoding", "line 2", "0xe9", "4", "8"):
        read_table(write(tmp_path, "a.txt", b"abc\n\xe9t\x81\n"))
    with raises_code("data.encoding"):
        read_table(write(tmp_path, "a.txt", b"abc\0def"))


def test_a_hub_name_reads_no_files_of_this_machine(tmp_path, monkeypatch):
    """`datasets` would take a folder, and some versions read the pickles of the current folder for hub:pandas."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for path in (tmp_path / "train.json", tmp_path / "owner" / "name" / "train.json"):
        path.write_text('{"text": "a"}\n')
    monkeypatch.setattr("paratune.hub.unreachable_reason", lambda: "HF_HUB_OFFLINE is set")
    for source in ("hub:json", "hub:pandas", "hub:./owner", "hub:owner/name", "hub:pandas/x@train"):
        with raises_code("data.hub", source=source):
            read_table(source)


def test_texts_of_several_kinds_of_files_are_iterated_in_order(tmp_path: Path):
    pq.write_table(pa.table({"text": ["um", None, " ", "dois"], "n": [1, 2, 3, 4]}), tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("três\nquatro\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text("text\ncinco\n", encoding="utf-8")
    sources = [str(tmp_path / name) for name in ("a.parquet", "b.txt", "c.csv")]
    assert list(iterate_texts(sources, "text")) == ["um", "dois", "três", "quatro", "cinco"]


def test_unreadable_files_are_reported(tmp_path: Path):
    pq.write_table(pa.table({"body": ["um"]}), tmp_path / "a.parquet")
    with raises_code("data.column_missing", "a.parquet"):
        list(iterate_texts([str(tmp_path / "a.parquet")], "text"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 torn")
    with raises_code("data.unreadable", "b.parquet"):
        list(iterate_texts([str(tmp_path / "b.parquet")], "text"))
    with raises_code("data.not_found", "c.parquet"):
        list(iterate_texts([str(tmp_path / "c.parquet")], "text"))


pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
CODE = """
import pyarrow as pa
class Squares:
    def __init__(self, grows=""): self.size, self.grows = 3, grows
    def __len__(self): return self.size
    def __getitem__(self, number):
        self.size += bool(self.grows)
        if number >= 3: raise IndexError
        return {"x": number**2}
def table(): return pa.table({"x": [1]})
def tuples(): return [("a", 1)]
def number(): return 3
def mixed(): return [{"x": 1}, {"x": "a"}]
def breaks():
    yield {"x": 1}
    raise OSError("gone")
def empty(): return []
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_data.py").write_text("\n".join(text for text in blocks if "# my_data" in text) + CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_data", None)


def test_the_page_s_data_set_gets_its_arguments():
    table = read_table("code:my_data:reviews?part=test")
    assert (table.num_rows, table["text"][1].as_py(), table["label"][1].as_py()) == (100, "test text 1", "good")
    assert read_table("code:my_data:reviews?part=")["text"][1].as_py() == " text 1"


def test_objects_with_items_and_tables():
    assert read_table("code:my_data:Squares")["x"].to_pylist() == [0, 1, 4]
    assert read_table("code:my_data:table").equals(pa.table({"x": [1]}))


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("code:my_data:Squares?grows=yes", "data.own_rows"),
        ("code:my_data:tuples", "data.own_rows"),
        ("code:my_data:number", "data.own_rows"),
        ("code:my_data:mixed", "data.own_rows"),
        ("code:my_data:breaks", "data.own_rows"),
        ("code:my_data:empty", "data.empty"),
        ("code:my_data:absent", "own_code.not_found"),
        ("code:my_data", "own_code.not_found"),
        ("code:my_data:table?x=1", "own_code.raised"),
        ("code:my_data:table?x", "data.own_rows"),
        ("code:my_data:reviews?part=a&part=b", "data.own_rows"),
    ],
)
def test_errors_have_codes(source, code):
    with raises_code(code, source.partition("?")[0].removeprefix("code:")):
        read_table(source)


SPAN = {"start": 0, "end": 3, "label": "PER"}


def of_prodigy(**row: object) -> dict[str, object]:
    return {"text": "Ana left", "_input_hash": 1, **row}


def of_label_studio(*annotations: list[dict[str, Any]], **data: object) -> dict[str, object]:
    results = [
        {"result": [{"from_name": item.get("from_name", "spans"), "value": item} for item in values]}
        for values in annotations
    ]
    return {"id": 1, "data": {"text": "Ana left", **data}, "annotations": results}


LABELLED = SPAN | {"labels": ["PER"]}
OTHER = {"from_name": "tone", "choices": ["a"]}


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        ([of_prodigy(answer="accept", spans=[SPAN]), of_prodigy(answer="accept")], [[SPAN], []]),
        ([of_prodigy(answer="accept", spans=[SPAN]), of_prodigy(answer="ignore")], [[SPAN], None]),
        ([of_prodigy(answer="accept", spans=[SPAN]), of_prodigy()], [[SPAN], None]),
        ([of_label_studio([LABELLED]), of_label_studio([])], [[SPAN], []]),
        ([of_label_studio([LABELLED]), of_label_studio()], [[SPAN], None]),
        ([of_label_studio([{"choices": ["a"]}]), of_label_studio([])], [["a"], None]),
        ([of_label_studio([LABELLED]), of_label_studio([OTHER])], [[SPAN], None]),  # of another control only
        ([of_label_studio([LABELLED], num_annotations="two")], [[SPAN]]),
        ([of_label_studio([LABELLED]), of_label_studio([], spans=[SPAN])], [[SPAN], [SPAN]]),  # a field of the data
    ],
)
def test_a_row_that_was_annotated_without_a_span_has_none_and_others_are_unknown(tmp_path, rows, spans):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    assert read_table(str(path)).column("spans").to_pylist() == spans


def test_choices_of_prodigy_have_no_spans(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([of_prodigy(answer="accept", accept=["a"]), of_prodigy(answer="accept", label="a")]))
    assert "spans" not in read_table(str(path)).column_names

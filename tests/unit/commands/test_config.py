"""`paratune config show|schema|init`."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code
from tiny import tiny_model

from paratune.commands.config import init, schema, show
from paratune.config.load import load_config
from paratune.errors import ConfigError


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A configuration file that `config init` wrote."""
    path = tmp_path / "mine.yaml"
    init(path, train=str(_reviews(tmp_path)))
    assert f"paratune data {path}" in capsys.readouterr().out
    return path


def test_init_shows_the_guesses_in_the_order_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    init(tmp_path / "mine.yaml", train=str(_reviews(tmp_path)), model=ELSEWHERE)
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert lines[:5] == ["task.kind", "text", "label", "evaluate.best", "data.split.validation"]


def test_init_overwrites_no_file_and_needs_data(written: Path, tmp_path: Path):
    before = written.read_text()
    with raises_code("output.exists"):
        init(written, train="reviews.csv")
    assert written.read_text() == before
    with raises_code("output.not_writable"):
        init(tmp_path / "nowhere" / "mine.yaml", train=str(tmp_path / "reviews.csv"))
    with raises_code("cli.required", "--train"):
        init(tmp_path / "other.yaml")


def test_show_prints_a_configuration_that_loads_as_the_same(written: Path, tmp_path: Path, capsys):
    show(written, set_=["train.learning_rate=1e-4"])
    second = tmp_path / "again" / "mine.yaml"
    second.parent.mkdir()
    second.write_text(capsys.readouterr().out)
    assert load_config(second).values == load_config(written, ["train.learning_rate=1e-4"]).values


def test_show_as_json_contains_the_origin_of_values(written: Path, capsys):
    show(written, set_=["train.learning_rate=1e-4"], json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["train"]["learning_rate"] == 1e-4
    assert shown["origin"]["train.learning_rate"] == "--set"


def test_the_schema_is_json(capsys):
    schema()
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


def _reviews(folder: Path) -> Path:
    path = folder / "reviews.csv"
    rows = [f"the film number {row},{('good', 'bad')[row % 2]}" for row in range(120)]
    path.write_text("\n".join(["review,sentiment", *rows]) + "\n")
    return path


def test_init_from_data_writes_a_short_file_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    _reviews(tmp_path)
    init(Path("my.yaml"), train="reviews.csv", model="google-bert/bert-base-uncased", json=True)

    shown = json.loads(capsys.readouterr().out)
    assert shown["task"] == "classification"
    assert len(Path("my.yaml").read_text().splitlines()) <= 24
    config = load_config(Path("my.yaml")).config
    assert config.task.labels == ["bad", "good"]
    assert (config.data.columns.text, config.data.columns.label) == ("review", "sentiment")
    assert (config.data.train, config.model.name) == ("reviews.csv", "google-bert/bert-base-uncased")
    assert config.batch.global_ == 8  # 120 rows: the largest power of two with 10 batches


def test_init_with_a_validation_file_splits_nothing(tmp_path: Path):
    train, validation = _reviews(tmp_path), tmp_path / "validation.csv"
    validation.write_text("review,sentiment\nan odd film,odd\na good one,good\n")
    init(tmp_path / "my.yaml", train=str(train), validation=str(validation))
    config = load_config(tmp_path / "my.yaml").config
    assert (config.data.validation, config.data.split) == (str(validation), None)
    assert config.task.labels == ["bad", "good", "odd"]


def test_init_reports_all_missing_files_at_once_and_writes_nothing(tmp_path: Path):
    with raises_code("data.not_found", "a.csv", "b.csv", "nowhere") as raised:
        init(tmp_path / "my.yaml", train=str(tmp_path / "a.csv"), test=str(tmp_path / "b.csv"), model="./nowhere")
    assert raised.value.codes == ("data.not_found", "data.not_found", "model.not_found")
    assert list(tmp_path.iterdir()) == []


def test_init_needs_data_or_the_template(tmp_path: Path):
    with raises_code("cli.required", option="--train"):
        init(tmp_path / "my.yaml", task="classification")


ELSEWHERE = "none/none"
"""A model that is not on this machine: rows are read, and not tokenized."""
TEXTS = [f"the film number {row} was long" for row in range(60)]
CONTEXT = "Ana lives in Faro since May."


def _write(path: Path, rows: list[dict[str, Any]], *, header: bool = True) -> str:
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]], delimiter="\t" if path.suffix == ".tsv" else ",")
            if header:
                writer.writeheader()
            writer.writerows(rows)
    return str(path)


def _question(row: int, start: int = 13) -> dict[str, Any]:
    context = f"{CONTEXT} Her number is {row % 12}."
    answers = {"text": ["Faro"], "answer_start": [start]}
    return {"id": str(row), "question": f"where does {row} live?", "context": context, "answers": answers}


def _rows(**columns: Any) -> list[dict[str, Any]]:
    return [
        {"text": text, **{key: values[row % len(values)] for key, values in columns.items()}}
        for row, text in enumerate(TEXTS)
    ]


FILES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = {
    "classes": ("a.csv", _rows(label=["pos", "neg"]), {}, {"task.kind": "classification"}),
    "classes, some empty": ("a.csv", _rows(label=["pos", "neg", ""]), {}, {"data.missing": "drop"}),
    "stars, some marks": (
        "a.csv",
        _rows(label=[*range(1, 6), "-", "?", "NA", "n/a", "nan", ""]),
        {},
        {"data.missing": "drop", "task.labels": [1, 2, 3, 4, 5]},
    ),
    "scores, some marks": ("a.csv", _rows(label=[0.5, "-", "n.a."]), {}, {"task.kind": "regression"}),
    "rare marks": (
        "a.csv",
        _rows(label=[*(["good", "bad"] * 7), "?"]),
        {},
        {"data.missing": "drop", "task.labels": ["bad", "good"]},
    ),
    "codes": ("a.csv", _rows(label=[*(["PT", "AO"] * 7), "NA"]), {}, {"task.labels": ["AO", "NA", "PT"]}),
    "signs": ("a.csv", _rows(label=[*(["+", "o"] * 7), "-"]), {}, {"task.labels": ["+", "-", "o"]}),
    "no header": ("a.tsv", _rows(label=["1", "0"]), {}, {"data.header": False, "data.columns.label": "2"}),
    "by number": ("a.tsv", _rows(mood=["good", "bad", "odd"]), {"label": "2"}, {"data.header": False}),
    "ordinal": ("a.csv", _rows(label=[1, 2, 3]), {"task": "ordinal"}, {"evaluate.best": "qwk"}),
    "scores": ("a.csv", _rows(label=[0, 2.5, 5]), {}, {"task.kind": "regression", "task.range": [0, 5]}),
    "pairs": ("a.jsonl", _rows(text_pair=TEXTS, label=[0, 1]), {}, {"data.columns.text_pair": "text_pair"}),
    "lists": ("a.jsonl", _rows(label=[["a"], ["b", "a"], []]), {}, {"task.kind": "multi_label"}),
    "flags": ("a.csv", _rows(a=[0, 1], b=[1, 1, 0], c=[1, 0]), {}, {"data.columns.label": ["a", "b", "c"]}),
    "nested": ("a.jsonl", _rows(about=[{"mood": "x"}, {"mood": "y"}]), {}, {"data.columns.label": "about.mood"}),
    "tags": (
        "a.jsonl",
        [{"tokens": text.split(), "tags": ["O", "O", "B-X", "O", "O", "O"]} for text in TEXTS],
        {},
        {"task.labels": ["O", "B-X", "I-X"]},
    ),
    "spans": (
        "a.jsonl",
        [{"text": text, "label": [[4, 8, "ART"]] if row % 9 else None} for row, text in enumerate(TEXTS)],
        {"task": "token_classification"},
        {"data.missing": "drop", "task.labels": ["O", "B-ART", "I-ART"]},
    ),
    "questions": ("a.jsonl", [_question(row) for row in range(60)], {}, {"data.split.group_by": "context"}),
    "questions without ids": (
        "a.jsonl",
        [{key: value for key, value in _question(row).items() if key != "id"} for row in range(60)],
        {},
        {"task.kind": "qa", "data.columns.id": None},
    ),
    "odd answers": ("a.jsonl", [_question(row, 13 + (row == 7)) for row in range(60)], {}, {"data.missing": "drop"}),
    "one context": ("a.jsonl", [_question(12 * row) for row in range(60)], {}, {"data.split.group_by": None}),
    "choices": ("a.csv", _rows(choice1=["x"], choice2=["y"], label=[0, 1]), {}, {"task.kind": "multiple_choice"}),
    "no header, pairs": (
        "a.tsv",
        _rows(other=[text.upper() for text in TEXTS], score=[0.5, 2, 4]),
        {},
        {"data.header": False, "data.columns.text": "1", "data.columns.text_pair": "2", "task.kind": "regression"},
    ),
    "lists of objects": (
        "a.jsonl",
        _rows(votes=[[{"label": "a"}], [{"label": "b"}]]),
        {"label": "votes.label"},
        {"data.columns.label": "votes.label", "task.kind": "classification"},
    ),
    "deep": (
        "a.jsonl",
        [{"a": {"b": {"text": row["text"], "c": {"mood": row["mood"]}}}} for row in _rows(mood=["x", "y"])],
        {},
        {"data.columns.text": "a.b.text", "data.columns.label": "a.b.c.mood"},
    ),
    "texts": ("a.csv", _rows(), {}, {"task.kind": "mlm"}),
    "pairs of texts": (
        "a.csv",
        [{"query": text, "passage": text.upper()} for text in TEXTS],
        {},
        {"task.kind": "embedding", "task.group_size": 4, "batch.global": 4},
    ),
    "scores of pairs": (
        "a.csv",
        [{"s1": text, "s2": text.upper(), "score": row % 4} for row, text in enumerate(TEXTS)],
        {"task": "embedding"},
        {"task.loss": "cosine_similarity", "task.score_range": [0.0, 3.0]},
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_the_written_file_of_each_kind_loads(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]):
    name, rows, options, expected = FILES[case]
    source = _write(tmp_path / name, rows, header=not case.startswith(("no header", "by number")))
    init(tmp_path / "my.yaml", train=source, model=ELSEWHERE, json=True, **options)
    shown = json.loads(capsys.readouterr().out)
    assert {key: shown["config"].get(key) for key in expected} == expected
    assert ELSEWHERE in shown["checked"]
    assert set(shown["example"]) == {key for key in shown["config"] if key.startswith("data.columns.")}
    loaded = load_config(tmp_path / "my.yaml", ["train.max_steps=12", "evaluate.every=never"])
    assert (loaded.config.train.epochs, loaded.config.train.max_steps) == (None, 12)


@pytest.mark.parametrize(("num_rows", "size", "epochs"), [(40, 4, 10), (100, 8, 8), (400, 32, 8), (2000, 32, 3)])
def test_a_small_file_is_trained_for_about_100_steps(tmp_path: Path, num_rows: int, size: int, epochs: int):
    rows = [{"text": f"{TEXTS[row % len(TEXTS)]} {row}", "label": "ab"[row % 2]} for row in range(num_rows)]
    init(tmp_path / "my.yaml", train=_write(tmp_path / "a.csv", rows), model=ELSEWHERE)
    config = load_config(tmp_path / "my.yaml").config
    assert (config.batch.global_, config.train.epochs) == (size, epochs)  # 100 * size / num_rows, at least 3


NO_HEADER = "".join(f"uma casa {row},outra casa {row},{row % 2}\n" for row in range(40))


@pytest.mark.parametrize("first", ["o mesmo,o mesmo,1\n", "palavra,palavra,0\n", "1,outra casa,1\n"])
def test_a_first_line_that_is_a_row_is_no_header(tmp_path: Path, first: str):
    (tmp_path / "a.csv").write_text(first + NO_HEADER)
    init(tmp_path / "my.yaml", train=str(tmp_path / "a.csv"), model=ELSEWHERE)
    data = load_config(tmp_path / "my.yaml").config.data
    assert (data.header, data.columns.label) == (False, "3")


@pytest.mark.parametrize("first", ["text,text,label\n", "premise,premise,label\n"])
def test_a_name_that_repeats_in_a_header_is_an_error(tmp_path: Path, first: str):
    (tmp_path / "a.csv").write_text(first + NO_HEADER)
    with raises_code("data.column_twice", "line 1"):
        init(tmp_path / "my.yaml", train=str(tmp_path / "a.csv"), model=ELSEWHERE)


LONG = "uma casa muito longa " * 30


@pytest.mark.parametrize(
    ("first", "row", "code"),
    [
        (f"{LONG},x\n", f"{LONG} de madeira,x\n", "data.one_class"),
        (f"{LONG},{LONG}dois,c0\n", f"{LONG},{LONG}sim,c%d\n", "data.label_column_unknown"),
        (f"{LONG}\n", f"{LONG} e mais %d\n", "data.label_column_unknown"),
    ],
)
def test_a_file_without_a_header_and_classes_names_the_header(tmp_path: Path, first: str, row: str, code: str):
    (tmp_path / "a.csv").write_text(first + "".join(row % number if "%" in row else row for number in range(40)))
    with raises_code(code, "--set data.header=false") as raised:
        init(tmp_path / "my.yaml", train=str(tmp_path / "a.csv"), model=ELSEWHERE)
    assert str(raised.value).count("casa") <= 200 / len("uma casa muito longa ")


@pytest.mark.parametrize("first", ["remark,mood\n", "1,2\n"])
def test_a_header_is_not_asked_for_where_there_is_one(tmp_path: Path, first: str):
    (tmp_path / "a.csv").write_text(first + "".join(f"{text},x\n" for text in TEXTS))
    with raises_code("data.one_class") as raised:
        init(tmp_path / "my.yaml", train=str(tmp_path / "a.csv"), model=ELSEWHERE)
    assert "data.header" not in str(raised.value)


def test_a_test_file_with_labels_in_lists_is_no_file_to_predict(tmp_path: Path):
    rows = _rows(votes=[[{"label": "a"}], [{"label": "b"}]])
    train, test = _write(tmp_path / "a.jsonl", rows), _write(tmp_path / "t.jsonl", rows)
    init(tmp_path / "my.yaml", train=train, test=test, label="votes.label", model=ELSEWHERE)
    data = load_config(tmp_path / "my.yaml").config.data
    assert (data.test, data.predict) == (test, {})


@pytest.mark.parametrize(("other", "written"), [("cp1252", "cp1252"), ("ascii", "cp1252"), ("utf-8", None)])
def test_an_encoding_is_written_where_it_is_that_of_all_files(
    tmp_path: Path, other: str, written: str | None, caplog: pytest.LogCaptureFixture
):
    rows = _write(tmp_path / "a.csv", _rows(label=["bom", "mau"]))
    text = Path(rows).read_text().replace("film", "à noite")
    Path(rows).write_bytes(text.encode("cp1252"))
    (tmp_path / "b.csv").write_bytes((text.replace("à", "a") if other == "ascii" else text).encode(other))
    init(tmp_path / "my.yaml", train=rows, test=str(tmp_path / "b.csv"), model=ELSEWHERE)
    assert load_config(tmp_path / "my.yaml").config.data.encoding == written


def test_set_replaces_guesses_and_says_how_files_are_read(tmp_path: Path):
    text = "à noite;2\n" + "".join(f"{word} {row};{row % 3}\n" for row, word in enumerate(TEXTS))
    (tmp_path / "a.csv").write_bytes(text.encode("utf-16-le"))
    overrides = ["data.encoding=utf-16-le", "data.header=false", "batch.per_device=4", "train.max_steps=7"]
    init(tmp_path / "my.yaml", train=str(tmp_path / "a.csv"), model=ELSEWHERE, set_=overrides)
    config = load_config(tmp_path / "my.yaml").config
    assert (config.data.encoding, config.data.header, config.task.labels) == ("utf-16-le", False, [0, 1, 2])
    assert (config.batch.global_, config.batch.per_device, config.train.epochs, config.train.max_steps) == (
        *(None, 4), *(None, 7),
    )  # fmt: skip


def test_set_names_model_task_and_columns_of_other_guesses(tmp_path: Path):
    train = _write(tmp_path / "a.csv", _rows(label=[0, 1], other=["tea|hot", "tea"], second=[0, 1]))
    overrides = [f"model.name={ELSEWHERE}", "task.kind=multi_label", "data.columns.label=other"]
    init(tmp_path / "my.yaml", train=train, model="/nowhere", set_=overrides)
    config = load_config(tmp_path / "my.yaml").config
    assert (config.task.kind, config.task.labels, config.data.split.stratify) == ("multi_label", ["hot", "tea"], False)
    init(tmp_path / "two.yaml", train=train, model=ELSEWHERE, set_=["data.columns.label=[label, second]"])
    assert load_config(tmp_path / "two.yaml").config.task.labels == ["label", "second"]


def test_a_rare_mark_is_no_label_of_several_either(tmp_path: Path):
    train = _write(tmp_path / "a.csv", _rows(label=["n/a", *["tea|hot", "tea", "hot", "tea|new", "new"] * 4]))
    init(tmp_path / "my.yaml", train=train, model=ELSEWHERE, task="multi_label")
    config = load_config(tmp_path / "my.yaml").config
    assert (config.task.labels, config.data.missing) == (["hot", "new", "tea"], "drop")


@pytest.mark.parametrize("override", ["data.encoding=cp99", "data.encodign=cp1252", "x", "train.epochs=many"])
def test_a_wrong_set_writes_nothing(tmp_path: Path, override: str):
    train = _write(tmp_path / "a.csv", _rows(label=[0, 1]))
    with pytest.raises(ConfigError):
        init(tmp_path / "my.yaml", train=train, model=ELSEWHERE, set_=[override])
    assert not (tmp_path / "my.yaml").exists()


def test_a_warning_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = _rows(label=["bom", "mau", "?"])
    init(tmp_path / "my.yaml", train=_write(tmp_path / "a.csv", rows), model=ELSEWHERE)
    assert capsys.readouterr().err.count("data.label_na") == 1


@pytest.mark.parametrize("labels", [None, ["", ""], [-1, -1]])
def test_a_test_file_without_labels_is_predicted(tmp_path: Path, labels: list[Any] | None):
    train = _write(tmp_path / "a.csv", _rows(label=[0, 1]))
    test = _write(tmp_path / "t.csv", _rows(**({} if labels is None else {"label": labels})))
    init(tmp_path / "my.yaml", train=train, test=test, model=ELSEWHERE)
    data = load_config(tmp_path / "my.yaml").config.data
    assert (data.test, data.predict, data.split.test) == (None, {"unlabelled": test}, 0.2)


def test_a_file_to_predict_needs_the_texts(tmp_path: Path):
    train, test = _write(tmp_path / "a.csv", _rows(label=[0, 1])), _write(tmp_path / "t.csv", [{"body": "x"}])
    with raises_code("data.column_missing", test):
        init(tmp_path / "my.yaml", train=train, test=test, model=ELSEWHERE)
    assert not (tmp_path / "my.yaml").exists()


def test_some_rows_are_tokenized_by_a_model_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tiny_model(tmp_path / "model")
    train = _write(tmp_path / "a.csv", _rows(label=["good", "bad", "odd"]))
    init(tmp_path / "my.yaml", train=train, model=str(tmp_path / "model"), json=True)
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "36 train, 12 validation, 12 test; up to 32 of each tokenized" in shown["checked"]

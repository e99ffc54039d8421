"""Bad input, as data: what is done, how it is refused, and what the message must say."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from world import REGRESSION, rows_of

from paratune.errors import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DATA, EXIT_NOT_FINITE


def _nothing(folder: Path) -> None:
    return


@dataclass(frozen=True)
class Case:
    """One kind of bad input."""

    name: str
    arguments: tuple[str, ...]
    """After `paratune`."""
    code: int
    says: tuple[str, ...]
    """Where it is, what was found, what to do: all must be in the message."""
    prepare: Callable[[Path], None] = _nothing
    """Makes the bad input in the folder."""


def _set(*pairs: str) -> tuple[str, ...]:
    return ("train", "c.yaml", *(word for pair in pairs for word in ("--set", pair)))


def _text(name: str, text: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return write


def _with_row(name: str, row: str, num_rows: int = 40) -> Callable[[Path], None]:
    """The first rows of data.csv, and one more."""

    def write(folder: Path) -> None:
        lines = [*rows_of(folder / "data.csv")[: num_rows + 1], *([row] if row else [])]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    return write


def _parquet(folder: Path) -> None:
    pa.parquet.write_table(pa.table({"text": [1.5, 2.5], "label": ["negative", "positive"]}), folder / "num.parquet")


def _model(name: str, change: Callable[[Path], None]) -> Callable[[Path], None]:
    """A copy of the model folder, damaged."""

    def copy(folder: Path) -> None:
        shutil.copytree(folder / "model", folder / name)
        change(folder / name)

    return copy


def _no_tokenizer(model: Path) -> None:
    for path in model.glob("*token*"):
        path.unlink()


def _torn(name: str) -> Callable[[Path], None]:
    def tear(model: Path) -> None:
        whole = (model / name).read_bytes()
        (model / name).write_bytes(whole[: len(whole) // 2])

    return tear


def _questions(text: str | None = None, task: str = "", **changed: object) -> Callable[[Path], None]:
    """A configuration q.yaml and its file q.json: one question as it should be, and one with something changed."""
    context = "Évora is a city 🏛 of Portugal"
    good = {"id": "a", "question": "Where?", "context": context, "answers": {"text": ["Évora"], "answer_start": [0]}}
    config = (
        f"task: {{kind: qa, stride: 8{task}}}\ndata: {{train: q.json, max_length: 48}}\nmodel: {{name: model}}\n"
        "train: {max_steps: 2}\nbatch: {global: 2}\ndevice: cpu\n"
    )

    def write(folder: Path) -> None:
        rows = [good, {**good, "id": "b", **changed}]
        (folder / "q.json").write_text(json.dumps(rows) if text is None else text, encoding="utf-8")
        (folder / "q.yaml").write_text(config, encoding="utf-8")

    return write


FILES = [
    Case("no such configuration", ("train", "d.yaml"), EXIT_CONFIG, ("d.yaml does not exist; in .: c.yaml",)),
    Case("a folder for a configuration", ("train", "model"), EXIT_CONFIG, ("model is a folder", "name a YAML file")),
    Case(
        "missing file",
        _set("data.train=dota.csv"),
        EXIT_DATA,
        ("dota.csv does not exist", "did you mean data.csv?", "working directory"),
    ),
    Case(
        "empty file",
        _set("data.train=empty.csv"),
        EXIT_DATA,
        ("empty.csv is empty (0 bytes)",),
        prepare=_text("empty.csv", ""),
    ),
    Case(
        "header without rows",
        _set("data.train=head.csv"),
        EXIT_DATA,
        ("head.csv has no rows", "id, text, label, score"),
        prepare=_text("head.csv", "id,text,label,score\n"),
    ),
    Case(
        "row with a field too many",
        _set("data.train=torn.csv"),
        EXIT_DATA,
        ("torn.csv, line 42: 5 fields, but the header has 4", 'must stand in "quotes"'),
        prepare=_with_row("torn.csv", "x,good, really good,positive,1"),
    ),
    Case(
        "not UTF-8",
        _set("data.train=latin.csv"),
        EXIT_DATA,
        ("latin.csv, line 2: byte 0xe9", "save it as UTF-8"),
        prepare=_text("latin.csv", b"id,text,label,score\n0,caf\xe9,positive,1\n"),
    ),
    Case(
        "half a Parquet file",
        _set("data.train=half.parquet"),
        EXIT_DATA,
        ("half.parquet is not a whole Parquet file",),
        prepare=_text("half.parquet", b"PAR1 and no end"),
    ),
]

COLUMNS = [
    Case(
        "wrong column",
        _set("data.columns.text=txet"),
        EXIT_DATA,
        ("data.csv lacks a column", "data.columns.text names txet; did you mean text?", "'score'"),
    ),
    Case(
        "text column not text (CSV)",
        _set("data.columns.text=score"),
        EXIT_DATA,
        ("data.csv, column score (data.columns.text) holds nothing but numbers",),
    ),
    Case(
        "text column not text (Parquet)",
        _set("data.train=num.parquet", "data.columns.id="),
        EXIT_DATA,
        ("num.parquet, column text (data.columns.text) holds double, such as 1.5",),
        prepare=_parquet,
    ),
    Case(
        "missing label",
        _set("data.train=gap.csv"),
        EXIT_DATA,
        ("gap.csv: something is missing: label (column label) in 1 of 41 rows: row 40", "data.missing: drop"),
        prepare=_with_row("gap.csv", "x,the film,,1"),
    ),
    Case(
        "label unseen in training",
        _set("data.validation=other.csv", "data.split="),
        EXIT_DATA,
        ("other.csv, column label", "'neutral': row 40", "task.labels ('negative', 'positive')", "Add them"),
        prepare=_with_row("other.csv", "x,the film,neutral,0"),
    ),
    Case(
        "NaN target",
        ("train", "c.yaml", *REGRESSION, "--set", "data.train=nan.csv"),
        EXIT_DATA,
        ("nan.csv, column score: 1 of 41 targets are not finite, such as 'nan': row 40", "data.missing: drop"),
        prepare=_with_row("nan.csv", "x,the film,positive,nan"),
    ),
    Case(
        "class label given for regression",
        ("train", "c.yaml", *REGRESSION, "--set", "data.columns.label=label"),
        EXIT_DATA,
        ("column label: 200 of 200 targets are not numbers, such as 'negative'", "task.kind: classification"),
    ),
    Case(
        "numeric target given for classes",
        _set("data.columns.label=score"),
        EXIT_DATA,
        ("column score: 200 labels are not among task.labels", "task.kind: regression"),
    ),
    Case(
        "too few rows to cut",
        _set("data.train=two.csv"),
        EXIT_DATA,
        ("the validation part of 2 rows would be empty", "a larger share, or more data"),
        prepare=_with_row("two.csv", "", num_rows=2),
    ),
]

MASKED_LM = _set("task=mlm", "data.columns.label=", "data.columns.id=", "data.split.stratify=false", "evaluate.best=")
"""Turns the configuration into hiding words of the column `text`."""


def _unmasked(model: Path) -> None:
    for path in (model / "tokenizer_config.json", model / "special_tokens_map.json"):
        if path.exists():
            values = {key: value for key, value in json.loads(path.read_text()).items() if key != "mask_token"}
            path.write_text(json.dumps(values))


RUNNING_TEXT = [
    Case(
        "a label column for a masked LM",
        (*MASKED_LM, "--set", "data.columns.label=label"),
        EXIT_CONFIG,
        ("data.columns.label: label has no effect with task.kind: mlm", "learns from the text alone"),
    ),
    Case(
        "a vocabulary without a mask token",
        (*MASKED_LM, "--set", "model.name=plain", "--set", "data.train=nowhere.csv"),  # which is not even looked for
        EXIT_CONFIG,
        ("task.kind: mlm hides tokens behind a mask token, and the vocabulary of plain", "has none", "model.tokenizer"),
        prepare=_model("plain", _unmasked),
    ),
    Case(
        "windows without room for text",
        (*MASKED_LM, "--set", "data.max_length=2"),
        EXIT_CONFIG,
        ("data.max_length 2 leaves no room for text beside 2 special tokens; at least 3 is needed",),
    ),
    Case(
        "a document without a token",
        (*MASKED_LM, "--set", "data.train=zero.csv", "--set", "data.split="),
        EXIT_DATA,
        ("zero.csv: the tokenizer makes no token of row 40 (counted from 0); mend or remove such rows",),
        prepare=_with_row("zero.csv", "x,\u200b,positive,1"),
    ),
    Case(
        "sentences of a text file",
        (*MASKED_LM, "--set", "data.train=a.txt#sentences"),
        EXIT_DATA,
        ("a.txt#sentences: only a folder saved by `datasets` has splits, and a .txt file paragraphs",),
        prepare=_text("a.txt", "one line\n"),
    ),
]

MODELS = [
    Case(
        "model folder without tokenizer",
        _set("model.name=bare"),
        EXIT_CONFIG,
        ("bare holds none of tokenizer.json", "it has config.json, model.safetensors", "model.tokenizer"),
        prepare=_model("bare", _no_tokenizer),
    ),
    Case(
        "model folder without weights",
        _set("model.name=light"),
        EXIT_CONFIG,
        ("light", "model.safetensors", "model.from_scratch: true"),
        prepare=_model("light", lambda model: (model / "model.safetensors").unlink()),
    ),
    Case(
        "torn weights",
        _set("model.name=torn"),
        EXIT_CONFIG,
        ("torn gives no model",),
        prepare=_model("torn", _torn("model.safetensors")),
    ),
    Case(
        "torn configuration of a model",
        _set("model.name=torn"),
        EXIT_CONFIG,
        ("torn/config.json", "not a valid JSON file"),
        prepare=_model("torn", _torn("config.json")),
    ),
    Case(
        "hub name offline",
        _set("model.name=google-bert/bert-base-uncased"),
        EXIT_CONFIG,
        (
            "google-bert/bert-base-uncased is no folder here, the cache of the hub has no tokenizer of it, and HF_HUB",
            "a folder",
        ),
    ),
    Case(
        "hub data set offline", _set("data.train=hub:imdb"), EXIT_DATA, ("hub:imdb", "HF_HUB_OFFLINE", "save_to_disk")
    ),
    Case("no such model folder", _set("model.name=./modle"), EXIT_CONFIG, ("./modle is not a folder",)),
    Case(
        "more tokens than the model has positions for",
        _set("data.max_length=5000"),
        EXIT_CONFIG,
        ("data.max_length: 5000", "at most 64"),
    ),
    Case(
        "no room for text",
        _set("data.max_length=2"),
        EXIT_CONFIG,
        ("data.max_length 2 leaves no room for text beside 2 special tokens", "at least 3 is needed"),
    ),
    Case(
        "unknown option of the model",
        _set("model.overrides={hidden_dropout: 0}"),
        EXIT_CONFIG,
        ("model.overrides.hidden_dropout", "did you mean hidden_dropout_prob?"),
    ),
]

SETTINGS = [
    Case(
        "unknown --set key",
        _set("train.lerning_rate=1"),
        EXIT_CONFIG,
        ("--set: train.lerning_rate is not an option of train; did you mean learning_rate?",),
    ),
    Case(
        "--set without a value", _set("train.learning_rate"), EXIT_CONFIG, ("'train.learning_rate' cannot be set", "=")
    ),
    Case("unknown option", ("train", "c.yaml", "--foo"), EXIT_CONFIG, ("Unknown option: --foo",)),
    Case("unknown command", ("trian", "c.yaml"), EXIT_CONFIG, ('Did you mean "train"?',)),
    Case("no configuration named", ("train",), EXIT_CONFIG, ("error: CONFIG is missing", "paratune train my.yaml")),
    Case("--nproc 0", ("train", "c.yaml", "--nproc", "0"), EXIT_CONFIG, ("--nproc 0: at least 1 process is needed",)),
    Case(
        "--nproc 2 with strategy single",
        ("train", "c.yaml", "--nproc", "2"),
        EXIT_CONFIG,
        ("strategy.kind: single runs in 1 process, and 2 were started", "set strategy.kind: ddp"),
    ),
    Case(
        "--resume and --overwrite",
        ("train", "c.yaml", "--resume", "--overwrite"),
        EXIT_CONFIG,
        ("say one of them",),
    ),
    Case(
        "batch not divisible by ranks",
        (*_set("strategy=ddp"), "--nproc", "3"),
        EXIT_CONFIG,
        ("batch.global is 16, which 3 ranks cannot share evenly", "15 or 18"),
    ),
    Case(
        "batch not divisible by micro-batches",
        _set("batch.micro_batch_size=5"),
        EXIT_CONFIG,
        ("batch.micro_batch_size is 5, which does not divide the 16 samples", "4 or 8"),
    ),
    Case(
        "no GPU here", _set("device=cuda"), EXIT_CONFIG, ("device: cuda, but PyTorch sees no GPU here", "device: cpu")
    ),
    Case(
        "fp16 on a CPU",
        _set("precision=fp16", "device=cpu"),
        EXIT_CONFIG,
        ("precision: fp16 is 4 to 300 times slower than fp32 on a CPU", "use precision: fp32"),
    ),
    Case(
        "offloading without an accelerator",
        _set("strategy={kind: zero3, cpu_offload: true}", "device=cpu"),
        EXIT_CONFIG,
        ("strategy.cpu_offload: true has no effect with device: cpu",),
    ),
    Case(
        "activation checkpointing of more blocks than there are",
        _set("train.activation_checkpointing=9"),
        EXIT_CONFIG,
        ("train.activation_checkpointing: 9 is more than the 2 blocks of this model", "at most that"),
    ),
    Case(
        "no such strategy module",
        _set("strategy={kind: 'nosuch:Strategy'}"),
        EXIT_CONFIG,
        ("strategy.kind: nosuch:Strategy cannot be imported", "No module named 'nosuch'"),
    ),
    Case(
        "a class that is no strategy",
        _set("strategy={kind: 'pathlib:Path'}"),
        EXIT_CONFIG,
        ("strategy.kind: pathlib:Path is not a strategy", "docs/strategies.md"),
    ),
    Case(
        "wrong options of an outside strategy",
        _set("strategy={kind: 'paratune.strategies.single:SingleStrategy', options: {speed: 2}}"),
        EXIT_CONFIG,
        ("strategy.options of paratune.strategies.single:SingleStrategy", "unexpected keyword argument 'speed'"),
    ),
    Case(
        "an outside strategy that refuses",
        _set("strategy={kind: 'outside:Refuses', options: {speed: 2}}"),
        EXIT_CONFIG,
        ("strategy.kind: outside:Refuses cannot be made: KeyError: 'speed'",),
    ),
    Case(
        "an outside module that cannot be run",
        _set("strategy={kind: 'broken:Strategy'}"),
        EXIT_CONFIG,
        ("strategy.kind: broken:Strategy cannot be imported: ZeroDivisionError",),
        prepare=_text("broken.py", "1 / 0\n"),
    ),
]

PLACES = [
    Case(
        "a file where the run folder should be",
        _set("run.folder=data.csv"),
        EXIT_CHECKPOINT,
        ("data.csv/c cannot be made, because data.csv is a file", "change run.folder"),
    ),
    Case(
        "a run folder that cannot be made",
        _set("run.folder=/proc/nowhere"),
        EXIT_CHECKPOINT,
        ("/proc/nowhere/c cannot be used", "change run.folder"),
    ),
    Case(
        "a folder of something else",
        _set("run.folder=.", "run.name=model"),
        EXIT_CHECKPOINT,
        ("model holds files but no run", "nothing of it was touched"),
    ),
    Case(
        "a cache that cannot be made",
        _set("data.cache_dir=/proc/nowhere"),
        EXIT_DATA,
        ("tokens cannot be written to /proc/nowhere", "data.cache_dir or $PARATUNE_CACHE"),
    ),
]

OTHER_COMMANDS = [
    Case(
        "evaluate without a text column",
        ("evaluate", "model", "--data", "data.csv"),
        EXIT_CONFIG,
        ("model does not say which column holds the text", "--text COLUMN"),
    ),
    Case(
        "evaluate on no file",
        ("evaluate", "model", "--data", "dota.csv", "--text", "text"),
        EXIT_DATA,
        ("dota.csv does not exist; did you mean data.csv?",),
    ),
    Case(
        "predict into a kind of file that is not written",
        ("predict", "model", "--input", "data.csv", "--output", "out.txt", "--text", "text"),
        EXIT_CONFIG,
        ("--output out.txt", ".csv, .jsonl, .parquet"),
    ),
    Case(
        "predict into a folder that is not there",
        ("predict", "model", "--input", "data.csv", "--output", "no/out.csv", "--text", "text"),
        EXIT_CONFIG,
        ("no/out.csv", "no is not a folder"),
    ),
    Case(
        "predict over a file",
        ("predict", "model", "--input", "data.csv", "--output", "data.csv", "--text", "text"),
        EXIT_CONFIG,
        ("data.csv exists", "--overwrite"),
    ),
    Case(
        "batch size 0", ("evaluate", "model", "--data", "data.csv", "--batch-size", "0"), EXIT_CONFIG, ("at least 1",)
    ),
    Case("report of nothing", ("report",), EXIT_CONFIG, ("needs at least one run folder", "runs/NAME")),
    Case("report of no run", ("report", "model"), EXIT_CHECKPOINT, ("model is not a run: it has no run.json",)),
    Case("data of no file", ("data", "d.yaml"), EXIT_CONFIG, ("d.yaml does not exist",)),
    Case(
        "config init over a file",
        ("config", "init", "c.yaml", "--task", "regression"),
        EXIT_CONFIG,
        ("c.yaml exists and was not touched",),
    ),
    Case("config init of no task", ("config", "init", "d.yaml", "--task", "ranking"), EXIT_CONFIG, ('"regression"',)),
]

NOT_FINITE = Case(
    "loss not finite",
    _set("train.learning_rate=1e30", "train.max_grad_norm="),
    EXIT_NOT_FINITE,
    ("step 2: the loss is nan", "learning rate 9.66667e+29", "Try a smaller train.learning_rate"),
)

QUESTIONS = [
    Case(
        "an answer that does not stand at its place",
        ("train", "q.yaml"),
        EXIT_DATA,
        (
            "q.json: 1 of 2 questions cannot be used: 1 with an answer that does not stand at its place in the context "
            "(places count characters, not bytes), row 1 (counted from 0) (row 1: 'Portugal' at 22, where 'ortugal' "
            "stands, and it stands at 21). Mend the file, or leave them out with data.missing: drop",
        ),
        prepare=_questions(answers={"text": ["Portugal"], "answer_start": [22]}),
    ),
    Case(
        "two questions of one id",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("1 with the id of an earlier question, row 1 (counted from 0) (row 1: 'a')",),
        prepare=_questions(id="a"),
    ),
    Case(
        "an empty context",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("1 with no context, row 1",),
        prepare=_questions(context=" "),
    ),
    Case(
        "an unanswerable question with an answer",
        ("train", "q.yaml"),
        EXIT_DATA,
        (
            "1 with answers that contradict is_impossible, row 1 (counted from 0) "
            "(row 1: is_impossible is True with 1 answers)",
        ),
        prepare=_questions(is_impossible=True),
    ),
    Case(
        "a question without an answer where all must have one",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("1 with no answer, and task.unanswerable is false",),
        prepare=_questions(task=", unanswerable: false", answers={"text": [], "answer_start": []}),
    ),
    Case(
        "a question that is longer than the window",
        ("train", "q.yaml"),
        EXIT_DATA,
        (
            "a question so long that data.max_length leaves no room for the context beside task.stride",
            "data.missing: drop",
        ),
        prepare=_questions(question="Where is it? " * 40),
    ),
    Case(
        "half a file of SQuAD",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("q.json, line 1: not JSON", "it seems to have SQuAD's layout, and is damaged or cut off"),
        prepare=_questions(text='{"version": "v2.0", "data": [{"paragraphs": [{"context": "x'),
    ),
    Case(
        "a question without a text in SQuAD's layout",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("q.json, data[0].paragraphs[0].qas[0].question is absent; expected str",),
        prepare=_questions(text='{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "a"}]}]}]}'),
    ),
]

CASES = [*QUESTIONS, *FILES, *COLUMNS, *RUNNING_TEXT, *MODELS, *SETTINGS, *PLACES, *OTHER_COMMANDS]
"""All that must leave nothing behind."""

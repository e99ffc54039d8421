"""Tokens of a corpus in shards: the same samples as from the texts, bit for bit; errors of other and damaged ones."""

import hashlib
import json
import pickle
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from corpus_documents import extracted
from raised import raises_code
from tiny import tiny_tokenizer

from paratune.config.sections import Columns, Data
from paratune.config.task_sections import MaskedLMTask
from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.store import run_store, store_tokens, text_split
from paratune.data.encode import EXAMPLE, NUM_MASKABLE, WINDOW, WORD_START, TokenizeOptions
from paratune.data.order import epoch_order
from paratune.data.read import read_table
from paratune.data.token_shards import finish_tokens
from paratune.data.token_store import ShardedArray
from paratune.tasks import make_recipe
from paratune.tasks.corpus_tokens import TokenWriter

STEPS = ["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]
TEXTS = [f"the {word} story is not {word} and it was very {number}" for number, word in enumerate(["good", "bad"] * 8)]
"""16 texts, of which some become the validation set."""


def made(folder: Path, *sizes: int, workers: int = 1, texts: list[str] | None = None, **how) -> Path:
    """Return the folder of the tokens of `TEXTS`, in shards of these numbers of documents."""
    if not (folder / "tokenizer").is_dir():
        tiny_tokenizer(folder / "tokenizer")
    left = list(TEXTS if texts is None else texts)
    extracted(folder / "work", *[[left.pop(0) for _ in range(size)] for size in sizes])
    tokens = {"tokenizer": str(folder / "tokenizer"), "max_length": 16} | how
    store = {"validation": 0.3, "tokens": tokens}
    corpus = Corpus.model_validate({"work": str(folder / "work"), "clean": {"skip": STEPS}, "store": store})
    run_store(corpus, 1, Display(speaks=False))
    counts = store_tokens(corpus, workers, Display(speaks=False), make_writer=TokenWriter, finish_tokens=finish_tokens)
    assert counts is not None
    assert min(counts.values()) > 0
    return folder / "work/6_store/tokens"


def splits_of(train: str | list[str], validation: str | None = None, *, max_length: int = 16, tokenizer=None, **task):
    recipe = make_recipe(MaskedLMTask(kind="mlm", **task))
    data = Data(train=train, validation=validation, columns=Columns(text="text"))
    options = TokenizeOptions(tokenizer or tiny_tokenizer(), max_length, need_token_type_ids=True, is_cached=False)
    return recipe, recipe.load_splits(data, options)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_arrays_of_several_files_are_one():
    parts = [np.arange(3, dtype=np.uint16), np.arange(10, 15, dtype=np.uint16), np.arange(20, 21, dtype=np.uint16)]
    whole, array = np.concatenate(parts), ShardedArray(parts)
    assert (len(array), array.dtype) == (9, np.uint16)
    for begin in range(10):
        for end in range(10):
            assert array[begin:end].tolist() == whole[begin:end].tolist()
            assert array[begin:end].dtype == np.uint16
    places = np.array([[8, 0, 3], [2, 7, 3]])
    assert array[places].tolist() == whole[places].tolist()
    assert np.asarray(array).tolist() == array[:].tolist() == whole.tolist()


@pytest.mark.parametrize(
    "task", [{}, {"whole_words": True}, {"windows": "documents"}, {"windows": "separate", "whole_words": True}], ids=str
)
def test_one_shard_gives_the_batches_of_the_texts(tmp_path: Path, task):
    folder = made(tmp_path, 16, **task)
    recipe, splits = splits_of(f"{folder}/train", f"{folder}/validation", **task)
    texts = tmp_path / "work/6_store/texts"
    _, expected = splits_of(f"{texts}/train.parquet", f"{texts}/validation.parquet", **task)
    for name in ("train", "validation"):
        split, other = splits[name], expected[name]
        assert (split.num_rows, split.num_samples) == (other.num_rows, other.num_samples)
        assert split.store.num_unknown == other.store.num_unknown
        order = epoch_order(split.num_samples, seed=3, epoch=1)
        batches = [recipe.collator(part, tiny_tokenizer(), seed=3) for part in (split, other)]
        denominators = {batch.loss_denominator(order, epoch=1) for batch in batches}
        assert len(denominators) == 1
        first, second = (batch(order, 1.0, epoch=1) for batch in batches)
        for value in ("input_ids", "labels", "attention_mask", "token_type_ids", "index"):
            assert getattr(first, value).tolist() == getattr(second, value).tolist(), value


def test_shards_give_the_windows_of_the_texts_in_their_order(tmp_path: Path):
    folder = made(tmp_path, 5, 1, 10, windows="documents", whole_words=True)
    _, splits = splits_of(f"{folder}/train", windows="documents", whole_words=True)
    texts = tmp_path / "work/6_store/texts/train.parquet"
    _, expected = splits_of(str(texts), windows="documents", whole_words=True)
    store, other = splits["train"].store, expected["train"].store
    assert np.asarray(store.tokens).tolist() == np.asarray(other.tokens).tolist()
    assert np.asarray(store.token_values[WORD_START]).tolist() == np.asarray(other.token_values[WORD_START]).tolist()
    assert store.offsets.tolist() == other.offsets.tolist()
    assert {name: store.row_values[name].tolist() for name in (EXAMPLE, NUM_MASKABLE)} == {
        name: other.row_values[name].tolist() for name in (EXAMPLE, NUM_MASKABLE)
    }
    folder = made(tmp_path, 5, 1, 10, windows="separate")
    store = splits_of(f"{folder}/train", windows="separate")[1]["train"].store
    shards = json.loads((folder / "train/tokens.json").read_bytes())["shards"]
    assert len(store) == sum(shard["num_windows"] for shard in shards)
    assert store.row_values[WINDOW].tolist() == np.repeat(np.arange(len(store)), store.num_sequences).tolist()
    assert np.unique(store.examples).tolist() == other.examples.tolist()
    record = splits["train"].record()
    assert record["num_rows"] == sum(text_split(_sha256(text), 0.3) == "train" for text in TEXTS)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_several_folders_follow_each_other(tmp_path: Path):
    one = made(tmp_path / "one", 16, windows="documents")
    two = made(tmp_path / "two", 4, 4, windows="documents", texts=TEXTS[::2])
    _, splits = splits_of([f"{one}/train", f"{two}/train"], windows="documents")
    parts = [splits_of(f"{folder}/train", windows="documents")[1]["train"].store for folder in (one, two)]
    store = splits["train"].store
    assert np.asarray(store.tokens).tolist() == [token for part in parts for token in np.asarray(part.tokens).tolist()]
    rows = parts[0].examples.tolist()
    assert store.examples.tolist() == rows + [rows[-1] + 1 + row for row in parts[1].examples.tolist()]


@pytest.mark.slow
def test_files_are_equal_for_any_number_of_workers_and_after_a_kill(tmp_path: Path):
    folder = made(tmp_path / "one", 5, 1, 10)
    expected = files_of(folder)
    (tmp_path / "two").mkdir()
    (tmp_path / "one/tokenizer").rename(tmp_path / "two/tokenizer")
    assert files_of(made(tmp_path / "two", 5, 1, 10, workers=2)) == expected
    # What a kill in the second shard leaves: a whole folder without its counts, and a temporary one.
    place = tmp_path / "two/work/6_store/tokens"
    for file in ("stage.json", "counts-00001.json", "part-00001.parquet", "train/tokens.json"):
        (place / file).unlink()
    (place / "train/00001.7.tmp").mkdir()
    (place / "train/00001.7.tmp/tokens.bin").write_bytes(b"half")
    assert files_of(made(tmp_path / "two", 5, 1, 10)) == expected


def test_other_settings_make_the_tokens_again(tmp_path: Path):
    folder = made(tmp_path, 16)
    assert files_of(made(tmp_path, 16, max_length=12)).keys() == files_of(folder).keys()
    record = json.loads((folder / "train/tokens.json").read_bytes())
    assert record["settings"]["data.max_length"] == 12


def test_loader_workers_get_places_of_files(tmp_path: Path):
    folder = made(tmp_path, 8, 8)
    _, splits = splits_of(f"{folder}/train")
    store = splits["train"].store
    again = pickle.loads(pickle.dumps(store.tokens))
    assert np.asarray(again).tolist() == np.asarray(store.tokens).tolist()
    assert all(isinstance(part, tuple) for part in store.tokens.__getstate__())


@pytest.mark.parametrize(
    ("task", "max_length", "keys"),
    [
        ({"windows": "documents"}, 16, ["task.windows"]),
        ({"whole_words": True}, 16, ["task.whole_words"]),
        ({}, 12, ["data.max_length"]),
    ],
    ids=str,
)
def test_tokens_of_other_settings_are_refused(tmp_path: Path, task, max_length: int, keys):
    folder = made(tmp_path, 16)
    with raises_code("data.tokens_unfit", *keys, keys=keys):
        splits_of(f"{folder}/train", max_length=max_length, **task)


def test_tokens_of_an_earlier_version_are_refused(tmp_path: Path):
    file = made(tmp_path, 16) / "train/tokens.json"
    record = json.loads(file.read_bytes())
    del record["settings"]["format"]
    file.write_text(json.dumps(record))
    with raises_code("data.tokens_unfit", keys=["format"]):
        splits_of(str(file.parent))


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path):
    folder, other = made(tmp_path, 16), tiny_tokenizer()
    other.add_tokens(["film!"])
    with raises_code("data.tokens_unfit", keys=["model.tokenizer"]):
        splits_of(f"{folder}/train", tokenizer=other)


@pytest.mark.parametrize("file", ["tokens.json", "00000/meta.json", "00000/tokens.bin", "00000/offsets.npy"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_tokens_are_refused(tmp_path: Path, file: str, damage: str):
    folder = made(tmp_path, 16)
    path = folder / "train" / file
    content = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    # Without its last file, a folder is not a folder of finished tokens.
    code = "data.format" if (file, damage) == ("tokens.json", "missing") else "data.cache_damaged"
    with raises_code(code):
        splits_of(f"{folder}/train")


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("split", {"split": {"validation": 0.1}}),
        ("max_rows.train", {"max_rows": {"train": 3}}),
        ("drop_duplicates", {"drop_duplicates": True}),
    ],
)
def test_options_that_need_texts_are_refused(tmp_path: Path, key: str, option):
    folder = made(tmp_path, 16)
    data = Data.model_validate({"train": f"{folder}/train", **option})
    options = TokenizeOptions(tiny_tokenizer(), 16, need_token_type_ids=True, is_cached=False)
    with raises_code("config.no_effect", key=f"data.{key}"):
        make_recipe(MaskedLMTask(kind="mlm")).load_splits(data, options)


def test_a_validation_set_is_not_both_a_folder_and_a_part_of_train(tmp_path: Path):
    folder = made(tmp_path, 16)
    texts = tmp_path / "work/6_store/texts/train.parquet"
    data = Data(
        train=str(texts), validation=f"{folder}/validation", columns=Columns(text="text"), split={"validation": 0.3}
    )
    options = TokenizeOptions(tiny_tokenizer(), 16, need_token_type_ids=True, is_cached=False)
    with raises_code("data.split_conflict", part="validation"):
        make_recipe(MaskedLMTask(kind="mlm")).load_splits(data, options)


def test_tokens_of_earlier_texts_are_deleted(tmp_path: Path):
    place = made(tmp_path, 16)
    shutil.rmtree(tmp_path / "work/3_extract")
    shutil.rmtree(tmp_path / "tokenizer")
    extracted(tmp_path / "work", TEXTS[::2])
    store = {"validation": 0.3, "tokens": {"tokenizer": str(tmp_path / "tokenizer")}}
    corpus = Corpus.model_validate({"work": str(tmp_path / "work"), "clean": {"skip": STEPS}, "store": store})
    run_store(corpus, 1, Display(speaks=False))
    assert not place.exists()


def test_a_tokenizer_that_changes_meanwhile_is_refused(tmp_path: Path):
    folder = tmp_path / "tokenizer"
    tokenizer = tiny_tokenizer(folder)
    writer = TokenWriter(str(folder), 16, "joined", whole_words=False)
    settings = writer.settings()
    tokenizer.add_tokens(["film!"])
    tokenizer.save_pretrained(folder)
    with raises_code("tokenizer.unsupported", key="store.tokens.tokenizer"):
        writer.write(tmp_path / "00000", TEXTS, settings)
    assert not (tmp_path / "00000").exists()


def test_a_store_with_few_open_files_is_opened(tmp_path: Path):
    folder = made(tmp_path, *[1] * 16, windows="documents")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len([*Path("/proc/self/fd").iterdir()])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 12, before[1]))
        _, splits = splits_of(f"{folder}/train", windows="documents")
        assert splits["train"].num_rows > 6
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_other_readers_refuse_tokens(tmp_path: Path):
    folder = made(tmp_path, 16)
    with raises_code("data.only_tokens"):
        read_table(f"{folder}/train")
    _, splits = splits_of(f"{folder}/train")
    texts = splits["train"].samples.texts
    for use in (list, reversed, lambda texts: ["a" in texts], lambda texts: texts[0]):
        with raises_code("data.only_tokens"):
            list(use(texts))


def test_without_a_tokenizer_there_are_no_tokens_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    extracted(tmp_path / "work", TEXTS)
    store = {"tokens": {"tokenizer": str(tmp_path / "absent")}}
    corpus = Corpus.model_validate({"work": str(tmp_path / "work"), "clean": {"skip": STEPS}, "store": store})
    run_store(corpus, 1, Display(speaks=False))
    how = {"make_writer": TokenWriter, "finish_tokens": finish_tokens}
    assert store_tokens(corpus, 1, Display(speaks=False), **how) is None
    assert [record.code for record in caplog.records if hasattr(record, "code")][-1:] == ["corpus.no_tokenizer"]

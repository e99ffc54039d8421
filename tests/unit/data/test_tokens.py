"""Tokenizing: the tokens of the tokenizer, complete or absent in the cache, from one process of several."""

import errno
import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import filelock
import numpy as np
import pyarrow as pa
import pytest
import tiny
import tokenizers
import transformers
from patience import PATIENCE_S
from raised import check_logged, raises_code
from tiny import tiny_tokenizer

import paratune.data.tokens as tokens_module
from paratune.data import encode, token_store
from paratune.data.columns import Samples
from paratune.data.encode import Texts, TokenizeOptions, layout_of
from paratune.data.token_store import StoreWriter, open_store
from paratune.data.tokenizers import tokenizer_fingerprint
from paratune.data.tokens import cache_folder, hash_texts

TEXTS = ["a good film", "bad", "the film was very very very very very bad and the book was good", "xyz!"]
PAIRS = ["not really", "a poor story and an awful place, and never again this ugly phone", "bad", "one two three"]


def samples(texts=TEXTS, pairs=None) -> Samples:
    return Samples(list(texts), pairs, None, None, np.arange(len(texts)), None, {})


def tokenize(samples: Samples, tokenizer, *, source: str = "data", **options):
    return tokens_module.tokenize(samples, TokenizeOptions(tokenizer, **options), source=source)


def token_fingerprint(samples: Samples, tokenizer, max_length: int, truncation: str, need_token_type_ids: bool) -> str:
    options = TokenizeOptions(tokenizer, max_length, truncation, need_token_type_ids)
    return tokens_module.token_fingerprint(Texts(samples, options, None, "data"), layout_of(None))


def rows_of(store, values="tokens"):
    """The tokens, or the token types (`type_ids`), of each sample."""
    return [part.tolist() for part in np.split(getattr(store, values), store.offsets[1:-1])]


@pytest.mark.parametrize(
    ("pairs", "truncation", "max_length"),
    [
        (None, "longest_first", 11),
        (None, "only_first", 11),
        (None, "longest_first", 64),
        (PAIRS, "longest_first", 11),
        (PAIRS, "longest_first", 64),
        # The text that is not cut has up to 13 or 14 tokens, beside 3 special ones.
        (PAIRS, "only_first", 20),
        (PAIRS, "only_second", 18),
    ],
)
def test_tokens_equal_those_of_single_calls(tmp_path, monkeypatch, pairs, truncation, max_length):
    monkeypatch.setattr(tokens_module, "CHUNK_SIZE", 3)
    tokenizer = tiny_tokenizer()
    store = tokenize(
        samples(TEXTS, pairs),
        tokenizer,
        max_length=max_length,
        truncation=truncation,
        need_token_type_ids=True,
        cache_dir=tmp_path,
    )
    for index, text in enumerate(TEXTS):
        pair = None if pairs is None else pairs[index]
        alone = tokenizer(text, pair, truncation=truncation, max_length=max_length)
        assert rows_of(store)[index] == alone["input_ids"]
        assert rows_of(store, "type_ids")[index] == alone["token_type_ids"]
        assert store.full_lengths[index] == len(tokenizer(text, pair, verbose=False)["input_ids"])
    assert store.lengths.tolist() == [len(row) for row in rows_of(store)]
    assert store.num_tokens == sum(store.lengths)
    assert store.num_truncated == sum(store.full_lengths > max_length)
    assert (store.tokens.dtype, store.type_ids.dtype) == (np.uint16, np.uint8)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_text_is_cut_as_by_the_tokenizer_in_one_call(tmp_path, monkeypatch, side):
    tokenizer, calls, call = tiny_tokenizer(), [], encode._call
    tokenizer.truncation_side = side
    monkeypatch.setattr(encode, "_call", lambda *texts, **limits: calls.append(limits) or call(*texts, **limits))
    store = tokenize(samples(), tokenizer, max_length=7, need_token_type_ids=True, cache_dir=tmp_path)
    theirs = tokenizer(TEXTS, truncation=True, max_length=7)
    assert rows_of(store) == theirs["input_ids"]
    assert rows_of(store, "type_ids") == theirs["token_type_ids"]
    assert (store.num_truncated, len(calls)) == (1, 1)


def test_slow_tokenizers_work_too(tmp_path):
    tokenizer = transformers.ByT5Tokenizer()
    assert not tokenizer.is_fast
    store = tokenize(samples(["né", "a long text"]), tokenizer, max_length=6, cache_dir=tmp_path)
    # UTF-8 bytes + 3, and 1 for the end: the definition of ByT5 (Xue et al. 2022).
    assert rows_of(store) == [[byte + 3 for byte in "né".encode()] + [1], [byte + 3 for byte in b"a lon"] + [1]]
    assert (store.num_truncated, store.type_ids, store.tokens.dtype) == (1, None, np.uint32)
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(transformers.ByT5Tokenizer())
    assert tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(transformers.ByT5Tokenizer(extra_ids=3))


@pytest.mark.parametrize(("head_tokens", "num_first"), [(None, 2), (3, 3), (0, 0), (8, 8)])
def test_head_and_tail_of_a_long_text_are_kept(tmp_path, head_tokens, num_first):
    # Sun et al. 2019: of 10 tokens, 2 are special; the head is a quarter of the other 8 where it is not given.
    options = {"max_length": 10, "truncation": "head_tail", "head_tokens": head_tokens}
    store = tokenize(samples(), tiny_tokenizer(), need_token_type_ids=True, cache_dir=tmp_path, **options)
    for text, row, types in zip(TEXTS, rows_of(store), rows_of(store, "type_ids"), strict=True):
        start, *inner, end = tiny_tokenizer()(text, verbose=False)["input_ids"]
        kept = inner if len(inner) <= 8 else inner[:num_first] + inner[len(inner) - (8 - num_first) :]
        assert row == [start, *kept, end]
        assert types == [0] * len(row)
    assert store.num_truncated == 1


def test_a_tokenizer_with_an_end_token_only_keeps_it_behind_the_tail(tmp_path):
    tokenizer = transformers.ByT5Tokenizer()
    store = tokenize(
        samples(["a long text"]), tokenizer, max_length=6, truncation="head_tail", head_tokens=2, cache_dir=tmp_path
    )
    assert rows_of(store) == [[byte + 3 for byte in b"a ext"] + [1]]


def test_a_head_above_the_length_is_refused(tmp_path):
    with raises_code("data.max_length_unfit", "data.head_tokens: 9", "8"):
        tokenize(samples(), tiny_tokenizer(), max_length=10, truncation="head_tail", head_tokens=9, cache_dir=tmp_path)


def test_the_second_call_uses_the_cache(tmp_path, monkeypatch):
    progress_calls = []
    first = tokenize(
        samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path, progress=lambda *at: progress_calls.append(at)
    )
    assert progress_calls == [(4, 4)]
    monkeypatch.setattr(encode, "_call", None)
    again = tokenize(
        samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path, progress=lambda *at: progress_calls.append(at)
    )
    assert rows_of(again) == rows_of(first)
    assert progress_calls == [(4, 4)]
    assert isinstance(again.tokens, np.memmap)


def test_the_fingerprint_depends_on_texts_tokenizer_and_settings_only(tmp_path):
    tokenizer = tiny_tokenizer()
    first = token_fingerprint(samples(), tokenizer, 8, "longest_first", False)
    tokenizer(TEXTS, truncation=True, max_length=5, padding=True)  # leaves its settings in the Rust tokenizer
    assert token_fingerprint(samples(), tokenizer, 8, "longest_first", False) == first
    others = [
        token_fingerprint(samples(TEXTS[::-1]), tokenizer, 8, "longest_first", False),
        token_fingerprint(samples(["a good filmb", "ad", *TEXTS[2:]]), tokenizer, 8, "longest_first", False),
        token_fingerprint(samples(TEXTS, TEXTS), tokenizer, 8, "longest_first", False),
        token_fingerprint(samples(), tokenizer, 9, "longest_first", False),
        token_fingerprint(samples(), tokenizer, 8, "only_first", False),
        token_fingerprint(samples(), tokenizer, 8, "longest_first", True),
    ]
    tokenizer.add_tokens(["filmy"])
    others.append(token_fingerprint(samples(), tokenizer, 8, "longest_first", False))
    assert len({first, *others}) == len(others) + 1


def test_the_state_of_the_tokenizer_does_not_change(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenize(samples(), tokenizer, max_length=8, cache_dir=tmp_path)
    assert (tokenizer.backend_tokenizer.truncation, tokenizer.backend_tokenizer.padding) == (None, None)
    tokenizer(TEXTS, truncation=True, max_length=5, padding=True)
    tokenize(samples(TEXTS[:2]), tokenizer, max_length=8, cache_dir=tmp_path)
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 5
    assert tokenizer.backend_tokenizer.padding is not None


def test_stopping_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "CHUNK_SIZE", 2)
    asked = []

    def stop():
        asked.append(None)
        return len(asked) == 2

    with raises_code("stopped.signal", "here.csv", "2 of 4"):
        tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path, source="here.csv", stop=stop)
    assert [path for path in (tmp_path / "tokens").iterdir() if path.suffix != ".lock"] == []


def test_files_of_a_killed_process_are_deleted(tmp_path):
    fingerprint = token_fingerprint(samples(), tiny_tokenizer(), 8, "longest_first", False)
    torn = tmp_path / "tokens" / f"{fingerprint}.1234.tmp"
    torn.mkdir(parents=True)
    (torn / "tokens.bin").write_bytes(b"half")
    tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path)
    assert {path.suffix for path in (tmp_path / "tokens").iterdir()} == {"", ".lock"}


@pytest.mark.parametrize(
    "fault",
    [
        "tokens.bin",
        "offsets.npy",
        "meta.json",
        "full_lengths.npy",
        "type_ids.bin",
        "gone",
        "foreign",
        "flipped tokens.bin",
        "flipped full_lengths.npy",
        "flipped type_ids.bin",
    ],
)
def test_damaged_tokens_are_written_again_with_a_warning(tmp_path, caplog, fault):
    good = tokenize(samples(), tiny_tokenizer(), max_length=8, need_token_type_ids=True, cache_dir=tmp_path)
    expected = rows_of(good)
    folder = tmp_path / "tokens" / good.fingerprint
    if fault == "gone":
        (folder / "tokens.bin").unlink()
    elif fault.startswith("flipped"):
        name = fault.removeprefix("flipped ")
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(bytes(content))
    elif fault == "foreign":
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, "fingerprint": "other"}))
    else:
        content = (folder / fault).read_bytes()
        (folder / fault).write_bytes(content[: len(content) // 2])
    with caplog.at_level(logging.WARNING):
        again = tokenize(samples(), tiny_tokenizer(), max_length=8, need_token_type_ids=True, cache_dir=tmp_path)
    assert rows_of(again) == expected
    assert [record.code for record in caplog.records] == ["data.cache_damaged"]
    check_logged(caplog, "data.cache_damaged", folder)


def test_errors_of_the_process_do_not_mean_damaged_tokens(tmp_path, monkeypatch):
    store = tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path)
    folder = tmp_path / "tokens" / store.fingerprint

    def no_more_files(path: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(token_store, "file_sha256", no_more_files)
    with pytest.raises(OSError, match="Too many open files") as caught:
        tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path)
    assert caught.value.errno == errno.EMFILE
    monkeypatch.undo()
    assert rows_of(open_store(folder)) == rows_of(store)


def test_ids_with_gaps_do_not_change(tmp_path):
    content = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    content["model"]["vocab"]["good"] = 1_000_000
    inner = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    store = tokenize(samples(["good"]), tokenizer, max_length=8, cache_dir=tmp_path)
    assert 1_000_000 in store.tokens.tolist()


def test_progress_is_called_between_long_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "CHUNK_CHARACTERS", 100)
    progress_calls: list[tuple[int, int]] = []
    texts = ["a good film", "bad " * 25, "the film", "nice " * 12, "book " * 12, "ugly"]

    def note(done: int, total: int) -> None:
        progress_calls.append((done, total))

    store = tokenize(samples(texts), tiny_tokenizer(), max_length=8, cache_dir=tmp_path / "a", progress=note)
    assert progress_calls == [(2, 6), (5, 6), (6, 6)]
    monkeypatch.undo()
    whole = tokenize(samples(texts), tiny_tokenizer(), max_length=8, cache_dir=tmp_path / "b")
    assert rows_of(store) == rows_of(whole)


def test_inconsistent_offsets_are_an_error(tmp_path):
    store = tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path)
    folder = tmp_path / "tokens" / store.fingerprint
    np.save(folder / "offsets.npy", store.offsets[::-1].copy())
    meta = json.loads((folder / "meta.json").read_text())
    meta["sha256"]["offsets.npy"] = hashlib.sha256((folder / "offsets.npy").read_bytes()).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="offsets do not fit"):
        open_store(folder)


@pytest.mark.parametrize(
    ("code", "expected_text"),
    [(errno.ENOSPC, "GiB free"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")],
)
def test_a_disk_error_is_explained(tmp_path, monkeypatch, code, expected_text):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(StoreWriter, "add", refuse)
    with raises_code("output.not_writable", tmp_path, expected_text, "data.cache_dir"):
        tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path)
    assert [path for path in (tmp_path / "tokens").iterdir() if path.suffix != ".lock"] == []


def test_a_cache_folder_that_is_a_file_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with raises_code("output.not_writable"):
        tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path / "file")


def test_impossible_settings_are_an_error(tmp_path):
    def run(made, **options):
        tokenize(made, tiny_tokenizer(), cache_dir=tmp_path, **options)

    with raises_code("data.max_length_unfit", "max_length", "2", "3"):
        run(samples(), max_length=2)
    with raises_code("config.no_effect", "only_second"):
        run(samples(), max_length=8, truncation="only_second")
    with raises_code("data.max_length_unfit", "data.max_length", "8", "1"):
        run(samples(TEXTS, PAIRS), max_length=8, truncation="only_first")
    with raises_code("data.empty"):
        run(samples([]), max_length=8)


def test_a_text_without_tokens_is_reported_with_its_row(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None  # no special tokens, as in GPT-2
    with raises_code("data.no_tokens", "row 1"):
        tokenize(samples(["good", "\u200b\u200b"]), tokenizer, max_length=8, cache_dir=tmp_path)


TOKENIZE_SLOWLY = """
import json, sys, time
from pathlib import Path
import numpy as np
from paratune.data import encode, tokens
from paratune.data.columns import Samples
from tiny import tiny_tokenizer

made, call = [], encode._call
def slow(*arguments, **options):
    made.append(None)
    time.sleep(0.2)
    return call(*arguments, **options)
encode._call = slow
texts = json.loads(sys.argv[2])
samples = Samples(texts, None, None, None, np.arange(len(texts)), None, {})
store = tokens.tokenize(samples, tokens.TokenizeOptions(tiny_tokenizer(), max_length=8, cache_dir=Path(sys.argv[1])))
print(json.dumps([len(made), [part.tolist() for part in np.split(store.tokens, store.offsets[1:-1])]]))
"""


@pytest.mark.slow
def test_only_one_of_several_processes_tokenizes(tmp_path):
    # Processes of their own: a fork of one in which threads run, as those of tokenizers do, may wait for ever.
    command = [sys.executable, "-c", TOKENIZE_SLOWLY, str(tmp_path), json.dumps(TEXTS)]
    environment = {**os.environ, "PYTHONPATH": str(Path(tiny.__file__).parent)}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(3)]
    answers = [json.loads(process.communicate(timeout=PATIENCE_S)[0]) for process in processes]
    assert sorted(count for count, _ in answers) == [0, 0, 1]
    assert answers[0][1] == answers[1][1] == answers[2][1]
    assert len(answers[0][1]) == len(TEXTS)


def test_waiting_for_another_process_can_be_stopped(tmp_path):
    fingerprint = token_fingerprint(samples(), tiny_tokenizer(), 8, "longest_first", False)
    (tmp_path / "tokens").mkdir()
    with (
        filelock.FileLock(tmp_path / "tokens" / f"{fingerprint}.lock"),
        raises_code("stopped.signal"),
    ):
        tokenize(samples(), tiny_tokenizer(), max_length=8, cache_dir=tmp_path, stop=lambda: True)


def test_the_cache_folder_is_the_option_the_variable_or_the_default(monkeypatch):
    monkeypatch.setenv("PARATUNE_CACHE", "/somewhere")
    assert cache_folder(None) == Path("/somewhere")
    assert cache_folder("/here") == Path("/here")
    monkeypatch.delenv("PARATUNE_CACHE")
    assert cache_folder(None) == Path.home() / ".cache" / "paratune"


@pytest.mark.parametrize("texts", [["a", "é 中", ""], [""], [], ["x" * 1000] * 50])
def test_the_hash_of_texts_uses_the_layout_of_arrow(texts: list[str]):
    # Tokens that were made by earlier versions are found by it. Arrow's large_string: int64 offsets, then UTF-8.
    expected, actual = hashlib.sha256(len(texts).to_bytes(8, "little")), hashlib.sha256()
    for buffer in pa.array(texts, type=pa.large_string()).buffers()[1:]:
        expected.update(buffer or b"")
    hash_texts(actual, texts)
    assert actual.hexdigest() == expected.hexdigest()


def test_unknown_tokens_are_counted(tmp_path):
    store = tokenize(samples(["good \u4e2d \u6587", "bad"]), tiny_tokenizer(), max_length=8, cache_dir=tmp_path)
    assert (store.num_unknown, store.num_tokens) == (2, 8)
    assert store.share_unknown == 0.25


def test_more_than_half_unknown_tokens_are_an_error(tmp_path):
    tokenizer = tiny_tokenizer()
    half = tokenize(samples(["\u4e2d \u6587"] * 25), tokenizer, max_length=8, cache_dir=tmp_path)
    assert (half.num_unknown, half.num_tokens) == (50, 100)
    rows = ["\u4e2d \u6587 \u4e2d"] * 25
    with raises_code("data.unknown_tokens", "here.csv", "75 of 125", "60%", "[UNK]"):
        tokenize(samples(rows), tokenizer, max_length=8, cache_dir=tmp_path, source="here.csv")
    # As many again find the tokens in the cache, and are refused as well.
    with raises_code("data.unknown_tokens", "75 of 125"):
        tokenize(samples(rows), tokenizer, max_length=8, cache_dir=tmp_path)
    few = tokenize(samples(rows[:19]), tokenizer, max_length=8, cache_dir=tmp_path)
    assert (few.num_unknown, few.num_tokens) == (57, 95)


def test_an_unknown_token_with_another_role_is_not_counted(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.unk_token = tokenizer.sep_token  # as in GPT-2, whose end of a text replaces unknown text, too
    store = tokenize(samples(), tokenizer, max_length=8, cache_dir=tmp_path)
    assert (store.num_unknown, store.share_unknown) == (None, None)

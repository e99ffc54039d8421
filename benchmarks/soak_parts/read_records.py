"""Readers of paratune's own files: a damaged file gives a ParatuneError or the same content, never other content."""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from paratune import checkpoint, records
from paratune.base.piece import Piece
from paratune.data.token_store import StoreWriter, open_store
from paratune.errors import CheckpointError, DataError, ParatuneError
from paratune.hub.bundle import Manifest, hash_file, unpack, write_bundle
from paratune.reports.run import make
from paratune.watch.board import Board

from . import warm, worlds
from .fuzz import Difference, Reader, differ
from .results import files_below

Files = dict[str, bytes]
"""All files of a folder, by path."""
TOKENS = "f" * 64


def _read(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _write(files: Files, folder: Path) -> None:
    for name, raw in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)


def damage_one(files: Files, folder: Path, name: str, raw: bytes) -> None:
    """Write files, one of them with other content."""
    _write({**files, name: raw}, folder)


@st.composite
def one_file(draw: Callable[..., Any], num_seeds: int, made: Callable[[int], Files]) -> tuple[int, str]:
    """Draw a seed of a folder, and one of its files."""
    seed = draw(st.integers(0, num_seeds - 1))
    names = sorted(made(seed))
    return seed, names[draw(st.integers(0, 1000)) % len(names)]


_HELD: dict[tuple[str, int], Files] = {}


def cached_files(name: str, seed: int, write: Callable[[Path, random.Random], None]) -> Files:
    """Return the files that a function writes; it is called once."""
    if (name, seed) not in _HELD:
        with tempfile.TemporaryDirectory() as place:
            write(Path(place), random.Random(seed))
            _HELD[name, seed] = _read(Path(place))
    return _HELD[name, seed]


def _checkpoints(folder: Path, draw: random.Random) -> None:
    for step in (3, 6):
        generator = torch.Generator().manual_seed(draw.randrange(1000))
        tensors = [(f"w{i}", torch.randn(draw.randint(1, 4), 3, generator=generator)) for i in range(3)]
        progress = {"step": step, "epoch": 0.5, "best": None, "scores": [1.5, "é"]}
        target = folder / f"step_{step:06d}"
        if draw.random() < 0.5:
            checkpoint.save(target, tensors, progress, step=step, is_writer=True)
            continue
        pieces = [(key, Piece.whole(tensor.shape), tensor.flatten()) for key, tensor in tensors]
        checkpoint.save_sharded(target, pieces, progress, step=step, rank=0, gather=lambda value: [value])


def checkpoint_files(seed: int) -> Files:
    return cached_files("checkpoint", seed, _checkpoints)


def _content(folder: Path) -> Any:
    reader = checkpoint.CheckpointReader(folder)
    return reader.step, reader.progress, [(key, reader.read(key).tolist()) for key in sorted(reader.keys())]


def whole_checkpoint(document: tuple[int, str], raw: bytes, place: Path) -> None:
    _write(checkpoint_files(document[0]), place)
    newest = checkpoint.find_newest(place)
    differ("newest", "step_000006", newest.name if newest else None)


def damaged_checkpoint(document: tuple[int, str], raw: bytes, place: Path) -> None:
    """The newest complete checkpoint is used, and has the saved content."""
    files = checkpoint_files(document[0])
    good, bad = place / "good", place / "bad"
    _write(files, good)
    damage_one(files, bad, document[1], raw)
    try:
        newest = checkpoint.find_newest(bad)
        checkpoint.read_progress(bad / "step_000006")
    except CheckpointError:
        return
    if newest is None:
        raise Difference("no checkpoint, although only one of two is damaged")
    differ(newest.name, _content(good / newest.name), _content(newest))
    if not document[1].startswith("step_000006"):
        differ("newest", "step_000006", newest.name)


def _bundle(folder: Path, draw: random.Random) -> None:
    source = folder.parent / f"{folder.name}.files"
    source.mkdir()
    files = {f"{'data/' * (i % 2)}{i}.txt": source / str(i) for i in range(3)}
    for path in files.values():
        path.write_bytes(draw.randbytes(draw.randint(0, 700)))
    packed = tuple(hash_file(path, name) for name, path in files.items())
    manifest = Manifest({"task": {"kind": "regression"}}, {"data.train": "data/1.txt"}, packed)
    write_bundle(folder / "b.tar", manifest, files)


def bundle_files(seed: int) -> Files:
    return cached_files("bundle", seed, _bundle)


def whole_bundle(document: tuple[int, str], raw: bytes, place: Path) -> None:
    (place / "b.tar").write_bytes(raw)
    manifest = unpack(place / "b.tar", place / "out")
    differ("files", {file.name: file.sha256 for file in manifest.files}, files_below(place / "out"))


def damaged_bundle(document: tuple[int, str], raw: bytes, place: Path) -> None:
    (place / "good.tar").write_bytes(bundle_files(document[0])["b.tar"])
    (place / "b.tar").write_bytes(raw)
    try:
        unpack(place / "b.tar", place / "out")
    except DataError:
        differ("what is left", ["b.tar", "good.tar"], sorted(path.name for path in place.iterdir()))
        return
    unpack(place / "good.tar", place / "good")
    contents = (sorted(_read(place / name).values()) for name in ("good", "out"))
    differ("contents", *contents)  # names are not in any hash


def _tokens(folder: Path, draw: random.Random) -> None:
    kinds = {"has_type_ids": bool(draw.randrange(2)), "unknown_id": 1, "token_values": {"word_start": "|u1"}}
    with StoreWriter(folder / TOKENS, "<u2", **kinds) as writer:
        for _ in range(3):
            ids = [[draw.randrange(500) for _ in range(draw.randint(1, 6))]]
            zeros = [[0] * len(ids[0])]
            writer.add(ids, zeros if kinds["has_type_ids"] else None, [9], {"word_start": zeros})
        writer.finish(20, {"number": np.arange(3)})


def token_files(seed: int) -> Files:
    return cached_files("tokens", seed, _tokens)


def _tokens_of(folder: Path) -> Any:
    store = open_store(folder / TOKENS)
    arrays = [store.tokens, store.type_ids, store.offsets, store.full_lengths, *store.token_values.values()]
    lists = [None if array is None else array.tolist() for array in [*arrays, *store.row_values.values()]]
    return lists, store.max_length, store.num_unknown


def whole_tokens(document: tuple[int, str], raw: bytes, place: Path) -> None:
    _write(token_files(document[0]), place)
    _tokens_of(place)


def damaged_tokens(document: tuple[int, str], raw: bytes, place: Path) -> None:
    files = token_files(document[0])
    _write(files, place / "good")
    damage_one(files, place / "bad", document[1], raw)
    try:
        actual = _tokens_of(place / "bad")
    except (ValueError, FileNotFoundError):  # `cached_store` makes the tokens again
        return
    differ("tokens", _tokens_of(place / "good"), actual)


_RUN: list[Files] = []
"""The record of a real run, after `make_run`."""
_LEFT_OUT = ("model/", "checkpoints/")


def make_run() -> None:
    """Train a tiny model once, and keep all files of its record."""
    if _RUN:
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "world"
        folder.mkdir()
        made = warm.fork(lambda: (warm.redirect_output(Path(place) / "made"), worlds.sentences(folder)))
        os.waitpid(made, 0)
        words = ("train", "c.yaml", "--set", "evaluate.every=epoch", "--set", "evaluate.steps=null")
        trained = warm.start(words, folder, {"PARATUNE_CACHE": f"{place}/cache"}, Path(place) / "log")
        if os.waitpid(trained, 0)[1] != 0:
            raise RuntimeError((Path(place) / "log").read_text())
        files = _read(folder / "runs" / "c")
        _RUN.append({name: raw for name, raw in files.items() if not name.startswith(_LEFT_OUT)})


def run_files(seed: int) -> Files:
    make_run()
    return _RUN[0]


def whole_run(document: tuple[int, str], raw: bytes, place: Path) -> None:
    _write(run_files(document[0]), place)
    steps = [event["step"] for event in records.read_events(place) if event["event"] == "step"]
    differ("steps", list(range(1, 13)), steps)
    _look_at(place)


def damaged_run(document: tuple[int, str], raw: bytes, place: Path) -> None:
    """Every reader of a run returns or raises a ParatuneError; a log without its damaged lines can be read."""
    damage_one(run_files(document[0]), place, document[1], raw)
    _look_at(place)
    try:
        records.read_json(place / records.RUN_FILE)
        records.repair_events(place, 0)
    except ParatuneError:
        return
    list(records.read_events(place))


def _look_at(place: Path) -> None:
    for work in (lambda: make([place], None), lambda: Board([place]).look(), lambda: list(records.read_events(place))):
        try:
            work()
        except ParatuneError:
            continue


def _rendered(made: Callable[[int], Files]) -> Callable[[tuple[int, str]], bytes]:
    return lambda document: made(document[0])[document[1]]


READERS = (
    Reader(
        "checkpoint",
        one_file(5, checkpoint_files),
        _rendered(checkpoint_files),
        whole_checkpoint,
        damaged_checkpoint,
    ),
    Reader("bundle-file", one_file(10, bundle_files), _rendered(bundle_files), whole_bundle, damaged_bundle),
    Reader("token-cache", one_file(10, token_files), _rendered(token_files), whole_tokens, damaged_tokens),
    Reader("run-record", one_file(1, run_files), _rendered(run_files), whole_run, damaged_run, make_run),
)

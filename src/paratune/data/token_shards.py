"""Folders of tokens that `paratune corpus` writes: many stores of one tokenizer, which training opens as one.

    <work>/6_store/tokens/train/
      00000/, 00001/, ...   stores, see `paratune.data.token_store`
      tokens.json           tokenizer and settings, and rows, tokens and SHA-256 of each store; written last

Imports no torch.
"""

import errno
import hashlib
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from paratune.config.sources import TOKENS_FILE, local_path
from paratune.data.columns import Samples, UnreadTexts
from paratune.data.encode import WINDOW
from paratune.data.token_store import EXAMPLE, TokenStore, chained_store, open_store
from paratune.errors import CheckpointError, DataError
from paratune.records import file_sha256, read_json, write_json

META_FILE = "meta.json"
FORMAT = 1


def shard_entry(folder: Path, store: TokenStore, num_rows: int) -> dict[str, Any]:
    """Return the entry of a store in `tokens.json`; `num_rows` are the documents in it."""
    counts = {"num_rows": num_rows, "num_windows": len(store), "num_tokens": store.num_tokens}
    return {"name": folder.name, **counts, "sha256": file_sha256(folder / META_FILE)}


def finish_tokens(folder: Path, settings: dict[str, Any], shards: Sequence[dict[str, Any]]) -> None:
    """Write the last file of a folder; `settings` is that of `token_settings`, and `shards` are of `shard_entry`."""
    write_json(folder / TOKENS_FILE, {"format": FORMAT, "settings": settings, "shards": list(shards)})


def open_tokens(sources: Sequence[str], settings: dict[str, Any]) -> tuple[Samples, TokenStore]:
    """Return the rows, without their texts, and the tokens of folders, in their order, after a check of all hashes.

    The fingerprint of the tokens is a SHA-256 over those of all shards. `settings` are those of the training.

    Raises:
        DataError: The tokens were made with other settings, or a file is missing or damaged.
    """
    stores, hashes = [], []
    numbered: dict[str, list[int]] = {EXAMPLE: [], WINDOW: []}
    # A mapped file stays open: a large corpus has more of them than the usual soft limit of 1,024.
    _, most_open = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_open, most_open))
    for source in sources:
        folder = local_path(source)
        assert folder is not None
        try:
            record = read_json(folder / TOKENS_FILE)
            made, shards = record["settings"], record["shards"]
            if record["format"] != FORMAT or not shards:
                raise ValueError(f"{TOKENS_FILE} has the format {record['format']} and {len(shards)} shards")
            others = [key for key in settings if made.get(key) != settings[key]]
            for shard in () if others else shards:
                name = Path(shard["name"]).name  # of any path only its last part
                store, sha256 = open_store(folder / name, maps_rows=False), file_sha256(folder / name / META_FILE)
                if sha256 != shard["sha256"] or store.examples[-1] >= shard["num_rows"]:
                    raise ValueError(f"{name} is not the shard in {TOKENS_FILE}")
                stores.append(store)
                numbered[EXAMPLE].append(shard["num_rows"])
                numbered[WINDOW].append(shard["num_windows"])
                hashes.append(shard["sha256"])
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise _damaged(folder, error) from error
            message = f"{folder} cannot be opened: {error.strerror} (at most {most_open} files at a time); raise the "
            message += "limit (ulimit -Hn), or make fewer shards (rows_per_shard of the corpus)"
            raise DataError(message, code="data.unreadable", folder=folder) from error
        except (CheckpointError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(folder, error) from error
        if others:
            differing = "; ".join(f"{key}: {made.get(key)} here, {settings[key]} in the training" for key in others)
            message = f"{folder} was made with other settings ({differing}); change the training, or store.tokens of "
            message += "the corpus and run paratune corpus again"
            raise DataError(message, code="data.tokens_unfit", folder=folder, keys=others)
    rows = np.arange(sum(numbered[EXAMPLE]), dtype=np.int64)
    samples = Samples(cast(Any, UnreadTexts(" + ".join(sources), len(rows))), None, None, None, rows, None, {})
    store = chained_store(stores, numbered, hashlib.sha256(" ".join(hashes).encode()).hexdigest())
    return samples, store.grouped(np.bincount(store.row_values[WINDOW])) if WINDOW in store.row_values else store


def _damaged(folder: Path, error: Exception) -> DataError:
    message = f"{folder} is damaged: {error}; copy it again, or delete it where paratune corpus wrote it, and run that"
    return DataError(f"{message} again", code="data.cache_damaged", folder=folder)

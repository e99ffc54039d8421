"""Folders of tokens that `paratune corpus` writes: many stores of one tokenizer, which training opens as one.

    <work>/6_store/tokens/train/
      00000/, 00001/, ...   stores, see `paratune.data.token_store`
      tokens.json           tokenizer and settings, and rows, tokens and SHA-256 of each store; written last

Imports no torch.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    for source in sources:
        folder = local_path(source)
        assert folder is not None
        try:
            record = read_json(folder / TOKENS_FILE)
            made, shards = record["settings"], record["shards"]
            if record["format"] != FORMAT or not shards:
                raise ValueError(f"{TOKENS_FILE} has the format {record['format']} and {len(shards)} shards")
            if others := [key for key in settings if made[key] != settings[key]]:
                differing = "; ".join(f"{key}: {made[key]} here, {settings[key]} in the training" for key in others)
                message = f"{folder} was made with other settings ({differing}); change the training, or store.tokens "
                message += "of the corpus and run paratune corpus again"
                raise DataError(message, code="data.tokens_unfit", folder=folder, keys=others)
            for shard in shards:
                if file_sha256(folder / shard["name"] / META_FILE) != shard["sha256"]:
                    raise ValueError(f"{shard['name']}/{META_FILE} does not match its SHA-256")
                stores.append(open_store(folder / shard["name"]))
                for name, key in ((EXAMPLE, "num_rows"), (WINDOW, "num_windows")):
                    numbered[name].append(int(shard[key]))
                hashes.append(str(shard["sha256"]))
        except DataError:  # a ValueError, too
            raise
        except (CheckpointError, ValueError, KeyError, TypeError, FileNotFoundError) as error:
            message = f"{folder} is damaged: {error}; delete the folder {folder.parent} and run paratune corpus again"
            raise DataError(message, code="data.cache_damaged", folder=folder) from error
    rows = np.arange(sum(numbered[EXAMPLE]), dtype=np.int64)
    samples = Samples(UnreadTexts(" + ".join(sources), len(rows)), None, None, None, rows, None, {})
    store = chained_store(stores, numbered, hashlib.sha256(" ".join(hashes).encode()).hexdigest())
    return samples, store.grouped(np.bincount(store.row_values[WINDOW])) if WINDOW in store.row_values else store

"""Writes tokens of texts in shards, for masked language models; `paratune corpus` calls it in its workers."""

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paratune.config.sections import ModelOptions
from paratune.config.sources import local_path
from paratune.config.task_sections import MaskedLMTask
from paratune.data.columns import Samples
from paratune.data.encode import TokenizeOptions
from paratune.data.token_shards import shard_entry
from paratune.data.token_store import FORMAT_VERSION, remove_folder
from paratune.data.tokenizers import check_mask_tokenizer, tokenizer_fingerprint
from paratune.data.tokens import tokenize
from paratune.errors import ConfigError
from paratune.models.tokenizer import load_tokenizer, takes_token_types


@dataclass(frozen=True)
class TokenWriter:
    """Writes shards of tokens with a tokenizer and settings; can be pickled. Arguments as in `store.tokens`."""

    tokenizer: str
    max_length: int
    windows: Literal["joined", "separate", "documents"]
    whole_words: bool

    def settings(self) -> dict[str, Any]:
        """Return what the tokens depend on besides the texts, in the form of `token_settings`.

        Raises:
            ConfigError: The tokenizer cannot be loaded, or cannot be used for masked language models.
        """
        return token_settings(*self._loaded())

    def write(self, folder: Path, texts: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
        """Write a store of some texts, at least one, in place of what is in `folder`; return its entry.

        Raises:
            ConfigError: The tokenizer has changed since `settings` were those of the writer.
            DataError: A text has no tokens.
            OSError: The folder cannot be written.
        """
        if multiprocessing.parent_process() is not None:  # one of several workers: each has one core
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        remove_folder(folder)
        options, task = self._loaded()
        if token_settings(options, task) != settings:
            message = f"store.tokens.tokenizer: {self.tokenizer} has changed while tokens were made; repeat the command"
            raise ConfigError(message, code="tokenizer.unsupported", key="store.tokens.tokenizer", value=self.tokenizer)
        samples = Samples([*texts], None, None, None, np.arange(len(texts), dtype=np.int64), None, {})
        return shard_entry(folder, tokenize(samples, options, task, source=str(folder), folder=folder), len(samples))

    def _loaded(self) -> tuple[TokenizeOptions, MaskedLMTask]:
        folder = local_path(self.tokenizer)
        files = sorted(folder.resolve().iterdir()) if folder is not None and folder.is_dir() else []
        return _load(self, tuple((file, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=1)
def _load(writer: TokenWriter, files: tuple[tuple[Path, int], ...]) -> tuple[TokenizeOptions, MaskedLMTask]:
    """Return the settings of a writer with its tokenizer, loaded once while its `files` do not change."""
    values = asdict(writer)
    tokenizer = load_tokenizer(ModelOptions(name=values.pop("tokenizer")))
    options = TokenizeOptions(
        tokenizer, values.pop("max_length"), need_token_type_ids=takes_token_types(tokenizer), is_cached=False
    )
    task = MaskedLMTask(kind="mlm", **values)
    check_mask_tokenizer(tokenizer, whole_words=task.whole_words)
    return options, task


def token_settings(options: TokenizeOptions, task: MaskedLMTask) -> dict[str, Any]:
    """Return the settings of a training that its tokens must have, as JSON values by key of the configuration."""
    return {
        "format": FORMAT_VERSION,
        "model.tokenizer": tokenizer_fingerprint(options.tokenizer)[:16],
        "data.max_length": options.max_length,
        "task.windows": task.windows,
        "task.whole_words": task.whole_words,
    }

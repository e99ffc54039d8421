"""The tokenization of a run's data in commands that do not train."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paratune.console import Display

if TYPE_CHECKING:
    from paratune.config.sections import Config
    from paratune.data.encode import TokenizeOptions


@contextmanager
def tokenizing_of(config: "Config", *, cache_dir: str | Path | None = None) -> Iterator["TokenizeOptions"]:
    """Yield the tokenizer and its settings as in training, with a progress bar; `cache_dir` replaces that of the run.

    Raises:
        ConfigError: The tokenizer cannot be loaded.
    """
    from paratune.data.encode import TokenizeOptions
    from paratune.models.config import token_limit
    from paratune.models.tokenizer import load_tokenizer, takes_token_types

    tokenizer = load_tokenizer(config.model, config.data.truncation_side)
    with Display(speaks=True).bar("tokenize", 1) as bar:
        yield TokenizeOptions(
            tokenizer,
            token_limit(config, tokenizer),
            truncation=config.data.truncation,
            head_tokens=config.data.head_tokens,
            need_token_type_ids=takes_token_types(tokenizer),
            cache_dir=cache_dir or config.data.cache_dir,
            progress=bar.show,
        )

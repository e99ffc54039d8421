"""Checks of a loaded tokenizer that would otherwise fail, or mislead, at the first text. Imports no torch."""

from pathlib import Path
from typing import Any

from paratune.errors import ConfigError
from paratune.models.files import file_names

_RARE_LETTERS = "\u2d63 \u07ca \ua66e \U00012000"
"""Letters of scripts (Tifinagh, N'Ko, old Cyrillic, cuneiform) that hardly any vocabulary has."""


def require_tokenizer(source: str, tokenizer: Any) -> None:
    """Raise a ConfigError where `tokenizer_class` of a folder names another class of transformers."""
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(
            f"model: tokenizer_class of {source} is {type(tokenizer).__name__}, which is no tokenizer of one text; "
            "correct it in its tokenizer_config.json, or set model.tokenizer to another tokenizer",
            code="model.cannot_load",
            key="model",
            source=source,
        )


def require_unknown_token(source: str, tokenizer: Any) -> None:
    """Raise a ConfigError for a tokenizer that raises a plain exception at the first letter it does not know."""
    if not tokenizer.is_fast:
        return
    try:
        tokenizer.backend_tokenizer.encode(_RARE_LETTERS)
    except Exception as error:
        raise ConfigError(
            f"model: the vocabulary of the tokenizer of {source} lacks its unknown token ({error}), so a text with any "
            "other letter cannot be tokenized; correct unk_token in its tokenizer.json and tokenizer_config.json, add "
            "the token to the vocabulary, or set model.tokenizer to another tokenizer",
            code="tokenizer.no_unknown_token",
            key="model",
            source=source,
        ) from error


def require_max_length(source: str, tokenizer: Any) -> None:
    """Raise a ConfigError for a limit of the tokenizer, `model_max_length`, that leaves no room for text."""
    limit, least = tokenizer.model_max_length, tokenizer.num_special_tokens_to_add(pair=False) + 1
    if not isinstance(limit, int | float) or not limit >= least:
        raise ConfigError(
            f"model: {Path(source) / 'tokenizer_config.json'} has model_max_length: {limit!r}, the most tokens of a "
            f"text; it is a number from {least} on: correct it, or remove it",
            code="tokenizer.max_length",
            key="model",
            source=source,
            value=limit,
        )


def require_vocabulary(source: str, tokenizer: Any) -> None:
    """Raise a ConfigError for a folder without vocabulary files: transformers creates a tokenizer without words."""
    folder, names = Path(source), dict(getattr(tokenizer, "vocab_files_names", None) or {})
    whole = names.pop("tokenizer_file", "tokenizer.json")
    has_parts = any((folder / name).is_file() for name in names.values())
    if folder.is_dir() and names and not has_parts and not (folder / whole).is_file():
        raise ConfigError(
            f"model: {source} has neither {whole} nor {' and '.join(names.values())}, the vocabulary files of "
            f"{type(tokenizer).__name__}; it has {file_names(folder)}; copy them there, or set model.tokenizer to a "
            "folder that has them",
            code="tokenizer.files_missing",
            key="model",
            source=source,
        )

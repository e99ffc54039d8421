"""Loads the tokenizer of a model and refuses one that would fail, or mislead, at the first text; saves its limit.

Other programs cut texts where the run cut them: a pipeline of transformers truncates at `model_max_length` of the
folder, and a model without this limit would read more than it was trained on, or fail beyond its positions. paratune
knows the tokenizer's own limit. Imports no torch.
"""

import copy
import json
import logging
import shlex
from pathlib import Path
from typing import Any, Literal

from paratune import hub
from paratune.config.sections import ModelOptions
from paratune.errors import ConfigError, coded
from paratune.models.locate import (
    file_names,
    hub_options,
    load_error,
    locate,
    refuse_revision,
    require_files,
    runs_code,
)
from paratune.records.own import read_task_file

log = logging.getLogger(__name__)
_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "tokenizer.model")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", *_SENTENCEPIECE)
LIMIT = "tokenizer_limit"
"""Entry of `paratune.json`: `model_max_length` before it became that of the run; a later run may use more tokens."""
_INPUTS = {"input_ids", "token_type_ids", "attention_mask"}
_RARE_LETTERS = "\u2d63 \u07ca \ua66e \U00012000"
"""Letters of scripts (Tifinagh, N'Ko, old Cyrillic, cuneiform) that hardly any vocabulary has."""


def load_tokenizer(model: ModelOptions, truncation_side: Literal["left", "right"] | None = None) -> Any:
    """Return the tokenizer of `model`; where it has no padding token, the end token is its padding token.

    It pads on the right, as the batches of training do, and is saved with the model in this form. It truncates on
    `truncation_side`; None keeps its own side.

    Raises:
        ConfigError: The folder has no tokenizer, or it cannot be loaded or used.
    """
    from transformers import AutoTokenizer

    source = locate(model.tokenizer or model.name, "model.tokenizer" if model.tokenizer else "model.name")
    require_files(source, TOKENIZER_FILES, "set model.tokenizer to a folder that has one")
    revision = model.tokenizer_revision if model.tokenizer else model.revision
    refuse_revision("model.tokenizer_revision" if model.tokenizer else "model.revision", revision, source)
    trusts, options = runs_code(model, model.tokenizer or model.name), hub_options(source)
    _require_converter(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trusts, **options)
    except Exception as error:  # transformers raises many kinds here
        raise load_error("tokenizer", source, error) from error
    _check_files(source, tokenizer)
    limit = read_task_file(Path(source)).get(LIMIT)
    if isinstance(limit, int):
        tokenizer.model_max_length = limit
    _check_limit(source, tokenizer)
    if options and not hub.is_offline():
        reason, extra = hub.unreachable_reason(), coded("model.from_cache", source=source)
        log.warning("%s; %s is loaded from the cache of earlier downloads", reason, source, extra=extra)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise _unusable(source, "it has neither a padding token nor an end token", code="tokenizer.token_missing")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = truncation_side or tokenizer.truncation_side
    return tokenizer


def save_tokenizer(folder: Path, tokenizer: Any, max_length: int | None) -> dict[str, int]:
    """Save a tokenizer whose limit is `max_length`, and return the entry of its own limit for `paratune.json`.

    None keeps its limit, and returns nothing. It is not changed itself.
    """
    saved = copy.copy(tokenizer)
    # transformers saves only options that the tokenizer was made with; the class of XLNet pads on the left otherwise.
    sides = {key: getattr(tokenizer, key) for key in ("truncation_side", "padding_side")}
    saved.init_kwargs = {**tokenizer.init_kwargs, **sides}
    if max_length is not None:
        saved.model_max_length = max_length
    saved.save_pretrained(folder)
    return {} if max_length is None else {LIMIT: tokenizer.model_max_length}


def takes_token_types(tokenizer: Any) -> bool:
    """Return whether the model of this tokenizer takes `token_type_ids`, which distinguish the texts of a pair."""
    return "token_type_ids" in tokenizer.model_input_names


def _require_converter(source: str) -> None:
    """Raise a ConfigError for a folder with a vocabulary only as a sentencepiece model that cannot be converted here.

    transformers converts it with two packages; without them its error is about another format.
    """
    from transformers.utils import is_protobuf_available, is_sentencepiece_available

    is_installed = {"sentencepiece": is_sentencepiece_available(), "protobuf": is_protobuf_available()}
    missing = [name for name, is_there in is_installed.items() if not is_there]
    present = [name for name in TOKENIZER_FILES if name != "tokenizer_config.json" and (Path(source) / name).is_file()]
    if present and present[0] in _SENTENCEPIECE and missing:
        folder = json.dumps(source)
        code = f"from transformers import AutoTokenizer as T; T.from_pretrained({folder}).save_pretrained({folder})"
        message = (
            f"model: the vocabulary of {source} is {present[0]}, a sentencepiece model; install what converts it (pip "
            f"install {' '.join(missing)}), or run once where it is installed: python -c {shlex.quote(code)}"
        )
        raise ConfigError(message, code="tokenizer.unsupported", key="model", source=source, value=present[0])


def _check_files(source: str, tokenizer: Any) -> None:
    """Raise a ConfigError for a class of another kind, and for a vocabulary without words or without unknown words.

    And for a tokenizer that also gives its model something else than tokens, such as the shapes and sounds of RoCBert:
    a run would train without it, and transformers would predict with it.
    """
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        problem = (
            f"its tokenizer_class is {type(tokenizer).__name__}, which is no tokenizer of one text; correct it in its "
            "tokenizer_config.json"
        )
        raise _unusable(source, problem, code="model.cannot_load")
    made = tokenizer.model_input_names if tokenizer.is_fast else tokenizer("a")
    if more := sorted({*made} - _INPUTS):
        problem = f"its model also reads {', '.join(more)}, which paratune does not make; use another model"
        raise _unusable(source, problem, code="tokenizer.more_inputs", value=more)
    folder, names = Path(source), dict(getattr(tokenizer, "vocab_files_names", None) or {})
    whole = names.pop("tokenizer_file", "tokenizer.json")
    has_parts = any((folder / name).is_file() for name in names.values())
    if folder.is_dir() and names and not has_parts and not (folder / whole).is_file():
        # transformers creates a tokenizer without words.
        problem = (
            f"it has neither {whole} nor {' and '.join(names.values())}, the vocabulary files of "
            f"{type(tokenizer).__name__}; it has {file_names(folder)}; copy them there"
        )
        raise _unusable(source, problem, code="model.files_missing")
    try:
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.encode(_RARE_LETTERS)
    except Exception as error:  # a plain exception at the first letter that it does not know
        problem = (
            f"its vocabulary lacks its unknown token ({error}), so a text with any other letter cannot be tokenized; "
            "correct unk_token in its tokenizer.json and tokenizer_config.json, or add the token to the vocabulary"
        )
        raise _unusable(source, problem, code="tokenizer.token_missing") from error


def _check_limit(source: str, tokenizer: Any) -> None:
    """Raise a ConfigError for a limit of the tokenizer, `model_max_length`, that leaves no room for text."""
    limit, least = tokenizer.model_max_length, tokenizer.num_special_tokens_to_add(pair=False) + 1
    if not isinstance(limit, int | float) or not limit >= least:
        problem = (
            f"{Path(source) / 'tokenizer_config.json'} has model_max_length: {limit!r}, the most tokens of a text; "
            f"it is a number from {least} on: correct it, or remove it"
        )
        raise _unusable(source, problem, code="data.max_length_unfit", value=limit)


def _unusable(source: str, problem: str, *, code: str, **values: Any) -> ConfigError:
    text = f"model: the tokenizer of {source} cannot be used: {problem}, or set model.tokenizer to another tokenizer"
    return ConfigError(text, code=code, key="model", source=source, **values)

"""`paratune tokenizer train` and `compare`."""

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from paratune.api.threads import respect_quota
from paratune.base.text import plain
from paratune.base.units import format_number, format_share
from paratune.commands.options import Json, require_some
from paratune.console import outlive_readers, print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError, DataError, os_error_as, require_at_least
from paratune.tokenizer.train import RECORD_FILE, TokenizerRecipe, save_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from paratune.tokenizer.compare import TokenizerFigures


tokenizer_app = App(name="tokenizer")


@tokenizer_app.command(name="train")
def tokenizer_train(
    *texts: str,
    output: Annotated[Path, Parameter(alias="-o")],
    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece",
    vocab_size: int = 20000,
    column: str = "text",
    lowercase: bool = False,
    strip_accents: bool = False,
    min_frequency: int = 2,
    limit_alphabet: int = 1000,
    max_length: int = 512,
    overwrite: bool = False,
    json: Json = False,
) -> int:
    """Train a tokenizer on the files TEXTS, and write it as a plain Hugging Face folder.

    Args:
        output: folder for the tokenizer
        kind: kind of tokenizer: wordpiece as for BERT, bpe as for RoBERTa, or unigram as for XLM-R
        vocab_size: number of entries, with special tokens
        column: column of the texts
        lowercase: ignore upper case
        strip_accents: ignore accents
        min_frequency: smallest count of a pair of pieces that is merged; not for unigram
        limit_alphabet: maximum number of different characters; for wordpiece
        max_length: maximum number of tokens of a text, for models with this tokenizer
        overwrite: replace an existing tokenizer
    """
    require_some(texts, "texts")
    recipe = TokenizerRecipe(
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        strip_accents=strip_accents,
        min_frequency=min_frequency,
        limit_alphabet=limit_alphabet,
        max_length=max_length,
    )
    recipe.check()
    _check_output(output, overwrite)
    outlive_readers()
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        from paratune.data.texts import iterate_texts

        tokenizer, counted = train_tokenizer(
            lambda: iterate_texts(texts, column), recipe, shows_progress=sys.stderr.isatty() and not json
        )
        record = {
            "files": list(texts),
            "column": column,
            "num_texts": counted.num_texts,
            "num_characters": counted.num_characters,
            "vocab_size": tokenizer.get_vocab_size(),
        }
        save_tokenizer(tokenizer, recipe, output, record, overwrite=overwrite)
    if json:
        print_json({"folder": str(output), **record})
        return EXIT_OK
    size = record["vocab_size"]
    less = "" if size == recipe.vocab_size else f" of the {recipe.vocab_size} requested: the texts do not yield more"
    print_result(
        f"{output}: {recipe.kind}, {size} entries{less}; "
        f"of {counted.num_texts} texts, {counted.num_characters} characters"
    )
    return EXIT_OK


@tokenizer_app.command(name="compare")
def tokenizer_compare(
    *tokenizers: str, texts: Sequence[str], column: str = "text", limit: int = 10000, json: Json = False
) -> int:
    """Compare TOKENIZERS - folders, hub names or vocab.txt files - on the same texts.

    Tokens per word (fertility), words that are split, unknown tokens, known characters, bytes per token.

    Args:
        texts: file of texts; may be repeated
        column: column of the texts
        limit: number of texts to read
    """
    require_some(tokenizers, "tokenizers")
    if len(set(tokenizers)) < len(tokenizers):
        raise ConfigError("a tokenizer is named twice; name each once", code="cli.named_twice")
    require_at_least("--limit", limit)
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        from paratune.data.texts import iterate_texts
        from paratune.tokenizer.compare import compare

        loaded = [(name, _load(name)) for name in tokenizers]
        sample = list(islice(iterate_texts(texts, column), limit))
        if not sample:
            raise DataError(
                f"{', '.join(texts)}: column {column} has no text", code="data.empty", sources=texts, column=column
            )
        figures = compare(loaded, sample)
    if json:
        print_json({"files": list(texts), "column": column, "tokenizers": [row.as_dict() for row in figures]})
    else:
        print_result(_table(figures))
    return EXIT_OK


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists() and not output.is_symlink():
        failure, facts = f"--output {output} cannot be created", {"option": "--output", "value": output}
        with os_error_as(ConfigError, failure, "name another", code="output.not_writable", **facts):
            output.parent.mkdir(parents=True, exist_ok=True)
        return
    if not overwrite:
        raise ConfigError(
            f"{output} exists; choose another --output, or use --overwrite", code="output.exists", path=output
        )
    if not (output / RECORD_FILE).is_file():
        message = f"{output} is not a tokenizer that paratune wrote (no {RECORD_FILE}); choose another --output"
        raise ConfigError(message, code="output.foreign", path=output)


def _load(name: str) -> Any:
    if name.endswith(".txt"):
        from paratune.tokenizer.compare import load_vocabulary

        return load_vocabulary(Path(name))
    from paratune.config.sections import ModelOptions
    from paratune.models.load import load_tokenizer

    tokenizer = load_tokenizer(ModelOptions(name=name))
    if not tokenizer.is_fast:
        message = (
            f"{name}: {type(tokenizer).__name__} does not return the positions of its tokens in a text; a fast "
            "tokenizer (with a tokenizer.json) is needed"
        )
        raise ConfigError(message, code="tokenizer.slow", name=name)
    return tokenizer


def _table(figures: Sequence["TokenizerFigures"]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None,
        pad_edge=False,
        caption=f"{figures[0].num_texts} texts, {figures[0].num_words} words",
        caption_justify="left",
    )
    table.add_column("tokenizer", overflow="fold", min_width=20)
    for head in ("entries", "tokens a word", "words cut", "unknown tokens", "characters known", "bytes a token"):
        table.add_column(head, justify="right")
    for row in figures:
        table.add_row(
            Text(plain(_short(row.name))),
            str(row.vocab_size),
            format_number(row.fertility),
            format_share(row.continued_share),
            format_share(row.unknown_share),
            format_share(row.coverage),
            format_number(row.bytes_per_token),
        )
    return table


def _short(name: str) -> str:
    """Return the last part of a path."""
    return Path(name).name if Path(name).exists() else name

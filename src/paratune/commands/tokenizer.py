"""`paratune tokenizer train` and `compare`."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.base.units import format_number, format_share
from paratune.commands.threads import respect_quota
from paratune.console import outlive_readers, print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError, DataError, option_error, os_error_as
from paratune.tokenizer.compare import TokenizerFigures, compare, load_vocabulary
from paratune.tokenizer.train import RECORD_FILE, TokenizerRecipe, save_tokenizer, train_tokenizer


def train_command(
    sources: Sequence[str], output: Path, recipe: TokenizerRecipe, *, column: str, overwrite: bool, as_json: bool
) -> int:
    """Train a tokenizer on files and write its folder; return the exit code."""
    recipe.check()
    _check_output(output, overwrite)
    outlive_readers()
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        import sys

        from paratune.data.texts import iterate_texts

        tokenizer, counted = train_tokenizer(
            lambda: iterate_texts(sources, column), recipe, shows_progress=sys.stderr.isatty() and not as_json
        )
        record = {
            "files": list(sources),
            "column": column,
            "num_texts": counted.num_texts,
            "num_characters": counted.num_characters,
            "vocab_size": tokenizer.get_vocab_size(),
        }
        save_tokenizer(tokenizer, recipe, output, record, overwrite=overwrite)
    if as_json:
        print_json({"folder": str(output), **record})
        return EXIT_OK
    size = record["vocab_size"]
    less = "" if size == recipe.vocab_size else f" of the {recipe.vocab_size} requested: the texts do not yield more"
    print_result(
        f"{output}: {recipe.kind}, {size} entries{less}; "
        f"of {counted.num_texts} texts, {counted.num_characters} characters"
    )
    return EXIT_OK


def compare_command(names: Sequence[str], sources: Sequence[str], *, column: str, limit: int, as_json: bool) -> int:
    """Show what tokenizers make of the same texts; return the exit code."""
    if len(set(names)) < len(names):
        raise ConfigError("a tokenizer is named twice; name each once", code="cli.named_twice")
    if limit < 1:
        raise option_error("--limit", limit, "at least 1", code="cli.out_of_range")
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        from paratune.data.texts import iterate_texts

        tokenizers = [(name, _load(name)) for name in names]
        texts = list(islice(iterate_texts(sources, column), limit))
        if not texts:
            raise DataError(
                f"{', '.join(sources)}: column {column} has no text", code="data.empty", sources=sources, column=column
            )
        found = compare(tokenizers, texts)
    if as_json:
        print_json({"files": list(sources), "column": column, "tokenizers": [each.as_dict() for each in found]})
    else:
        print_result(_table(found))
    return EXIT_OK


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists() and not output.is_symlink():
        with os_error_as(
            ConfigError,
            f"--output {output} cannot be made",
            "name another",
            code="output.not_writable",
            option="--output",
            value=output,
        ):
            output.parent.mkdir(parents=True, exist_ok=True)
        return
    if not overwrite:
        raise ConfigError(
            f"{output} exists; choose another --output, or use --overwrite", code="output.exists", path=output
        )
    if not (output / RECORD_FILE).is_file():
        raise ConfigError(
            f"{output} is not a tokenizer that paratune wrote (no {RECORD_FILE}); choose another --output",
            code="output.foreign",
            path=output,
        )


def _load(name: str) -> Any:
    if name.endswith(".txt"):
        return load_vocabulary(Path(name))
    from paratune.config.sections import ModelOptions
    from paratune.models.load import load_tokenizer

    tokenizer = load_tokenizer(ModelOptions(name=name))
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{name}: {type(tokenizer).__name__} does not return the positions of its tokens in a text; a fast "
            "tokenizer (with a tokenizer.json) is needed",
            code="tokenizer.slow",
            name=name,
        )
    return tokenizer


def _table(found: Sequence[TokenizerFigures]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, caption=_caption(found[0]), caption_justify="left")
    table.add_column("tokenizer", overflow="fold", min_width=20)
    for head in ("entries", "tokens a word", "words cut", "unknown tokens", "characters known", "bytes a token"):
        table.add_column(head, justify="right")
    for each in found:
        table.add_row(
            Text(plain(_short(each.name))),
            str(each.vocab_size),
            format_number(each.fertility),
            format_share(each.continued_share),
            format_share(each.unknown_share),
            format_share(each.coverage),
            format_number(each.bytes_per_token),
        )
    return table


def _caption(figures: TokenizerFigures) -> str:
    return f"{figures.num_texts} texts, {figures.num_words} words"


def _short(name: str) -> str:
    """Return the last part of a path."""
    return Path(name).name if Path(name).exists() else name

"""`paratune tokenizer train`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from paratune.api.process import set_up_process
from paratune.commands.options import Json, require_some
from paratune.console import outlive_readers, print_json, print_result, stdout_for_results
from paratune.corpus.tokenizer import RECORD_FILE, TokenizerRecipe, save_tokenizer, train_tokenizer
from paratune.errors import ConfigError, os_error_as

tokenizer_app = App(name="tokenizer")


@tokenizer_app.command(name="train")
def tokenizer_train(
    *texts: str,
    out: Annotated[Path, Parameter(alias="-o")],
    kind: Literal["wordpiece", "bpe"] = "wordpiece",
    vocab_size: int = 20000,
    column: str = "text",
    lowercase: bool = False,
    max_length: int = 512,
    overwrite: bool = False,
    json: Json = False,
) -> None:
    """Train a tokenizer on the files TEXTS, and write it as a plain Hugging Face folder.

    Args:
        out: folder for the tokenizer
        kind: kind of tokenizer: wordpiece as for BERT, or bpe as for RoBERTa
        vocab_size: number of entries, with special tokens
        column: column of the texts
        lowercase: ignore upper case
        max_length: maximum number of tokens of a text, for models with this tokenizer
        overwrite: replace an existing tokenizer
    """
    require_some(texts, "texts")
    recipe = TokenizerRecipe(kind, vocab_size, lowercase, max_length)
    recipe.check()
    if not out.exists() and not out.is_symlink():
        failure, facts = f"--out {out} cannot be created", {"option": "--out", "value": out}
        with os_error_as(ConfigError, failure, "name another", code="output.not_writable", **facts):
            out.parent.mkdir(parents=True, exist_ok=True)
    elif not overwrite:
        message = f"{out} exists; choose another --out, or use --overwrite"
        raise ConfigError(message, code="output.exists", path=out)
    elif not (out / RECORD_FILE).is_file():
        message = f"{out} is not a tokenizer that paratune wrote (no {RECORD_FILE}); choose another --out"
        raise ConfigError(message, code="output.foreign", path=out)
    outlive_readers()
    set_up_process()
    with stdout_for_results():
        from paratune.data.read import iterate_texts

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
        save_tokenizer(tokenizer, recipe, out, record, overwrite=overwrite)
    if json:
        print_json({"folder": str(out), **record})
        return
    size = record["vocab_size"]
    less = "" if size == recipe.vocab_size else f" of the {recipe.vocab_size} requested: the texts do not yield more"
    read = f"of {counted.num_texts} texts, {counted.num_characters} characters"
    print_result(f"{out}: {recipe.kind}, {size} entries{less}; {read}")

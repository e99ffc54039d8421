"""`paratune tokenizer`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from paratune.cli.options import Json, some_of

tokenizer_app = App(name="tokenizer", help="Train a tokenizer on texts, or compare tokenizers on them.")


@tokenizer_app.command(name="train")
def tokenizer_train(
    *texts: str,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="folder for the tokenizer")],
    kind: Annotated[
        Literal["wordpiece", "bpe", "unigram"], Parameter(help="as BERT's, RoBERTa's or XLM-R's")
    ] = "wordpiece",
    vocab_size: Annotated[int, Parameter(help="entries, special tokens included")] = 20_000,
    column: Annotated[str, Parameter(help="of the texts")] = "text",
    lowercase: Annotated[bool, Parameter(negative=(), help="take no notice of upper case")] = False,
    strip_accents: Annotated[bool, Parameter(negative=(), help="take no notice of accents")] = False,
    min_frequency: Annotated[int, Parameter(help="how often two pieces meet to be joined; not for unigram")] = 2,
    limit_alphabet: Annotated[int, Parameter(help="most different characters; for wordpiece")] = 1000,
    max_length: Annotated[int, Parameter(help="tokens that models with it take at most")] = 512,
    overwrite: Annotated[bool, Parameter(negative=(), help="replace a tokenizer that stands there")] = False,
    json: Json = False,
) -> int:
    """Train a tokenizer on the files TEXTS, and write it as a plain Hugging Face folder."""
    from paratune.commands.tokenizer import train_command
    from paratune.tokenizer.train import TokenizerRecipe

    recipe = TokenizerRecipe(
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        strip_accents=strip_accents,
        min_frequency=min_frequency,
        limit_alphabet=limit_alphabet,
        max_length=max_length,
    )
    return train_command(some_of(texts, "texts"), output, recipe, column=column, overwrite=overwrite, as_json=json)


@tokenizer_app.command(name="compare")
def tokenizer_compare(
    *tokenizers: str,
    texts: Annotated[list[str], Parameter(help="file of texts; may be repeated")],
    column: Annotated[str, Parameter(help="of the texts")] = "text",
    limit: Annotated[int, Parameter(help="read the first so many texts")] = 10_000,
    json: Json = False,
) -> int:
    """Compare TOKENIZERS - folders, hub names or vocab.txt files - on the same texts.

    Tokens a word (fertility), words that are cut, unknown tokens, characters that are known, bytes a token.
    """
    from paratune.commands.tokenizer import compare_command

    return compare_command(some_of(tokenizers, "tokenizers"), texts, column=column, limit=limit, as_json=json)

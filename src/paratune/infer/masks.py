"""Texts with masks, and the words that a masked language model would put there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from paratune.base.scratch import scratch_folder
from paratune.config.sections import Columns
from paratune.data.documents import check_tokenizer
from paratune.errors import ConfigError, DataError, option_error
from paratune.infer.trained import TrainedModel
from paratune.models.objectives import masked_lm

_BATCH_SIZE = 8


@dataclass(frozen=True)
class Guess:
    """A word for a mask."""

    token: str
    """As the tokenizer writes it: a piece that goes on with the word before may begin with ##."""
    probability: float
    """Of all of the model's vocabulary, 0 to 1."""


def fill_masks(trained: TrainedModel, texts: Sequence[str], top_k: int) -> list[list[list[Guess]]]:
    """Return of each text, of each of its masks, the most probable words, best first.

    Masks of one text are filled in each by itself, while the others stay masked.

    Args:
        trained: A masked language model; what it keeps of its outputs is changed.
        texts: At least one, each with one mask or more.
        top_k: Words of each mask, at least 1.

    Raises:
        ConfigError: The model is another one, or has fewer words than `top_k`.
        DataError: A text has no mask, or has one beyond the model's most tokens.
    """
    check_masked_lm(trained)
    num_words = int(trained.model.hf.config.get_text_config().vocab_size)
    if not 1 <= top_k <= num_words:
        raise option_error(
            "--top-k",
            top_k,
            f"from 1 to {num_words}, the words in the vocabulary of the model",
            code="cli.out_of_range",
            num_words=num_words,
        )
    mask = trained.tokenizer.mask_token
    for number, text in enumerate(texts, start=1):
        if mask not in text:
            raise DataError(
                f"text {number}, {text!r}, has no {mask}: write it where a word is to be filled in",
                code="data.no_mask",
                number=number,
                mask=mask,
            )
    trained.model.objective = masked_lm(num_guesses=top_k)
    # Tokens of what is typed for a look are not for the cache.
    with scratch_folder() as folder:
        reader = replace(trained, columns=Columns(text="text"))
        split = reader.read("texts", pa.table({"text": list(texts)}), require_labels=False, cache_dir=folder)
        if split.num_rows < len(texts):
            number = min(set(range(len(texts))) - set(split.samples.rows.tolist()))
            raise DataError(
                f"text {number + 1}: not all of its masks are within the {trained.max_length} tokens that this model "
                "takes; shorten it",
                code="data.no_mask",
                max_length=trained.max_length,
            )
        outputs = trained.apply(split, _BATCH_SIZE, lambda done, total: None).outputs
        columns = trained.recipe.prediction_columns(split, outputs, trained.tokenizer)
    return [
        [[Guess(*guess) for guess in zip(*mask, strict=True)] for mask in zip(words, shares, strict=True)]
        for words, shares in zip(columns["tokens"], columns["scores"], strict=True)
    ]


def check_masked_lm(trained: TrainedModel) -> None:
    """Raise ConfigError where a model fills in no masks, or its tokenizer has none."""
    if trained.task.kind != "mlm":
        raise ConfigError(
            f"{trained.model.hf.config.name_or_path or 'the model'} is a model for {trained.task.kind} and fills in no "
            "masks; take a masked language model (task.kind: mlm)",
            code="task.unsupported",
            kind=trained.task.kind,
        )
    check_tokenizer(trained.tokenizer)

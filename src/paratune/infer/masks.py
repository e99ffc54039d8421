"""Fills in masks: the most probable words of a masked language model for each mask in a text."""

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
    """The word in the tokenizer's form: a piece that continues a word may begin with ##."""
    probability: float
    """Probability in the model's whole vocabulary, 0 to 1."""


def fill_masks(trained: TrainedModel, texts: Sequence[str], top_k: int) -> list[list[list[Guess]]]:
    """Return for each text and each of its masks the `top_k` most probable words, best first.

    Each mask of a text is filled in while the other masks stay masked. The `objective` of the model is changed.
    Each text has at least one mask, and `top_k` is at least 1.

    Raises:
        ConfigError: The model is not a masked language model, or has fewer words than `top_k`.
        DataError: A text has no mask, or a mask is beyond the model's maximum length.
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
                f"text {number}, {text!r}, has no {mask}: write it in place of the missing word",
                code="data.no_mask",
                number=number,
                mask=mask,
            )
    trained.model.objective = masked_lm(num_guesses=top_k)
    # A temporary folder, because tokens of typed texts are not worth caching.
    with scratch_folder() as folder:
        reader = replace(trained, columns=Columns(text="text"))
        split = reader.read("texts", pa.table({"text": list(texts)}), require_labels=False, cache_dir=folder)
        if split.num_rows < len(texts):
            number = min(set(range(len(texts))) - set(split.samples.rows.tolist()))
            raise DataError(
                f"text {number + 1}: a mask is after the first {trained.max_length} tokens, the maximum of this model; "
                "shorten the text",
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
    """Raise a ConfigError where a model is not a masked language model, or its tokenizer has no mask."""
    if trained.task.kind != "mlm":
        raise ConfigError(
            f"{trained.model.hf.config.name_or_path or 'the model'} is a model for {trained.task.kind}, which cannot "
            "fill in masks; use a masked language model (task.kind: mlm)",
            code="task.unsupported",
            kind=trained.task.kind,
        )
    check_tokenizer(trained.tokenizer)

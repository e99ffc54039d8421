"""`paratune fill-mask`: shows the predictions of a masked language model for masks in texts."""

from collections.abc import Sequence
from typing import Any

from paratune.api.apply import load_model
from paratune.api.process import set_up_process
from paratune.base.text import plain
from paratune.commands.options import Device, Json, RunCode, require_some
from paratune.console import print_json, print_table, stdout_for_results
from paratune.errors import ConfigError, DataError, option_error

_BATCH_SIZE = 8


def fill_mask(
    model: str, /, *texts: str, top_k: int = 5, device: Device = "auto", run_code: RunCode = False, json: Json = False
) -> None:
    """Show the words that MODEL, a masked language model, predicts for the masks in TEXTS.

    MODEL is a run, a model folder or a hub name. Write the mask as the model does: [MASK] or <mask>.

    Args:
        top_k: number of words to show for each mask, most probable first
    """
    require_some(texts, "texts")
    set_up_process()
    with stdout_for_results():
        trained = load_model(model, device, run_code=run_code, text="text")
        guesses = fill_masks(trained, texts, top_k)
    filled = list(zip(texts, guesses, strict=True))
    if json:
        print_json({"model": model, "texts": [{"text": text, "masks": masks} for text, masks in filled]})
        return
    for text, masks in filled:
        print(plain(text))  # noqa: T201
        # A row for each rank, and a word and its probability for each mask.
        words = ["word"] if len(masks) == 1 else [f"mask {number}" for number in range(1, len(masks) + 1)]
        headings = [heading for word in words for heading in (word, "probability")]
        ranks = zip(*masks, strict=True)
        rows = ([cell for guess in rank for cell in (guess["token"], f"{guess['probability']:.4f}")] for rank in ranks)
        print_table(headings, rows, right=("probability",))


def fill_masks(trained: Any, texts: Sequence[str], top_k: int) -> list[list[list[dict[str, Any]]]]:
    """Return for each text and each of its masks the `top_k` most probable words, best first.

    Each mask of a text is filled in while its other masks stay. A word has a `token`, in the form of the tokenizer (a
    piece that continues a word may begin with ##), and its `probability` in the whole vocabulary. The `objective` of
    the model is changed.
    """
    import pyarrow as pa

    from paratune.models.objectives import masked_lm

    config, kind = trained.model.hf.config, trained.task.kind
    if kind != "mlm":
        name = config.name_or_path or "the model"
        message = f"{name} is a model for {kind}, which cannot fill in masks; use a masked language model (mlm)"
        raise ConfigError(message, code="task.unsupported", kind=kind)
    num_words = int(config.get_text_config().vocab_size)
    if not 1 <= top_k <= num_words:
        reason = f"from 1 to {num_words}, the words in the vocabulary of the model"
        raise option_error("--top-k", top_k, reason, code="cli.invalid_value", num_words=num_words)
    trained.model.objective = masked_lm(num_guesses=top_k)
    # Tokens of typed texts are not worth caching.
    split = trained.read("texts", pa.table({"text": list(texts)}), require_labels=False, is_cached=False)
    if split.num_rows < len(texts):
        row = min(set(range(len(texts))) - set(split.samples.rows.tolist()))
        message = f"text {row + 1}, {texts[row]!r}, needs {trained.tokenizer.mask_token} in place of each missing "
        message += f"word, within the first {trained.max_length} tokens, the maximum of this model"
        raise DataError(message, code="tokenizer.token_missing", number=row + 1)
    outputs = trained.apply(split, _BATCH_SIZE, lambda done, total: None).outputs
    columns = trained.recipe.prediction_columns(split, outputs, trained.tokenizer)
    return [
        [
            [{"token": token, "probability": share} for token, share in zip(*mask, strict=True)]
            for mask in zip(words, shares, strict=True)
        ]
        for words, shares in zip(columns["tokens"], columns["scores"], strict=True)
    ]

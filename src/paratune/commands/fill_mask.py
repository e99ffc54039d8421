"""`paratune fill-mask`: shows the predictions of a masked language model for masks in texts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paratune.api.apply import load_model
from paratune.api.threads import respect_quota
from paratune.base.text import plain
from paratune.commands.options import Device, Json, require_some
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK


def fill_mask(model: str, *texts: str, top_k: int = 5, device: Device = "auto", json: Json = False) -> int:
    """Show the words that MODEL, a masked language model, predicts for the masks in TEXTS.

    MODEL is a run, a model folder or a hub name. Write the mask as the model does: [MASK] or <mask>.

    Args:
        top_k: number of words to show for each mask, most probable first
    """
    require_some(texts, "texts")
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        trained = load_model(model, device, text="text")
        from paratune.infer.masks import fill_masks

        guesses = fill_masks(trained, texts, top_k)
    filled = list(zip(texts, guesses, strict=True))
    if json:
        described = [
            {"text": text, "masks": [[asdict(guess) for guess in mask] for mask in masks]} for text, masks in filled
        ]
        print_json({"model": model, "texts": described})
        return EXIT_OK
    for text, masks in filled:
        print(plain(text))  # noqa: T201
        print_result(_table(masks))
    return EXIT_OK


def _table(masks: Sequence[Sequence[Any]]) -> Any:
    """Return a table with a row for each rank, and a word and its probability for each mask."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for number in range(1, len(masks) + 1):
        table.add_column("word" if len(masks) == 1 else f"mask {number}", overflow="fold")
        table.add_column("probability", justify="right")
    for row in zip(*masks, strict=True):
        table.add_row(*(cell for guess in row for cell in (Text(plain(guess.token)), f"{guess.probability:.4f}")))
    return table

"""`paratune fill-mask`: the words that a masked language model would put into a text."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paratune.base.imports import without_collections
from paratune.base.text import plain
from paratune.commands.threads import respect_quota
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK


def fill_mask_command(target: str, texts: Sequence[str], *, top_k: int, device: str, as_json: bool) -> int:
    """Show the most probable words of each mask; return the exit code."""
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        with without_collections():
            from paratune.infer.masks import fill_masks
            from paratune.infer.trained import Named, load_trained

        trained = load_trained(target, Named(text="text"), device)
        found = fill_masks(trained, texts, top_k)
    filled = list(zip(texts, found, strict=True))
    if as_json:
        described = [
            {"text": text, "masks": [[asdict(guess) for guess in mask] for mask in masks]} for text, masks in filled
        ]
        print_json({"model": target, "texts": described})
        return EXIT_OK
    for text, masks in filled:
        print(plain(text))  # noqa: T201
        print_result(_table(masks))
    return EXIT_OK


def _table(masks: Sequence[Sequence[Any]]) -> Any:
    """Return a row for each rank, and of each mask its word and how probable it is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for number in range(1, len(masks) + 1):
        table.add_column("word" if len(masks) == 1 else f"mask {number}", overflow="fold")
        table.add_column("probability", justify="right")
    for guesses in zip(*masks, strict=True):
        table.add_row(*(cell for each in guesses for cell in (Text(plain(each.token)), f"{each.probability:.4f}")))
    return table

"""`paratune fill-mask`: shows the predictions of a masked language model for masks in texts."""

from dataclasses import asdict

from paratune.api.apply import load_model
from paratune.api.process import respect_quota
from paratune.base.text import plain
from paratune.commands.options import Device, Json, RunCode, require_some
from paratune.console import print_json, print_table, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK


def fill_mask(
    model: str,
    *texts: str,
    top_k: int = 5,
    device: Device = "auto",
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Show the words that MODEL, a masked language model, predicts for the masks in TEXTS.

    MODEL is a run, a model folder or a hub name. Write the mask as the model does: [MASK] or <mask>.

    Args:
        top_k: number of words to show for each mask, most probable first
    """
    require_some(texts, "texts")
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        trained = load_model(model, device, run_code=run_code, text="text")
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
        # A row for each rank, and a word and its probability for each mask.
        words = ["word"] if len(masks) == 1 else [f"mask {number}" for number in range(1, len(masks) + 1)]
        headings = [heading for word in words for heading in (word, "probability")]
        ranks = zip(*masks, strict=True)
        rows = ([cell for guess in rank for cell in (guess.token, f"{guess.probability:.4f}")] for rank in ranks)
        print_table(headings, rows, right=("probability",))
    return EXIT_OK

"""The stage `sentences` of `paratune corpus`, with what its room may not import: torch, and the pages of reports."""

from collections.abc import Sequence
from typing import Any

from paratune.base.imports import without_collections
from paratune.console import Display
from paratune.corpus.sentences.run import Brought, run_sentences
from paratune.corpus.sentences.score import Scorer
from paratune.corpus.settings import Corpus
from paratune.report.perplexity import perplexity_page


def run(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, see `run_sentences`."""
    return run_sentences(corpus, workers, display, Brought(load_masked_lm=load_masked_lm, page=perplexity_page))


def load_masked_lm(name: str, device: str) -> Scorer:
    """Return what gives pseudo-perplexities.

    Args:
        name: A run folder, a model folder or a hub name.
        device: auto, cpu or cuda.

    Raises:
        ParatuneError: There is no such model or device, or it is no masked language model.
    """
    with without_collections():
        import torch

        from paratune.infer.pseudo_perplexity import pseudo_perplexities
        from paratune.infer.trained import Named, load_trained
    # There are several processes if there is more than one core; and sums are in one order with any number of them.
    torch.set_num_threads(1)
    trained = load_trained(name, Named(text="text"), device)

    def score(sentences: Sequence[str]) -> list[float | None]:
        return pseudo_perplexities(trained, sentences)

    return score

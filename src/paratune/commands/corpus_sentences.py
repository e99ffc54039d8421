"""The stage `sentences` of `paratune corpus`, with the model and the report page that `corpus/` may not import."""

from collections.abc import Sequence
from typing import Any

from paratune.base.imports import collector_off_for_imports
from paratune.console import Display
from paratune.corpus.sentences.run import SentenceHooks, run_sentences
from paratune.corpus.sentences.score import Scorer
from paratune.corpus.settings import Corpus
from paratune.errors import ConfigError
from paratune.reports.corpus.perplexity import perplexity_page


def run(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, see `run_sentences`."""
    return run_sentences(corpus, workers, display, SentenceHooks(load_masked_lm=load_masked_lm, page=perplexity_page))


def load_masked_lm(name: str, device: str) -> Scorer:
    """Return a function that computes the pseudo-perplexity of sentences.

    Raises:
        ParatuneError: The model or device does not exist, or the model is not a masked language model.
    """
    with collector_off_for_imports():
        import torch

        from paratune.infer.pseudo_perplexity import pseudo_perplexities
        from paratune.infer.trained import NamedColumns, load_trained
    # Several processes use the cores, and the order of sums must not depend on their number.
    torch.set_num_threads(1)
    try:
        trained = load_trained(name, NamedColumns(text="text"), device)
    except ConfigError as error:
        if not {"code.refused", "code.not_imported", "model.own_class"}.intersection(error.codes):
            raise
        # Their messages name --run-code, which this command does not have: its processes read the web.
        message = f"{name} is a model with Python code, which paratune corpus does not run; name another model"
        raise ConfigError(message, code="code.refused", path=name) from error

    def score(sentences: Sequence[str]) -> list[float | None]:
        return pseudo_perplexities(trained, sentences)

    return score

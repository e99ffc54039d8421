"""Computes the perplexity of sentences with an n-gram model, or with a masked language model that the caller loads.

A masked language model needs torch, which this package does not import.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from paratune.corpus.repeated import repeated_rows
from paratune.corpus.sentences.clean import corpus_half
from paratune.corpus.sentences.rows import read_sentences
from paratune.corpus.sentences.split import ngram_words
from paratune.errors import require

Scorer = Callable[[Sequence[str]], list[float | None]]
"""Returns the perplexities of sentences; None if unknown, such as for a sentence that is too long."""
LoadScorer = Callable[[str, str], Scorer]
"""Takes the name of a model and a device (auto, cpu or cuda), and returns a scorer. Must be picklable."""
BATCH_SIZE = 256


@dataclass(frozen=True)
class ScoringModels:
    """What scores sentences."""

    kind: str
    """ngram, mlm or none."""
    models: tuple[str, ...]
    """ARPA files: one for all sentences, or one trained on each half; or the masked language model."""
    fingerprint: str
    """Fingerprint of the models, for the cache of a process."""
    device: str
    load: LoadScorer | None
    """For mlm."""


def score_shard(models: ScoringModels, repeated_folder: Path, path: Path, number: int) -> Iterator[dict[str, Any]]:
    """Yield row and perplexity of each sentence that repeats no earlier one."""
    repeated = repeated_rows(repeated_folder, number)
    rows = enumerate(read_sentences(path, ["document_id", "text"]))
    firsts = ((row, sentence["document_id"], sentence["text"]) for row, sentence in rows if row not in repeated)
    while batch := list(islice(firsts, BATCH_SIZE)):
        for (row, _, _), perplexity in zip(batch, _perplexities(models, batch), strict=True):
            yield {"row": row, "perplexity": perplexity}


def _perplexities(models: ScoringModels, batch: Sequence[tuple[int, str, str]]) -> list[float | None]:
    if not models.models:
        return [None] * len(batch)
    if models.kind == "mlm":
        assert models.load is not None
        scorer = _scorer(models.load, models.models[0], models.device, models.fingerprint)
        return scorer([text for _, _, text in batch])
    ngrams = [load_ngram(path, models.fingerprint) for path in models.models]
    # The model of half 0 scores half 1, and the other way round.
    return [
        ngram_perplexity(ngrams[corpus_half(document) - 1 if len(ngrams) > 1 else 0], text)
        for _, document, text in batch
    ]


@lru_cache(maxsize=2)
def load_ngram(path: str, fingerprint: str) -> Any:
    """Return a kenlm model; `fingerprint` distinguishes successive files with the same name in the cache."""
    kenlm = require("kenlm", extra="corpus")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm.Model(path, config)


@lru_cache(maxsize=1)
def _scorer(load: LoadScorer, model: str, device: str, fingerprint: str) -> Scorer:
    return load(model, device)


def ngram_perplexity(model: Any, sentence: str) -> float | None:
    """Return 10^(-log10 P / (N + 1)) for N words and the end of the sentence; None without words."""
    words = ngram_words(sentence)
    if not words:
        return None
    return float(10 ** (-model.score(" ".join(words)) / (len(words) + 1)))

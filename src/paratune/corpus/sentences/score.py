"""Computes the perplexity of sentences with an n-gram model."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from paratune.corpus.sentences.clean import corpus_half
from paratune.corpus.sentences.rows import read_sentences, repeated_in
from paratune.corpus.sentences.split import ngram_words
from paratune.errors import require


def score_shard(
    models: Sequence[str], fingerprint: str, folder: Path, path: Path, number: int
) -> Iterator[dict[str, Any]]:
    """Yield row and perplexity of each sentence that repeats no earlier one.

    Args:
        models: ARPA files: one for all sentences, or one trained on each half; without any, perplexities are None.
        fingerprint: Fingerprint of the models.
        folder: Folder of the stage.
        path: Table number `number` of split sentences.
    """
    repeated = repeated_in(folder, number)
    ngrams = [load_ngram(model, fingerprint) for model in models]
    for row, sentence in enumerate(read_sentences(path, ["document_id", "text"])):
        if row not in repeated:
            # The model of half 0 scores half 1, and the other way round.
            other = corpus_half(sentence["document_id"]) - 1 if len(ngrams) > 1 else 0
            yield {"row": row, "perplexity": ngram_perplexity(ngrams[other], sentence["text"]) if ngrams else None}


@lru_cache(maxsize=2)
def load_ngram(path: str, fingerprint: str) -> Any:
    """Return a kenlm model; `fingerprint` distinguishes successive files with the same name in the cache."""
    kenlm = require("kenlm", extra="corpus")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm.Model(path, config)


def ngram_perplexity(model: Any, sentence: str) -> float | None:
    """Return 10^(-log10 P / (N + 1)) for N words and the end of the sentence; None without words."""
    words = ngram_words(sentence)
    if not words:
        return None
    return float(10 ** (-model.score(" ".join(words)) / (len(words) + 1)))

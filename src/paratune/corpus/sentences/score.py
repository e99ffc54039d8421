"""How well sentences read: their perplexity by an n-gram model, or by what the caller brings.

A masked language model needs torch, which this room does without.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from paratune.corpus.once import repeated_rows
from paratune.corpus.sentences.clean import half_of
from paratune.corpus.sentences.rows import read_rows
from paratune.corpus.sentences.words import words_of
from paratune.errors import require

Scorer = Callable[[Sequence[str]], list[float | None]]
"""Gives the perplexities of sentences; None where there is none, as of more words than a model takes."""
LoadScorer = Callable[[str, str], Scorer]
"""Makes a scorer of a model's name and a device: auto, cpu or cuda. A function of a module, for other processes."""
SENTENCES_AT_ONCE = 256


@dataclass(frozen=True)
class Unscored:
    """A shard of sentences, and what scores them."""

    path: Path
    repeated: Path
    """Folder that says which sentences repeat an earlier one: these are left out."""
    number: int
    kind: str
    """ngram, mlm or none."""
    models: tuple[str, ...]
    """ARPA files, one for everything or one for each half's other half; or the masked language model."""
    made_of: str
    """Fingerprint of the models: a process does not keep others."""
    device: str
    load: LoadScorer | None
    """For mlm."""


def score_shard(each: Unscored) -> Iterator[dict[str, Any]]:
    """Yield the row of each sentence that is the first of its kind, and its perplexity."""
    repeated = repeated_rows(each.repeated, each.number)
    rows = enumerate(read_rows(each.path, ["document_id", "text"]))
    firsts = ((row, found["document_id"], found["text"]) for row, found in rows if row not in repeated)
    while some := list(islice(firsts, SENTENCES_AT_ONCE)):
        for (row, _, _), perplexity in zip(some, _perplexities(each, some), strict=True):
            yield {"row": row, "perplexity": perplexity}


def _perplexities(each: Unscored, some: Sequence[tuple[int, str, str]]) -> list[float | None]:
    if not each.models:
        return [None] * len(some)
    if each.kind == "mlm":
        assert each.load is not None
        return _scorer(each.load, each.models[0], each.device, each.made_of)([text for _, _, text in some])
    models = [load_ngram(path, each.made_of) for path in each.models]
    # What half 0 has taught scores half 1, and the other way round.
    return [
        ngram_perplexity(models[half_of(document) - 1 if len(models) > 1 else 0], text) for _, document, text in some
    ]


@lru_cache(maxsize=2)
def load_ngram(path: str, made_of: str) -> Any:
    """Return a model of kenlm; `made_of` tells files apart that had the same name one after the other."""
    kenlm = require("kenlm", extra="corpus")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm.Model(path, config)


@lru_cache(maxsize=1)
def _scorer(load: LoadScorer, model: str, device: str, made_of: str) -> Scorer:
    return load(model, device)


def ngram_perplexity(model: Any, sentence: str) -> float | None:
    """Return 10^(-log10 P / (N + 1)) of N words and the end of the sentence; None without a word."""
    words = words_of(sentence)
    if not words:
        return None
    return float(10 ** (-model.score(" ".join(words)) / (len(words) + 1)))

"""How a predicted number changes when a sentence is removed from the text.

Unlike in `explain`, the sentence is deleted and not masked: the model reads a text as a learner could have written it,
and of a text that is too long it then reads more of the end. Dimension: `N` rows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.errors import DataError
from paratune.explain.parts import CharRange, sentences
from paratune.infer.trained import TrainedModel
from paratune.records.predictions import probabilities

Floats = npt.NDArray[np.float64]
MAX_CHARACTERS = 100_000_000
"""Most characters of an essay in all its copies without a sentence: 1,000 sentences of 100 characters reach them."""


def numbers(trained: TrainedModel, outputs: npt.NDArray[Any]) -> Floats:
    """Return the predicted numbers, (N,), from outputs: of ordered classes the expected class, counted from 0."""
    if trained.task.kind == "ordinal":
        above = np.minimum.accumulate(probabilities(outputs.astype(np.float64)), axis=1)
        expected: Floats = above.sum(axis=1)
        return expected
    return outputs[:, 0].astype(np.float64)


@dataclass(frozen=True)
class RemovedPart:
    """A sentence of a text, and what its removal changes."""

    place: CharRange
    text: str
    effect: float
    """Prediction of the whole text minus prediction without the sentence; positive: it raises the prediction."""


def removed_parts(
    trained: TrainedModel,
    columns: Mapping[str, Sequence[str]],
    predicted: Floats,
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> list[list[RemovedPart]]:
    """Return the effect of removing each sentence of each essay; a text with one sentence has no parts.

    Args:
        columns: The text columns of the model, (N,) each; the last one has the essays, whose parts are removed.
        predicted: (N,), predictions of the whole texts, from `numbers`.
        on_batch: Called with the number of batches done, and of all.

    Raises:
        DataError: An essay has so many sentences that its copies without one of them do not fit in memory.
    """
    essay, texts = list(columns.items())[-1]
    split = [sentences(text) for text in texts]
    parts = [(row, place) for row, places in enumerate(split) if len(places) > 1 for place in places]
    found: list[list[RemovedPart]] = [[] for _ in texts]
    if not parts:
        return found
    for row, count in Counter(row for row, _ in parts).items():
        if count * len(texts[row]) > MAX_CHARACTERS:
            raise DataError(
                f"the text that begins {texts[row][:40]!r} has {len(texts[row]):,} characters in {count:,} sentences: "
                "too many to predict it without each of them; shorten the text, or leave it out",
                code="feedback.text_too_long",
                num_parts=count,
                num_characters=len(texts[row]),
            )
    shorter = {name: [values[row] for row, _ in parts] for name, values in columns.items()}
    shorter[essay] = [texts[row][: place.start] + texts[row][place.end :] for row, place in parts]
    values = predict_texts(trained, shorter, batch_size, on_batch)
    for (row, place), value in zip(parts, values.tolist(), strict=True):
        text = texts[row][place.start : place.end]
        found[row].append(RemovedPart(place, text, float(predicted[row]) - value))
    return found


def predict_texts(
    trained: TrainedModel,
    columns: Mapping[str, Sequence[str]],
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> Floats:
    """Return the predicted numbers of texts, (N,), whose tokens are not kept; arguments as in `removed_parts`."""
    # These texts are never read again, and would fill the cache of tokens.
    split = trained.read("parts of the texts", pa.table(dict(columns)), require_labels=False, is_cached=False)
    return numbers(trained, trained.apply(split, batch_size, on_batch).outputs)

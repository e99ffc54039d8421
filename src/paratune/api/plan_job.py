"""The job of a plan: the model's configuration and the lengths of the rows, as training has them."""

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.api.tokenizing import tokenizing_of
from paratune.config.own_code import importable_parts
from paratune.config.permission import is_allowed
from paratune.errors import ConfigError, DataError, coded

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.config.sections import Config
    from paratune.planning.job import PlannedJob
    from paratune.planning.lengths import Lengths

log = logging.getLogger(__name__)
_LONGEST = 512
"""Tokens of a row where neither the configuration, the model nor the data gives a number."""


def make_job(
    loaded: "LoadedConfig",
    *,
    max_length: int | None = None,
    rows: int | None = None,
    tokens_per_sample: float | None = None,
) -> "PlannedJob":
    """Return the job of a configuration.

    Args:
        max_length: Number of tokens of every row, instead of the data.
        rows: With `max_length`: number of rows of the training split; None if unknown.
        tokens_per_sample: Mean computed tokens of a sample as a run had them, instead of the data.

    Raises:
        ParatuneError: The model or the data cannot be read.
    """
    from paratune.models.config import num_positions
    from paratune.planning.job import PlannedJob, find_packing
    from paratune.planning.lengths import assumed_lengths

    config, read = loaded.config, importable_parts(loaded.config)
    hf_config = _model_config(read.model)
    recipe = getattr(config.task, "recipe", None)
    is_read = read.data.train == config.data.train and (recipe is None or is_allowed(recipe))
    if max_length is None and not is_read:  # without its code, every row has the longest possible text
        max_length = config.data.max_length or num_positions(hf_config) or _LONGEST
    num_samples: int | None
    if tokens_per_sample is not None:
        longest, num_samples = num_positions(hf_config) or tokens_per_sample, None
        num_sequences = max(_assumed_sequences(config) or 1, math.ceil(tokens_per_sample / longest))
        lengths = assumed_lengths(max(1, round(tokens_per_sample / num_sequences)))
        sequences = assumed_lengths(num_sequences)
    elif max_length is not None:
        limit = num_positions(hf_config)
        if limit is not None and limit < max_length:
            raise ConfigError(
                f"--max-length {max_length} is more than the positions of {config.model.name}: {limit}",
                code="model.max_length",
                option="--max-length",
                value=max_length,
                name=config.model.name,
                limit=limit,
            )
        lengths, num_samples = assumed_lengths(max_length), rows
        if (assumed := _assumed_sequences(config)) is None:
            message = "--max-length: only the data has the number of windows or choices of each sample; plan with it"
            raise ConfigError(f"{message}, without --max-length", code="plan.sequences_unknown", option="--max-length")
        sequences = assumed_lengths(assumed)
    else:
        lengths, sequences = _read_lengths(read)
        num_samples = sequences.num_rows
    entry, why_padded = find_packing(hf_config, config.task, config.model)
    return PlannedJob(config, hf_config, lengths, num_samples, entry, why_padded, sequences)


def _assumed_sequences(config: "Config") -> int | None:
    """Return the sequences of each sample, where no data is read; None if only the data has this number."""
    from paratune.config.sections import named_columns

    if config.task.kind == "embedding":
        return 1 + sum(column is not None for column in (config.data.columns.text_pair, config.data.columns.negative))
    choices = config.data.columns.choices
    if getattr(config.task, "windows", None) not in (None, "joined", "documents"):
        return None
    if config.task.kind != "multiple_choice":
        return 1
    # One column has lists of choices.
    return None if isinstance(choices, str) else len(named_columns(choices))


def _model_config(model: Any) -> Any:
    """Return the configuration of the model; if it is not available, the known one of a published model."""
    from paratune.models.config import load_config as load_model_config
    from paratune.models.config import override
    from paratune.models.known import known_config

    try:
        return load_model_config(model)
    except ConfigError as error:
        known = None if Path(model.name).exists() else known_config(model.name)
        if known is None:
            raise
        override(known, model)
        log.warning(
            "planned with the published shape of %s: %s",
            model.name,
            error,
            extra=coded("plan.published_shape", name=model.name),
        )
        return known


def _read_lengths(config: "Config") -> tuple["Lengths", "Lengths"]:
    """Return the lengths of the sequences of the training split, and the numbers of sequences of its samples.

    They come from the cache of tokens, or the split is tokenized.

    Raises:
        ParatuneError: The split cannot be read.
    """
    from paratune.planning.lengths import lengths_of_rows
    from paratune.tasks import make_recipe

    try:
        with tokenizing_of(config) as tokenizing:
            data = config.data.model_copy(update={"validation": None, "test": None})
            train = make_recipe(config.task).load_splits(data, tokenizing)["train"]
    except (ConfigError, DataError) as error:
        raise type(error)(f"{error}; or plan without data: --max-length TOKENS", code=error.code) from error
    return lengths_of_rows(train.store.sequence_lengths), lengths_of_rows(train.store.num_sequences)

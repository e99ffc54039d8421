"""The job of a plan: the model's configuration and the lengths of the rows, as training has them."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.api.tokenizing import tokenizing_of
from paratune.errors import ConfigError, DataError, coded

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.planning.job import PlannedJob
    from paratune.planning.lengths import Lengths

log = logging.getLogger(__name__)


def make_job(loaded: "LoadedConfig", *, max_length: int | None = None, rows: int | None = None) -> "PlannedJob":
    """Return the job of a configuration.

    Args:
        loaded: The configuration.
        max_length: Number of tokens of every row, instead of the data.
        rows: With `max_length`: number of rows of the training split; None if unknown.

    Raises:
        ParatuneError: The model or the data cannot be read.
    """
    from paratune.planning.job import PlannedJob, find_packing, sequences_per_sample
    from paratune.planning.lengths import assumed_lengths

    config = loaded.config
    hf_config = _model_config(config.model)
    num_samples: int | None
    if max_length is not None:
        check_positions(config, hf_config, max_length)
        lengths, num_samples = assumed_lengths(max_length * sequences_per_sample(config)), rows
    else:
        lengths = _read_lengths(loaded)
        num_samples = lengths.num_rows
    entry, why_padded = find_packing(hf_config, config.task)
    return PlannedJob(config, hf_config, lengths, num_samples, entry, why_padded)


def _model_config(model: Any) -> Any:
    """Return the configuration of the model; if it is not available, the known one of a published model."""
    from paratune.models.known import known_config
    from paratune.models.load import load_config as load_model_config
    from paratune.models.load import override

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


def check_positions(config: Any, hf_config: Any, max_length: int) -> None:
    from paratune.models.limits import num_positions

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


def _read_lengths(loaded: "LoadedConfig") -> "Lengths":
    """Return the lengths of the training split, from the cache of tokens or after tokenizing.

    Raises:
        ParatuneError: The split cannot be read.
    """
    from paratune.planning.lengths import lengths_of_rows
    from paratune.tasks import make_recipe

    config = loaded.config
    try:
        with tokenizing_of(config) as tokenizing:
            data = config.data.model_copy(update={"validation": None, "test": None})
            train = make_recipe(config.task).load_splits(data, tokenizing)["train"]
    except (ConfigError, DataError) as error:
        raise type(error)(f"{error}; or plan without data: --max-length TOKENS", code=error.code) from error
    return lengths_of_rows(train.store.lengths)

"""All that a run needs to know before its processes meet: device, precision, tokenizer, tokenized data.

What can go wrong with the user's files goes wrong here, before the run folder is made: a mistake leaves nothing behind,
and tokenization, which can take long, happens under no barrier.
"""

import inspect
import logging
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from paratune import hardware
from paratune.config.batch_size import ResolvedBatch, resolve_batch
from paratune.config.feasibility.rules import sample_reasons, stages, why_not
from paratune.config.feasibility.target import Ranks
from paratune.config.feasibility.words import refuse
from paratune.config.load import LoadedConfig
from paratune.config.sections import Config
from paratune.config.strategy_sections import OutsideStrategy, strategy_options
from paratune.config.traits import Traits, traits_of
from paratune.console import Display
from paratune.data.columns import dropped_text
from paratune.data.duplicates import overlap_warnings
from paratune.data.load import Split, unknown_warnings
from paratune.data.loader import Collate, PackedCollator, TrainBatches
from paratune.data.slices import slice_values
from paratune.data.tokens import Tokenizing
from paratune.data.workers import Workers
from paratune.engine.stop import StopRequest
from paratune.errors import ConfigError, LaunchError, ParatuneError, Stopped, coded, is_installed
from paratune.hangs.pulse import working
from paratune.hangs.verdict import READING, WAITING
from paratune.models.activation_checkpointing import checkpoint_blocks
from paratune.models.attention import cuda
from paratune.models.batch_layout import BatchLayout, choose_batch_layout
from paratune.models.compile import compile_blocks
from paratune.models.dropout import use_cheap_dropout
from paratune.models.half_precision import overflow_warning
from paratune.models.limits import token_limit
from paratune.models.linear import use_onednn
from paratune.models.load import load_config, load_tokenizer, require_weights
from paratune.models.packed import find_entry
from paratune.models.residual import fuse_residuals
from paratune.models.task_model import TaskModel, find_blocks, freeze_encoder, takes_token_types
from paratune.precision import Precision, precision_policy, target_of
from paratune.processes.launcher import has_own_gpu, is_srun, tasks_here
from paratune.processes.place import Place, local_world_size
from paratune.strategies import strategy_class
from paratune.strategies.protocol import Layout, Strategy, loss_scale_of
from paratune.tasks import recipe_of
from paratune.tasks.further import load_further
from paratune.tasks.protocol import TaskRecipe

log = logging.getLogger(__name__)
ALWAYS_ALLOWED = 1000
"""Micro-batches of a step that may be empty: they cost seconds, and small data sets are for trying settings."""


@dataclass(frozen=True)
class Prepared:
    """What is known before processes meet."""

    loaded: LoadedConfig
    place: Place
    device: torch.device
    precision: Precision
    strategy_type: Any
    """The class of the strategy."""
    traits: Traits
    """What is true of it under its options."""
    recipe: TaskRecipe
    """What is particular to the kind of task."""
    tokenizer: Any
    max_length: int
    """Tokens per sample, special tokens included."""
    splits: dict[str, Split]
    tokenize_s: float
    """Seconds of reading, cutting and tokenizing the data."""
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By scored split and name of `evaluate.slices` but `label`: the value of each row, (N,)."""

    @property
    def config(self) -> Config:
        return self.loaded.config

    @property
    def labelled(self) -> dict[str, Split]:
        """The splits but those that are only predicted."""
        return {name: split for name, split in self.splits.items() if name not in self.config.data.predict}

    @contextmanager
    def switched(self) -> Iterator[None]:
        """Set PyTorch's switches as the configuration says, for a whole run; put them back at the end."""
        with self.precision.switched(), cuda.switched(deterministic=self.config.train.deterministic):
            yield


def prepare(loaded: LoadedConfig, place: Place, stop: StopRequest, display: Display) -> Prepared:
    """Load and check everything but the weights of the model.

    Raises:
        ConfigError, DataError, LaunchError: Something in the configuration, the files or the machine does not fit.
        Stopped: A signal came, in the only process or while tokenizing.
    """
    config = loaded.config
    if config.data.train is None:
        raise ConfigError(
            f"{loaded.source}: data.train is missing; training needs it",
            code="config.required",
            key="data.train",
            source=loaded.source,
        )
    strategy_type = strategy_class(config.strategy.kind)
    check_options(strategy_type, config)
    traits = traits_of(config.strategy.kind, strategy_options(config.strategy)) or strategy_type.traits
    ranks = Ranks(place.world_size, max(1, place.world_size // local_world_size(place)))
    refuse(why_not(config, traits, None, ranks, is_installed=is_installed), source=loaded.source)
    device = choose_device(config.device, place)
    refuse(why_not(config, traits, target_of(device), ranks), source=loaded.source)
    options = strategy_options(config.strategy)
    precision, warning = precision_policy(config.precision, device, hardware.cpu_flags())
    if traits_of(config.strategy.kind, options):  # options of a class from outside are its own
        precision = precision.with_weights(options.get("param_dtype", "fp32"))
    if warning:
        log.warning("%s", warning, extra=coded("precision.slow"))
    with working(f"load the tokenizer and the configuration of {config.model.name}"):
        tokenizer = load_tokenizer(config.model, config.data.truncation_side)
        require_weights(config.model)
        check_blocks(config, traits)
        max_length = token_limit(config, tokenizer)
    recipe = recipe_of(config.task)
    begin = time.perf_counter()
    try:
        with working(READING):
            splits = _load(config, recipe, tokenizer, max_length, stop, display)
    except Stopped as stopped:
        raise Stopped(
            f"stopped by {stop.said()}: {stopped}; nothing was trained, start it again", code="stopped.signal"
        ) from stopped
    tokenize_s = time.perf_counter() - begin
    if place.rank == 0:
        _say_what_was_read(splits, recipe, unlabelled=config.data.predict)
    slices = _slices(config, splits)
    train = splits["train"]
    num_samples, things = train.num_samples, "rows" if train.num_samples == train.num_rows else "windows"
    refuse(sample_reasons(traits, ranks, num_samples))
    size = config.batch.global_
    if size is not None and size > num_samples:
        log.warning(
            "batch.global is %d, more than the %d %s: each step takes all of them",
            size,
            num_samples,
            things,
            extra=coded("batch.above_rows", key="batch.global", value=size, num_samples=num_samples),
        )
    if place.world_size == 1:  # several processes stop together, once they have met
        stop.raise_if_came("preparing")
    return Prepared(
        loaded,
        place,
        device,
        precision,
        strategy_type,
        traits,
        recipe,
        tokenizer,
        max_length,
        splits,
        tokenize_s,
        slices,
    )


def _slices(config: Config, splits: dict[str, Split]) -> dict[str, dict[str, Any]]:
    """Return the values by which the scored splits are sliced: a column that is absent is found before training."""
    if not config.evaluate.slices or config.measure.probe:
        return {}
    scored = {name: split for name, split in splits.items() if name != "train" and name not in config.data.predict}
    with working(READING):
        return {
            name: slice_values(split, config.evaluate.slices, revision=config.data.hub_revision)
            for name, split in scored.items()
        }


def _load(
    config: Config, recipe: TaskRecipe, tokenizer: Any, max_length: int, stop: StopRequest, display: Display
) -> dict[str, Split]:
    with display.bar("tokenize", 1) as bar:
        how = Tokenizing(
            tokenizer,
            max_length,
            truncation=config.data.truncation,
            need_token_type_ids=takes_token_types(tokenizer),
            cache_dir=config.data.cache_dir,
            progress=lambda done, total: bar.update(done, total=total),
            stop=stop.came,
            waits=lambda: display.hear(WAITING, 0, 1),
        )
        return recipe.load_splits(config.data, how) | load_further(recipe, config.data, how)


def check_options(strategy_type: Any, config: Config) -> None:
    """Look whether a class of the user's own is a strategy, and takes the options that it is given.

    Raises:
        ConfigError: It is not, or does not.
    """
    kind, traits = config.strategy.kind, getattr(strategy_type, "traits", None)
    if not isinstance(strategy_type, type) or not isinstance(traits, Traits):
        raise ConfigError(
            f"strategy.kind: {kind} is not a strategy: it has no `traits` (see docs/explanation/strategies.md)",
            code="strategy.outside",
            key="strategy.kind",
            value=kind,
        )
    own = dict.fromkeys(("device", "precision", "rank", "world_size"))
    try:
        inspect.signature(strategy_type).bind(**{**strategy_options(config.strategy), **own})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"strategy.options of {kind}: {error} (see docs/explanation/strategies.md)",
            code="strategy.outside",
            key="strategy.options",
            kind=kind,
        ) from error


def check_blocks(config: Config, traits: Traits) -> None:
    """Look whether a pipeline has more stages than the model's own configuration names layers, if it says that.

    Raises:
        ConfigError: It has; what can be cut is known when the model is loaded.
    """
    num_layers = getattr(load_config(config.model, None), "num_hidden_layers", None) if traits.cuts_blocks else None
    if isinstance(num_layers, int):
        refuse(stages(config, traits, num_layers))


def make_strategy(prepared: Prepared) -> Strategy:
    """Construct the strategy; the process group must be up.

    Raises:
        ConfigError: A class of the user's own takes offence at one of its options, or does not scale the loss in fp16.
    """
    place, config = prepared.place, prepared.config
    arguments = {
        "device": prepared.device,
        "precision": prepared.precision,
        "rank": place.rank,
        "world_size": place.world_size,
    }
    try:
        strategy: Strategy = prepared.strategy_type(**strategy_options(config.strategy), **arguments)
    except Exception as error:  # whatever the constructor of a user's class raises
        if isinstance(error, ParatuneError) or not isinstance(config.strategy, OutsideStrategy):
            raise
        raise ConfigError(
            f"strategy.kind: {config.strategy.kind} cannot be made: {type(error).__name__}: {error}",
            code="strategy.outside",
            key="strategy.kind",
            value=config.strategy.kind,
        ) from error
    if prepared.precision.scales_loss and loss_scale_of(strategy) is None:
        raise ConfigError(
            f"precision: {prepared.precision.name} needs a loss scale, and strategy.kind: {config.strategy.kind} has "
            "none (see docs/explanation/strategies.md); use precision: bf16 or fp32",
            code="precision.conflict",
            key="precision",
            name=prepared.precision.name,
            kind=config.strategy.kind,
        )
    return strategy


def initial_model(prepared: Prepared) -> TaskModel:
    """Return the model that training begins with, on the CPU: the same on every rank, and each time.

    Raises:
        ConfigError: It cannot be loaded, has no head that fits the task, or no blocks to do with as is asked.
    """
    config = prepared.config
    with working(f"load the model {config.model.name}"):
        model = prepared.recipe.load_model(config.model, prepared.tokenizer, prepared.precision, config.run.seed)
    prepared.recipe.initialise(model, prepared.splits["train"])
    if not config.train.compile:  # inductor fuses PyTorch's own dropout and linear layers
        use_cheap_dropout(model)
    if not prepared.traits.equal_shapes:  # a pipeline counts the operations of PyTorch's own layers
        if prepared.device.type == "cpu" and not config.train.compile:
            use_onednn(model)
        if prepared.device.type == "cuda" and not config.train.compile:
            fuse_residuals(model)
        find_entry(
            model,
            packs=config.batch.layout in ("auto", "packed"),
            device=prepared.device,
            dtype=prepared.precision.compute_dtype,
        )
    if config.train.freeze_encoder:
        freeze_encoder(model)
    if config.train.compile:
        compile_blocks(model)
        if prepared.place.rank == 0 and prepared.device.type == "cpu":
            log.warning(
                "train.compile: on a CPU steps were slower with it than without (docs/explanation/batches.md)",
                extra=coded("model.compile_slow", key="train.compile"),
            )
    if config.train.activation_checkpointing is not None:
        checkpoint_blocks(find_blocks(model), config.train.activation_checkpointing)
    if prepared.place.rank == 0 and config.precision == "fp16" and (warning := overflow_warning(model.hf.config)):
        log.warning("%s", warning, extra=coded("model.warning"))
    return model


def batch_layout_of(prepared: Prepared, model: TaskModel) -> BatchLayout:
    """Return how the run's batches are laid out; `model` is that of `initial_model`.

    Raises:
        ConfigError: As `choose_batch_layout`.
    """
    return choose_batch_layout(
        prepared.config.batch.layout,
        prepared.traits,
        entry=model.entry,
        why_padded=model.why_padded,
        on_cpu=prepared.device.type == "cpu",
        compiles=prepared.config.train.compile,
    )


def batch_sizes(prepared: Prepared, layout: Layout) -> ResolvedBatch:
    """Return what each rank does in one optimizer step.

    Raises:
        ConfigError: As `resolve_batch`; or most micro-batches of each step would be empty.
    """
    sizes = resolve_batch(
        prepared.config.batch,
        data_world_size=layout.data_world_size,
        num_micro_batches=prepared.traits.num_micro_batches,
        micro_batch_multiple=prepared.traits.micro_batch_multiple,
    )
    check_micro_batches(sizes, prepared.splits["train"].num_samples)
    return sizes


def check_micro_batches(sizes: ResolvedBatch, num_samples: int) -> None:
    """Look whether the samples of the training set fill the micro-batches of a step, beyond `ALWAYS_ALLOWED` of them.

    Raises:
        ConfigError: There are more micro-batches than samples.
    """
    if sizes.grad_accum_steps > max(num_samples, ALWAYS_ALLOWED):
        raise ConfigError(
            f"batch: a step has {sizes.grad_accum_steps} micro-batches of {sizes.micro_batch_size}, and data.train has "
            f"{num_samples} samples: most micro-batches would be empty; set a smaller batch.global or "
            "batch.grad_accum_steps",
            code="batch.empty_micro_batches",
            key="batch",
            grad_accum_steps=sizes.grad_accum_steps,
            num_samples=num_samples,
        )


def train_batches(
    prepared: Prepared,
    layout: Layout,
    sizes: ResolvedBatch,
    batch_layout: BatchLayout,
    *,
    compare_every: int | None = None,
) -> TrainBatches:
    """Return the micro-batches of this rank, for any step; `compare_every` as in `TrainBatches`."""
    return TrainBatches(
        collator_of(prepared, "train", batch_layout),
        seed=prepared.config.run.seed,
        global_batch_size=sizes.global_batch_size,
        micro_batch_size=sizes.micro_batch_size,
        num_micro_steps=sizes.grad_accum_steps,
        data_rank=layout.data_rank,
        data_world_size=layout.data_world_size,
        equal_shapes=prepared.traits.equal_shapes,
        num_buckets=batch_layout.num_buckets,
        compare_every=compare_every,
    )


def workers_of(prepared: Prepared) -> Workers:
    """Return who makes the batches of this rank."""
    data = prepared.config.data
    return Workers(data.num_workers, data.prefetch_factor or 2, pins_memory=prepared.device.type == "cuda")


def collator_of(prepared: Prepared, split: str, batch_layout: BatchLayout) -> Collate:
    """Return what makes batches of a split."""
    made = prepared.recipe.collator(prepared.splits[split], prepared.tokenizer, seed=prepared.config.run.seed)
    return PackedCollator(made, rounds=batch_layout.rounds) if batch_layout.kind == "packed" else made


def _say_what_was_read(splits: dict[str, Split], recipe: TaskRecipe, *, unlabelled: Container[str]) -> None:
    for split in splits.values():
        log.info(
            "%s: %d rows%s%s%s, %d tokens, %d truncated",
            split.name,
            split.num_rows,
            f" ({split.num_pseudo} of them pseudo-labelled)" if split.num_pseudo else "",
            f" (left out: {dropped_text(split.num_dropped)})" if split.num_dropped else "",
            f" in {split.num_samples} windows" if split.num_samples != split.num_rows else "",
            split.store.num_tokens,
            split.store.num_truncated,
        )
    warnings = overlap_warnings({name: split.samples for name, split in splits.items()})
    labelled = {name: split for name, split in splits.items() if name not in unlabelled}
    for warning in [*warnings, *unknown_warnings(splits), *recipe.warnings(labelled)]:
        log.warning("%s", warning, extra=coded("data.overlap"))


def choose_device(name: str, place: Place) -> torch.device:
    """Return this process's device.

    Raises:
        ConfigError: A GPU was asked for and there is none.
        LaunchError: There are fewer GPUs on this machine than processes.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "device: cuda, but PyTorch sees no GPU here (paratune doctor gives the reason); set device: cpu",
            code="device.no_gpu",
            key="device",
        )
    count = torch.cuda.device_count()
    local_rank = 0 if count == 1 and has_own_gpu() else place.local_rank
    if local_rank >= count:
        line = f"#SBATCH --ntasks-per-node={count}" if is_srun() else f"start at most {count} processes on it"
        raise LaunchError(
            f"local rank {place.local_rank} has no GPU: this machine shows {count}; {line}, or set device: cpu",
            code="device.no_gpu",
            line=line,
        )
    if is_srun() and place.local_rank == 0 and not has_own_gpu() and tasks_here() < count:
        log.warning(
            "srun started %d processes on this node, which has %d GPUs: #SBATCH --ntasks-per-node=%d uses all",
            tasks_here(),
            count,
            count,
            extra=coded("device.gpu_unused"),
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device

"""Prepares a run before its processes connect: checks the configuration and loads tokenizer and tokenized data.

Errors in the user's files are found here, before the run folder is made, so that a mistake leaves no files behind.
Tokenization, which can take long, happens here too, while no process waits in a collective.
"""

import inspect
import logging
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paratune import hardware
from paratune.config.batch_size import ResolvedBatch, resolve_batch
from paratune.config.feasibility import Ranks, reasons_against, sample_reasons, stages
from paratune.config.load import LoadedConfig
from paratune.config.own_code import OWN_ERRORS, described_error
from paratune.config.problems import refuse
from paratune.config.sections import Config
from paratune.config.strategy_sections import OutsideStrategy, strategy_options
from paratune.config.traits import Traits, strategy_traits
from paratune.console import Display
from paratune.data.columns import dropped_text
from paratune.data.duplicates import overlaps
from paratune.data.encode import TokenizeOptions
from paratune.data.load import Split, truncation_warnings, unknown_warnings
from paratune.data.loader import Collate, PackedCollator, TrainBatches
from paratune.data.slices import cluster_numbers, slice_values
from paratune.data.workers import Workers
from paratune.engine.optim import OptimizerFactory
from paratune.engine.stop import StopRequest
from paratune.errors import ConfigError, LaunchError, ParatuneError, Stopped, coded, is_installed
from paratune.hardware.builds import kernels_problem
from paratune.models.attention import cuda
from paratune.models.blocks import checkpoint_blocks, compile_blocks
from paratune.models.config import load_config, token_limit
from paratune.models.distillation import distilled
from paratune.models.dropout import use_cheap_dropout
from paratune.models.linear import use_onednn
from paratune.models.load import require_weights
from paratune.models.locate import base_model_name
from paratune.models.packed import BatchLayout, choose_batch_layout, enable_packed_batches
from paratune.models.quantized import quantize_base
from paratune.models.stored import few_blocks
from paratune.models.task_model import TaskModel, find_blocks
from paratune.models.tokenizer import load_tokenizer, takes_token_types
from paratune.models.trained_weights import freeze_weights, layer_rate_factors
from paratune.precision import Precision, precision_policy, target_of
from paratune.processes.diagnosis import READING, WAITING
from paratune.processes.launcher import has_own_gpu, is_srun, tasks_on_node
from paratune.processes.place import Place, local_world_size
from paratune.processes.progress import working
from paratune.strategies import strategy_class
from paratune.strategies.protocol import Layout, Strategy, loss_scale_of
from paratune.tasks import load_extra_splits, make_recipe
from paratune.tasks.protocol import TaskRecipe
from paratune.training.teacher import TeacherPass, with_teachers

log = logging.getLogger(__name__)
ALWAYS_ALLOWED = 1000
"""Number of micro-batches of a step that is always allowed, even if most of them are empty: these cost only seconds,
and small data sets are for trying settings."""


@dataclass(frozen=True)
class Prepared:
    """A run before its processes connect."""

    loaded: LoadedConfig
    place: Place
    device: torch.device
    precision: Precision
    strategy_type: Any
    """The class of the strategy, or another object that makes it when called."""
    traits: Traits
    recipe: TaskRecipe
    tokenizer: Any
    max_length: int
    """Tokens per sample, special tokens included."""
    splits: dict[str, Split]
    tokenize_s: float
    """Seconds of reading, cutting and tokenizing the data."""
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By scored split and name in `evaluate.slices`, without `label`: the value of each row, (N,)."""
    teachers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return self.loaded.config

    @property
    def labelled(self) -> dict[str, Split]:
        """All splits except those that are only predicted."""
        return {name: split for name, split in self.splits.items() if name not in self.config.data.predict}

    @contextmanager
    def switched(self) -> Iterator[None]:
        """Set PyTorch's global switches for a run; restore them at the end of the block."""
        with self.precision.switched(), cuda.attention_settings(deterministic=self.config.train.deterministic):
            yield


def prepare(loaded: LoadedConfig, place: Place, stop: StopRequest, display: Display) -> Prepared:
    """Load and check everything except the weights of the model.

    Raises:
        ConfigError, DataError, LaunchError: The configuration, a file or the machine is not suitable.
        Stopped: A signal came, in a run of one process or during tokenization.
    """
    config = loaded.config
    if config.data.train is None:
        message = f"{loaded.source}: data.train is missing; training needs it"
        raise ConfigError(message, code="config.required", key="data.train", source=loaded.source)
    strategy_type = strategy_class(config.strategy.kind)
    check_options(strategy_type, config)
    options = strategy_options(config.strategy)
    own_traits = strategy_traits(config.strategy.kind, options)
    traits = own_traits or strategy_type.traits
    ranks = Ranks(place.world_size, max(1, place.world_size // local_world_size(place)))
    refuse(reasons_against(config, traits, None, ranks, is_installed=is_installed), source=loaded.source)
    device = choose_device(config.device, place)
    refuse(reasons_against(config, traits, target_of(device), ranks), source=loaded.source)
    precision, warning = precision_policy(config.precision, device, hardware.cpu_flags())
    if own_traits is not None:  # `param_dtype` of an outside strategy may mean anything
        precision = precision.with_weights(options.get("param_dtype", "fp32"))
    precision = replace(precision, rounds_base=config.model.may_round_base)
    if warning:
        log.warning("%s", warning, extra=coded("precision.slow"))
    with working(f"load the tokenizer and the configuration of {config.model.name}"):
        tokenizer = load_tokenizer(config.model, config.data.truncation_side)
        require_weights(config.model)
        if config.model.adapter is not None and config.model.adapter.save == "adapter":
            base_model_name(config.model.name)  # refuses an adapter folder before the data is read
        # Blocks are checked again when the model is loaded.
        num_layers = getattr(load_config(config.model), "num_hidden_layers", None) if traits.cuts_blocks else None
        if isinstance(num_layers, int):
            refuse(stages(config, traits, num_layers))
        max_length = token_limit(config, tokenizer)
    recipe = make_recipe(config.task)
    begin = time.perf_counter()
    splits = _load(config, recipe, tokenizer, max_length, stop, display)
    tokenize_s = time.perf_counter() - begin
    if place.rank == 0:
        _log_splits(splits, recipe, unlabelled=config.data.predict)
    slices = _add_columns(config, splits)
    train = splits["train"]
    num_samples, unit = train.num_samples, "rows" if train.num_samples == train.num_rows else "windows"
    refuse(sample_reasons(traits, ranks, num_samples))
    size = config.batch.global_
    if size is not None and size > num_samples:
        log.warning(
            "batch.global is %d, more than the %d %s: each step uses all of them",
            size,
            num_samples,
            unit,
            extra=coded("batch.above_rows", key="batch.global", value=size, num_samples=num_samples),
        )
    teachers: list[dict[str, Any]] = []
    if config.distil is not None:
        splits["train"], teachers = with_teachers(TeacherPass(config, train, device, stop, display))
    if place.world_size == 1:  # several processes stop together after they are connected
        stop.raise_if_came("preparing")
    return Prepared(
        loaded, place, device, precision, strategy_type, traits, recipe, tokenizer, max_length, splits, tokenize_s,
        slices, teachers,
    )  # fmt: skip


def _add_columns(config: Config, splits: dict[str, Split]) -> dict[str, dict[str, Any]]:
    """Set the clusters of rows of the scored splits, and return the values by which these splits are sliced.

    Columns are read here, so that a missing one is an error before training.
    """
    if config.measure.probe:
        return {}
    slices, reading = {}, config.data.reading
    with working(READING):
        for name, split in [*splits.items()]:
            if name == "train" or name in config.data.predict:
                continue
            if config.evaluate.slices:
                slices[name] = slice_values(split, config.evaluate.slices, reading)
            if config.task.kind != "mlm":
                clusters = cluster_numbers(split, config.evaluate.cluster, reading)
                splits[name] = replace(split, samples=replace(split.samples, clusters=clusters))
    return slices


def _load(
    config: Config, recipe: TaskRecipe, tokenizer: Any, max_length: int, stop: StopRequest, display: Display
) -> dict[str, Split]:
    """Return the tokenized splits.

    Raises:
        Stopped: A signal came.
    """
    with working(READING), display.bar("tokenize", 1) as bar:
        options = TokenizeOptions(
            tokenizer,
            max_length,
            truncation=config.data.truncation,
            head_tokens=config.data.head_tokens,
            need_token_type_ids=takes_token_types(tokenizer),
            cache_dir=config.data.cache_dir,
            progress=bar.show,
            stop=stop.came,
            waits=lambda: display.notify(WAITING, 0, 1),
        )
        try:
            return recipe.load_splits(config.data, options) | load_extra_splits(recipe, config.data, options)
        except Stopped as stopped:
            message = f"stopped by {stop.signal_name()}: {stopped}; nothing was trained, start it again"
            raise Stopped(message, code="stopped.signal") from stopped


def check_options(strategy_type: Any, config: Config) -> None:
    """Check that an outside class is a strategy and accepts its options.

    Raises:
        ConfigError: It does not.
    """
    kind, traits = config.strategy.kind, getattr(strategy_type, "traits", None)
    if not callable(strategy_type) or not isinstance(traits, Traits):
        message = f"strategy.kind: {kind} is not a strategy: it has no `traits` (see docs/explanation/strategies.md)"
        raise ConfigError(message, code="own_code.wrong_result", key="strategy.kind", value=kind)
    arguments = dict.fromkeys(("device", "precision", "rank", "world_size"))
    try:
        inspect.signature(strategy_type).bind(**{**strategy_options(config.strategy), **arguments})
    except (TypeError, ValueError) as error:
        message = f"strategy.options of {kind}: {error} (see docs/explanation/strategies.md)"
        raise ConfigError(message, code="own_code.wrong_result", key="strategy.options", kind=kind) from error


def make_strategy(prepared: Prepared) -> Strategy:
    """Make the strategy; the process group must be open.

    Raises:
        ConfigError: The constructor of an outside class raises an error, or the class does not scale the loss in fp16.
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
    except OWN_ERRORS as error:  # the constructor of an outside class may raise anything
        if isinstance(error, ParatuneError) or not isinstance(config.strategy, OutsideStrategy):
            raise
        message = f"strategy.kind: {config.strategy.kind} cannot be made: {described_error(error)}"
        raise ConfigError(
            message, code="own_code.wrong_result", key="strategy.kind", value=config.strategy.kind
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
    """Return the initial model on the CPU; it is the same on every rank and in every call.

    Raises:
        ConfigError: It cannot be loaded, has no head for the task, or its blocks do not support an option.
    """
    config = prepared.config
    with working(f"load the model {config.model.name}"):
        # An outside strategy may not know `whole.cast_weights`. New weights are drawn twice if a strategy shards them.
        keeps_stored = not isinstance(config.strategy, OutsideStrategy)
        keeps_stored &= not config.model.from_scratch or "gradients" in prepared.traits.shards
        model = prepared.recipe.load_model(
            config.model, prepared.tokenizer, prepared.precision, config.run.seed, keeps_stored=keeps_stored
        )
    prepared.recipe.initialise(model, prepared.splits["train"])
    if config.distil is not None:
        model.objective = distilled(model.objective, config.distil, config.task.kind)
    if not config.train.compile:  # the compiler fuses only PyTorch's own dropout and linear layers
        use_cheap_dropout(model)
    if not prepared.traits.equal_shapes:  # a pipeline counts the FLOPs of PyTorch's own layers
        if prepared.device.type == "cpu" and not config.train.compile:
            use_onednn(model)
        dtype = prepared.precision.param_dtype
        is_stored = any(parameter.dtype != dtype or hasattr(parameter, "draw") for parameter in model.parameters())
        # Neither a copy in float32 nor a model that is not sharded yet may need more memory than the training.
        few = prepared.device.type == "cuda" and "gradients" in prepared.traits.shards
        enable_packed_batches(
            model,
            packs=config.batch.layout in ("auto", "packed"),
            device=prepared.device,
            dtype=prepared.precision.compute_dtype,
            trial=few_blocks(model.hf, dtype) if few or is_stored or config.model.quantize_base else None,
        )
    freeze_weights(model, config.train)
    if config.model.quantize_base is not None:  # after the trial, whose gradients may need layers that are frozen
        with working("quantize the base"):
            quantize_base(model.hf, config.model.quantize_base)
    if config.train.compile:
        compile_blocks(model)
        if prepared.place.rank == 0 and prepared.device.type == "cpu":
            log.warning(
                "train.compile: on a CPU, steps were slower with it than without it (docs/explanation/batches.md)",
                extra=coded("model.compile_slow", key="train.compile"),
            )
    if config.train.activation_checkpointing is not None:
        checkpoint_blocks(find_blocks(model), config.train.activation_checkpointing)
    return model


def optimizer_factory(prepared: Prepared, model: TaskModel, num_steps: int) -> OptimizerFactory:
    """Return what makes the optimizer of `model`, with the learning rates of its layers, for `num_steps` steps."""
    train = prepared.config.train
    return OptimizerFactory(train, num_steps, layer_rate_factors(model, train.layer_decay))


def run_batch_layout(prepared: Prepared, model: TaskModel) -> BatchLayout:
    """Return the layout of the run's batches; `model` is the result of `initial_model`.

    Raises:
        ConfigError: See `choose_batch_layout`.
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
    """Return the batch sizes of an optimizer step.

    Raises:
        ConfigError: See `resolve_batch`; or most micro-batches of each step would be empty.
    """
    sizes = resolve_batch(
        prepared.config.batch,
        prepared.traits,
        data_world_size=layout.data_world_size,
        group_size=prepared.recipe.group_size,
    )
    check_micro_batches(sizes, prepared.splits["train"].num_samples)
    return sizes


def check_micro_batches(sizes: ResolvedBatch, num_samples: int) -> None:
    """Check that a step has not more micro-batches than the training set has samples.

    Raises:
        ConfigError: It has more, and more than `ALWAYS_ALLOWED`.
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
        make_collator(prepared, "train", batch_layout),
        seed=prepared.config.run.seed,
        global_batch_size=sizes.global_batch_size,
        micro_batch_size=sizes.micro_batch_size,
        num_micro_steps=sizes.grad_accum_steps,
        data_rank=layout.data_rank,
        data_world_size=layout.data_world_size,
        equal_shapes=prepared.traits.equal_shapes,
        num_buckets=batch_layout.num_buckets,
        compare_every=compare_every,
        group_size=prepared.recipe.group_size,
    )


def worker_settings(prepared: Prepared) -> Workers:
    """Return the settings of this rank's loader workers."""
    data = prepared.config.data
    return Workers(data.num_workers, data.prefetch_factor or 2, pins_memory=prepared.device.type == "cuda")


def make_collator(prepared: Prepared, split: str, batch_layout: BatchLayout) -> Collate:
    """Return the collator of a split, which makes its batches."""
    collator = prepared.recipe.collator(prepared.splits[split], prepared.tokenizer, seed=prepared.config.run.seed)
    return PackedCollator(collator, rounds=batch_layout.rounds) if batch_layout.kind == "packed" else collator


def _log_splits(splits: dict[str, Split], recipe: TaskRecipe, *, unlabelled: Container[str]) -> None:
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
    labelled = {name: split for name, split in splits.items() if name not in unlabelled}
    for overlap in overlaps({name: split.samples for name, split in splits.items()}):
        log.warning("%s", overlap.message, extra=coded("data.overlap"))
    for warning, extra in recipe.warnings(labelled):
        log.warning("%s", warning, extra=extra)
    for warning in truncation_warnings(splits, recipe.task):
        log.warning("%s", warning, extra=coded("data.truncated_many"))
    for warning in unknown_warnings(splits):
        log.warning("%s", warning, extra=coded("data.unknown_tokens_many"))


def choose_device(name: str, place: Place) -> torch.device:
    """Return this process's device.

    Raises:
        ConfigError: The option asks for a GPU, but there is none.
        LaunchError: This machine has fewer GPUs than processes, or torch has no kernels for the GPU.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        message = "device: cuda, but PyTorch sees no GPU here (paratune doctor gives the reason); set device: cpu"
        raise ConfigError(message, code="device.no_gpu", key="device")
    count = torch.cuda.device_count()
    local_rank = 0 if count == 1 and has_own_gpu() else place.local_rank
    if local_rank >= count:
        line = f"#SBATCH --ntasks-per-node={count}" if is_srun() else f"start at most {count} processes on it"
        raise LaunchError(
            f"local rank {place.local_rank} has no GPU: PyTorch sees {count} on this machine; {line}, or set device: "
            "cpu",
            code="device.no_gpu",
            line=line,
        )
    if is_srun() and place.local_rank == 0 and not has_own_gpu() and tasks_on_node() < count:
        log.warning(
            "srun started %d processes on this node, which has %d GPUs: #SBATCH --ntasks-per-node=%d uses all",
            tasks_on_node(),
            count,
            count,
            extra=coded("device.gpu_unused"),
        )
    device = torch.device("cuda", local_rank)
    major, minor = torch.cuda.get_device_capability(device)
    gpu, archs = torch.cuda.get_device_name(device), torch.cuda.get_arch_list()
    if problem := kernels_problem(gpu, 10 * major + minor, archs):
        raise LaunchError(problem, code="device.no_kernels", name=gpu)
    torch.cuda.set_device(device)
    return device

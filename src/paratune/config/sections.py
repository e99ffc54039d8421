"""What a run can be told: one frozen class a section, a line under each field; no torch.

The line under a field is its help text, its text in the JSON schema and in the file that `paratune config init` writes.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.config.section import (
    LONGEST_S,
    Columnar,
    NonNegative,
    Part,
    Positive,
    PositiveFloat,
    Section,
    Share,
    Text,
)
from paratune.config.strategy_sections import SingleOptions, Strategy
from paratune.config.task_sections import Task
from paratune.config.tracker_sections import Trackers


class RunOptions(Section):
    """Where the record of the run goes, and its seed."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder; the configuration file's name when not given."""
    folder: Text = "runs"
    """Folder that holds the run folders, made when absent; relative to the working directory."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Seed of the new weights, the sample order and dropout."""
    hang_timeout_s: Annotated[float, Field(ge=1, le=LONGEST_S)] | None = 1800
    """After so many seconds in which no process gets on the run is ended, with who is missing and the stacks of all;
    longer than the longest micro-batch takes. null waits for ever."""


class Columns(Section):
    """Which columns of the files hold what; nothing is guessed."""

    text: Columnar | None = None
    """Column of the text; several are joined by `separator`."""
    text_pair: Columnar | None = None
    """Column of the second text of a pair."""
    label: Text | None = None
    """Column of the class label, of the numeric target, or of the gold answers (task `qa`)."""
    answer_start: Text | None = None
    """Column of the character at which the answer begins, where that of `label` has its text alone (task `qa`)."""
    id: Text | None = None
    """Column that names each row in prediction files; row numbers when not given."""
    separator: str = "\n"
    """What stands between joined columns."""


def named_columns(columns: str | list[str] | None) -> list[str]:
    """Return the columns that an option names: none, one or several."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str) else columns


def text_columns(columns: Columns) -> list[str]:
    """Return the columns of both texts."""
    return named_columns(columns.text) + named_columns(columns.text_pair)


class SplitOptions(Section):
    """Parts that are cut from the training file because they have no file of their own."""

    validation: Part | None = None
    """Share of the rows of `data.train` that become the validation set."""
    test: Part | None = None
    """Share of the rows of `data.train` that become the test set."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the cut; apart from `run.seed`, so that runs with other seeds see the same parts."""
    stratify: bool = False
    """Keep each label's share the same in all parts (classification)."""
    group_by: Text | None = None
    """Column whose equal values stay in one part: all essays on one question, all reviews of one film."""


class MaxRows(Section):
    """The most rows of each split: a part is drawn, always the same one, and keeps the order of the file. The sets of
    `data.extra` and `data.predict` are taken whole."""

    train: Positive | None = None
    """Of the training set, after parts were cut from it."""
    validation: Positive | None = None
    """Of the validation set."""
    test: Positive | None = None
    """Of the test set."""


class FigureOptions(Section):
    """Pictures of the data, which `paratune data CONFIG --figures FOLDER` draws; no training looks at it."""

    by: Text | None = None
    """Column by whose values rows are told apart in pictures, such as the type of the task."""
    word_clouds: list[Text] | None = None
    """Columns to draw as word clouds; the columns of the texts when not given."""
    min_texts: Positive = 100
    """Texts that a word cloud needs; a column with fewer says so in the picture's place."""
    stop_words: list[Text] = Field(default_factory=list)
    """Words to leave out of word clouds beside English stop words (those of scikit-learn, did, does, doing, ...n't)."""


class Data(Section):
    """The files, their columns, and how texts become tokens."""

    train: Columnar | None = None
    """CSV, TSV, JSON lines, Parquet or text file (also .gz), a folder saved by `datasets` (FOLDER#SPLIT where it holds
    several), `demo:sentences`, or `hub:NAME` or `hub:NAME/CONFIG` of a data set on the hub (NAME@SPLIT where it holds
    several); or a list of them, which are read one after the other."""
    validation: Text | None = None
    """As `train`, one file; used for evaluation during training and for keeping the best model."""
    test: Text | None = None
    """As `train`, one file; evaluated once, at the end, with the model that is kept."""
    extra: dict[str, Text] = Field(default_factory=dict)
    """Further labelled sets, a name and a source each, such as {validation_mismatched: FILE}; evaluated once, at the
    end, with scores of their own."""
    predict: dict[str, Text] = Field(default_factory=dict)
    """Sets without labels, a name and a source each, such as {test: FILE}; predicted once, at the end, and not scored.
    A label column in them is not looked at."""
    columns: Columns = Field(default_factory=Columns)
    """Which columns hold what."""
    split: SplitOptions | None = None
    """Parts to cut from `train`."""
    max_rows: MaxRows = Field(default_factory=MaxRows)
    """Take a part of the rows, for a try."""
    missing: Literal["refuse", "drop"] = "refuse"
    """What happens to rows with an empty text or label: an error, or they are counted and left out."""
    max_length: Positive | None = None
    """Tokens per sample, special tokens included; longer ones are truncated. The model's own limit when not given."""
    truncation: Literal["longest_first", "only_first", "only_second"] = "longest_first"
    """Which text of a pair loses tokens."""
    truncation_side: Literal["left", "right"] | None = None
    """At which end a text that is too long is cut; that of the tokenizer when not given. Saved with the tokenizer."""
    hub_revision: Text | None = None
    """Commit, tag or branch of a data set on the hub."""
    figures: FigureOptions = Field(default_factory=FigureOptions)
    """Pictures of the data."""
    num_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes of each rank that make batches ahead of time, as in PyTorch's DataLoader; 0 makes them in the training
    process. What is trained is the same to the bit."""
    prefetch_factor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """With `num_workers`: optimizer steps that each of them is ahead, at most; 2 when not given."""
    cache_dir: Text | None = None
    """Where token files are kept; $PARATUNE_CACHE, or ~/.cache/paratune, when not given."""


class ModelOptions(Section):
    """The pre-trained model and its tokenizer."""

    name: Text
    """A local Hugging Face folder, a hub name, or `demo:minilm`."""
    tokenizer: Text | None = None
    """Folder or hub name of the tokenizer when it is not beside the model."""
    tokenizer_revision: Text | None = None
    """Commit, tag or branch of `tokenizer` on the hub."""
    revision: Text | None = None
    """Commit, tag or branch of `name` on the hub, and of the tokenizer that is beside it."""
    from_scratch: bool = False
    """Take the architecture only, a config.json, with new weights; with `tokenizer`, the vocabulary is that of it."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Values of the model's own configuration to change, such as hidden_dropout_prob: 0.0."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off, because a model folder can then do anything that you can."""


class Train(Section):
    """The optimization."""

    epochs: PositiveFloat | None = None
    """Passes over the training set; or `max_steps`."""
    max_steps: Positive | None = None
    """Optimizer steps; or `epochs`."""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """AdamW; or LAMB, which makes each weight matrix's step `learning_rate` times as long as the matrix: for large
    batches."""
    learning_rate: PositiveFloat = 5e-5
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Course of the learning rate after warm-up; linear and cosine end at 0."""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps over which the learning rate rises linearly from 0; or `warmup_ratio`."""
    warmup_ratio: Share | None = None
    """Warm-up as a share of all steps; or `warmup_steps`."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay; biases and norms are left out."""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = Field(default_factory=lambda: [0.9, 0.999])
    """Decay rates of the optimizer's two moments."""
    eps: PositiveFloat = 1e-8
    """The optimizer's term in the denominator; 1e-6 in the paper of LAMB."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this norm when theirs is larger; null leaves them as they are."""
    freeze_encoder: bool = False
    """Train the head alone."""
    activation_checkpointing: Positive | None = None
    """Compute the inside of every block (1) or every n-th one (n) again during backward instead of keeping it: less
    memory for more time, the same gradients. Off when not given."""
    compile: bool = False
    """Compile every block with torch.compile: fewer, larger kernels on a GPU, for a start that takes a minute or more.
    On a CPU it was measured to be slower."""
    deterministic: bool = True
    """Gradients of attention over packed rows on a GPU are the same bits each time, so that a resumed run has the bits
    of one that was not interrupted; false lets the kernels add in any order: faster, and the same to rounding only. On
    a CPU they always are the same."""


class BatchSize(Section):
    """Samples per optimizer step, said for all ranks together or per device."""

    global_: Positive | None = Field(default=None, alias="global")
    """Samples per optimizer step over all ranks: kept whatever the number of ranks; accumulation follows."""
    per_device: Positive | None = None
    """Samples per rank and micro-step; the global batch grows with ranks and with `grad_accum_steps`."""
    micro_batch_size: Positive | Literal["auto"] | None = None
    """With `global`: the most samples that one rank takes at a time; all of its share when not given. auto tries
    before the first step which is the largest that fits into memory."""
    grad_accum_steps: Positive | None = None
    """With `per_device`: micro-steps per optimizer step."""
    layout: Literal["auto", "packed", "bucketed", "padded"] = "auto"
    """How rows of different lengths lie side by side. packed: one behind the other, without padding; bucketed: sorted
    by length within the optimizer step, so that little is padded; padded: to the longest of the micro-batch. auto packs
    where the model gives the same for packed rows, which is tried at the start, and else sorts. Samples of a step are
    the same in all of them."""


class Evaluate(Section):
    """When to evaluate on the validation set, and what follows from it."""

    every: Literal["epoch", "steps", "never"] = "epoch"
    """Evaluate at the end of each epoch, each `steps` steps, or only at the end of the run."""
    steps: Positive | None = None
    """Steps between evaluations, with `every: steps`."""
    batch_size: Positive = 32
    """Samples per rank and forward pass of an evaluation where they are the longest; of shorter ones as many more as
    have the same number of tokens, up to 8 times as many."""
    best: str | None = None
    """Metric by which the best model is kept and loaded at the end, such as accuracy, f1, loss or rmse; null keeps the
    last one."""
    patience: Positive | None = None
    """Stop after this many evaluations without a better `best` metric."""
    min_delta: NonNegative = 0.0
    """How much better than the best an evaluation must be to renew the patience; the best is kept by any margin."""


class Checkpoint(Section):
    """When to save all that is needed to go on after an interruption."""

    every: Literal["epoch", "steps", "never"] = "epoch"
    """Save at the end of each epoch or each `steps` steps, and at the end; or only when a signal stops the run."""
    steps: Positive | None = None
    """Steps between checkpoints, with `every: steps`."""
    keep: Positive = 2
    """Whole checkpoints that stay; older ones are deleted."""


class MeasureOptions(Section):
    """What is measured and logged."""

    warmup_steps: Annotated[int, Field(ge=0)] = 5
    """First steps of a run (and after a resume) that are marked as warm-up and left out of medians and rates."""
    log_every: Positive = 10
    """Steps between two writes of the event log and updates of the progress line."""
    noise_scale_every: Positive | None = 20
    """Steps from one sample of the gradient noise scale to the next, for which the gradients of the micro-batches of a
    step are looked at one by one; null for none."""
    profile_steps: Annotated[int, Field(ge=0)] = 0
    """Steps behind the warm-up that run under torch.profiler, to see which operators and kernels take most time, how
    idle the device is, and how long ranks exchange data; left out of medians and rates. Fewer where an evaluation or a
    checkpoint comes. Each rank writes a trace."""
    sample_every_s: Annotated[float, Field(ge=0.1, le=LONGEST_S)] | None = 1.0
    """Seconds between two samples of how busy devices are, of their memory and power; null takes none."""
    plan: bool = True
    """Write what `paratune plan` predicts of this run beside what was measured, at its end: a second or two. On a CPU
    only where `paratune plan --calibrate` has measured it."""
    probe: bool = False
    """Take the steps to be timed, and nothing else: no evaluation, no scores, no checkpoint and no model, whatever
    `evaluate` and `checkpoint` say. What `paratune sweep` makes of a run that is to be a probe."""


class Config(Section):
    """A run: one file."""

    run: RunOptions = Field(default_factory=RunOptions)
    """Where the record goes, and the seed."""
    task: Task
    """What is learned."""
    data: Data
    """From which files and columns."""
    model: ModelOptions
    """Starting from which model."""
    train: Train
    """The optimization."""
    batch: BatchSize
    """Samples per optimizer step."""
    evaluate: Evaluate = Field(default_factory=Evaluate)
    """Evaluation during training."""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    """Safety against interruption."""
    strategy: Strategy = Field(default_factory=lambda: SingleOptions(kind="single"))
    """How the work is spread over devices."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp64"] = "fp32"
    """Arithmetic: fp32; tf32 matrix products; fp16 or bf16 autocast with fp32 weights; fp64 for proofs on a CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU when there is one."""
    measure: MeasureOptions = Field(default_factory=MeasureOptions)
    """Measuring and logging."""
    trackers: Trackers = Field(default_factory=Trackers)
    """Trackers that are told the figures."""


def run_path(config: Config) -> Path:
    """Return the folder of the run; `run.name` must have been resolved."""
    assert config.run.name is not None
    return Path(config.run.folder) / config.run.name

"""All options of a run: one frozen class for each section.

The text under a field is its help, also in the JSON schema and on the page *Options* of the documentation.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field

from paratune.config.optional_sections import Distil, TfidfOptions, Trackers
from paratune.config.section import (
    LONGEST_S,
    CodeName,
    Column,
    Columnar,
    Joined,
    LayerNumbers,
    NonNegative,
    OwnCode,
    OwnOptimizer,
    Part,
    Positive,
    PositiveFloat,
    Section,
    Share,
    Text,
)
from paratune.config.sources import matching_sources
from paratune.config.strategy_sections import SingleOptions, Strategy
from paratune.config.task_sections import Task


class RunOptions(Section):
    """The run's name, folder and seed."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder; default: the name of the configuration file."""
    folder: Text = "runs"
    """Folder for the run folders, relative to the working directory; created when absent."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Seed of new weights, sample order and dropout."""
    hang_timeout_s: Annotated[float, Field(ge=1, le=LONGEST_S)] | None = 1800
    """Timeout in seconds: when no rank makes progress for this time, the run ends. The message names the missing rank,
    and files have the stacks of all ranks. Set it longer than the longest micro-batch; null: no timeout."""
    callbacks: list[OwnCode] = Field(default_factory=list)
    """Your own callbacks, called on rank 0 during the training; see docs/howto/extend.md."""


class Columns(Section):
    """The columns of the files, by name or, with `data.header: false`, by number from 1; they are not guessed."""

    text: Joined | None = None
    """Column of the text; a list of columns is joined by `separator`."""
    text_pair: Joined | None = None
    """Column of the second text of a pair; in multiple_choice, of a text that is put before each choice."""
    negative: Joined | None = None
    """Column of a text that is not related to `text`, for triplets (task `embedding`)."""
    choices: Joined | None = None
    """Columns of the choices, or one column with lists of choices (task `multiple_choice`)."""
    label: Joined | None = None
    """Column of the class label, of the numeric target, of the gold answers (task `qa`), or of the right choice; also a
    list: in `multi_label` a column of 0 and 1 for each label, in `regression` a column for each target, or rater
    (`task.raters`). They have the names of the columns."""
    answer_start: Column | None = None
    """Column of the character position at which the answer starts, when the column `label` holds only the answer's text
    (task `qa`)."""
    id: Column | None = None
    """Column that identifies rows in prediction files; default: row numbers."""
    separator: str = "\n"
    """Text between joined columns."""


def named_columns(columns: str | list[str] | None) -> list[str]:
    """Return the columns, or the sources, of an option as a list: none, one or several."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str) else columns


def named_sources(sources: str | list[str] | None) -> list[str]:
    """Return the sources of `data.train`, `data.validation` or `data.test` in order, with the files of patterns."""
    return [source for name in named_columns(sources) for source in matching_sources(name)]


def text_columns(columns: Columns) -> list[str]:
    """Return the columns of all texts."""
    return [name for key in (columns.text, columns.text_pair, columns.negative) for name in named_columns(key)]


class SplitOptions(Section):
    """Parts of the training data that are used as validation or test set."""

    validation: Part | None = None
    """Share of the rows of `data.train` for the validation set."""
    test: Part | None = None
    """Share of the rows of `data.train` for the test set."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Number of folds of a cross-validation: fold number `fold` is the validation set, and the other folds are the
    training set. With `validation`, the fold is the test set, and the validation set is this share of the other folds.
    The folds are those of scikit-learn."""
    fold: Annotated[int, Field(ge=0)] | None = None
    """With `folds`: the fold that is held out, counted from 0; the axis of a matrix has all of them."""
    held_out: Column | None = None
    """Value of the column `group_by` whose rows are the test set, such as one type of task; `validation` is then a
    share of the other rows. The axis of a matrix has several."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the split; independent of `run.seed`, so that runs with different seeds have the same parts."""
    stratify: bool = False
    """Keep the share of each label equal in all parts (classification)."""
    group_by: Column | None = None
    """Column that groups rows: all rows with the same value stay in one part, such as all reviews of one film."""

    @property
    def validation_share(self) -> float | None:
        """The share of the validation set, also of a fold; None where there is no such set."""
        return 1 / self.folds if self.folds is not None and self.validation is None else self.validation

    @property
    def has_test(self) -> bool:
        """Whether a test set is cut from the training rows."""
        return bool(self.test or self.held_out is not None or (self.folds and self.validation))


class MaxRows(Section):
    """Maximum number of rows of each split. The rows are drawn with a fixed seed and keep the order of the file. The
    sets of `data.extra` and `data.predict` are read completely."""

    train: Positive | None = None
    """Rows of the training set, after `data.split`."""
    validation: Positive | None = None
    """Rows of the validation set."""
    test: Positive | None = None
    """Rows of the test set."""


class FigureOptions(Section):
    """Figures of the data from `paratune data CONFIG --figures FOLDER`; training does not use this section."""

    by: Text | None = None
    """Column that groups the rows in figures, such as the type of the task."""
    word_clouds: list[Text] | None = None
    """Columns to draw as word clouds; default: the text columns."""
    min_texts: Positive = 100
    """Minimum number of texts for a word cloud; with fewer texts the figure contains a note instead."""
    stop_words: list[Text] = Field(default_factory=list)
    """Words to leave out of word clouds, in addition to English stop words (those of scikit-learn, did, does, doing,
    ...n't)."""


class FileReading(NamedTuple):
    """How sources are read, with the options of `Data`; None: found in the file."""

    encoding: str | None = None
    separator: str | None = None
    quote: str | None = None
    header: bool = True
    hub_revision: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "FileReading":
        """Return the options of reading among others, such as those of the section `data` in a record."""
        return cls(**{name: options[name] for name in cls._fields if name in options})


AS_FOUND: Final = FileReading()
"""Everything is found in the file."""


def _known_encoding(name: str) -> str:
    try:
        b" ".decode(name)
    except UnicodeDecodeError:  # of two bytes a character
        return name
    except (LookupError, UnicodeError):  # unknown, or no encoding of text, such as base64
        raise ValueError("a name that Python knows, such as utf-8, cp1252 or latin-1") from None
    return name


class Data(Section):
    """Files, columns and tokens."""

    train: Columnar | None = None
    """Training data: a CSV, TSV, JSON lines, Parquet or text file (also .gz), a folder saved by `datasets`
    (FOLDER#SPLIT when it has several splits) or with a folder of text files for each class, `demo:sentences`, or a data
    set of the hub, `hub:NAME` or `hub:NAME/CONFIG` (NAME@SPLIT when it has several splits); or your own data set,
    `code:package.module:function` (docs/howto/extend.md). A list of these is read in order. A pattern such as
    texts-*.parquet is the files that it matches, sorted by name."""
    validation: Text | None = None
    """Validation data, one source or a pattern as in `train`; evaluated during training, and used to select the best
    model."""
    test: Text | None = None
    """Test data, one source or a pattern as in `train`; evaluated once, at the end, with the kept model."""
    extra: dict[str, Text] = Field(default_factory=dict)
    """Further labelled sets by name, such as {validation_mismatched: FILE}; all are evaluated once, at the end."""
    predict: dict[str, Text] = Field(default_factory=dict)
    """Sets without labels by name, such as {test: FILE}; all are predicted once, at the end, and not scored. A label
    column in them is ignored."""
    columns: Columns = Field(default_factory=Columns)
    split: SplitOptions | None = None
    """Parts of `train` that become the validation or test set."""
    max_rows: MaxRows = Field(default_factory=MaxRows)
    """Maximum number of rows, for a first try."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Rows with an empty text or label: refuse reports an error, drop counts them and leaves them out."""
    drop_duplicates: bool = False
    """Leave out training rows whose text is also in the validation set, the test set or an earlier training row. Texts
    are equal when they differ only in white space; labels are not compared."""
    encoding: Annotated[Text, AfterValidator(_known_encoding)] | None = None
    """Encoding of text files, such as cp1252; default: UTF-8, or that of the file's byte order mark."""
    separator: Annotated[str, Field(pattern=r"^(.|tab)$")] | None = None
    """Text between two fields of CSV, TSV and .txt files, such as ";", or tab; default: found in the file."""
    quote: Annotated[str, Field(pattern=r"^(.|none)$")] | None = None
    """Character around fields of CSV, TSV and .txt files that contain a separator; none: quotes are plain characters.
    Default: '"', and in TSV files found in the file."""
    header: bool = True
    """Whether the first line of CSV, TSV and .txt files and of sheets has the names of columns. false: they have
    numbers, counted from 1: `columns: {text: 1, label: 3}`."""
    max_length: Positive | None = None
    """Maximum number of tokens of a sample, with special tokens; longer samples are truncated. Default: the model's
    limit."""
    truncation: Literal["longest_first", "only_first", "only_second", "head_tail"] = "longest_first"
    """Which text of a pair is truncated. head_tail is for single texts: it keeps the first `head_tokens` tokens and as
    many of the last ones as fit (Sun et al. 2019)."""
    head_tokens: Annotated[int, Field(ge=0)] | None = None
    """With `truncation: head_tail`: number of first tokens to keep, without special tokens; default: a quarter of the
    tokens that fit, as 128 of 510."""
    truncation_side: Literal["left", "right"] | None = None
    """Side from which a long text is truncated; default: the tokenizer's. Saved with the tokenizer."""
    hub_revision: Text | None = None
    """Commit, tag or branch of the data set on the hub."""
    figures: FigureOptions = Field(default_factory=FigureOptions)
    num_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Loader workers of each rank, as in PyTorch's DataLoader; with 0 the training process makes the batches. The
    number does not change the trained weights."""
    prefetch_factor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """With `num_workers`: maximum number of steps that a loader worker is ahead; default: 2."""
    cache_dir: Text | None = None
    """Folder of the token files; default: $PARATUNE_CACHE, else ~/.cache/paratune."""

    @property
    def reading(self) -> FileReading:
        """How the sources are read."""
        return FileReading.of(vars(self))


def data_sources(data: Data) -> Iterator[tuple[str, str]]:
    """Yield the option and the name of each data set; of lists and patterns one file after the other."""
    for key in ("train", "validation", "test"):
        yield from ((f"data.{key}", source) for source in named_sources(getattr(data, key)))
    for key in ("extra", "predict"):
        yield from ((f"data.{key}.{name}", source) for name, source in getattr(data, key).items())


class LoraOptions(Section):
    """LoRA (Hu et al. 2022): trains small matrices beside the frozen weights of the encoder."""

    kind: Literal["lora"]
    rank: Positive = 8
    """Width of the matrices."""
    alpha: PositiveFloat = 16.0
    """Scale of the adapter: the product of its matrices is multiplied by alpha / rank."""
    dropout: Share = 0.0
    """Dropout of the adapter's input."""
    target_modules: Literal["auto", "all-linear"] | Annotated[list[Text], Field(min_length=1)] = "auto"
    """Linear layers with an adapter. auto: PEFT's choice for the type of the model, else query and value; all-linear:
    all linear layers of the blocks; a list: the last parts of the names of the layers."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) (Kalajdzievski 2023)."""
    dora: bool = False
    """Train magnitudes and directions of the weights separately (DoRA, Liu et al. 2024)."""
    save: Literal["merged", "adapter"] = "merged"
    """Contents of model/. merged: a plain model folder, with the adapter added to its weights; adapter: an adapter
    folder of PEFT, which needs the base model."""


BaseKind = Literal["nf4", "int8"]


class ModelOptions(Section):
    """The pre-trained model and its tokenizer."""

    name: Text
    """A local Hugging Face folder, a run folder (its `model/` is used), a hub name, or `demo:minilm`."""
    tokenizer: Text | None = None
    """Folder, run folder or hub name of the tokenizer; default: the model's."""
    tokenizer_revision: Text | None = None
    """Commit, tag or branch of `tokenizer` on the hub."""
    revision: Text | None = None
    """Commit, tag or branch of `name` on the hub, and of its tokenizer."""
    from_scratch: bool = False
    """Use only the architecture (config.json), with new weights; with `tokenizer`, the vocabulary is the
    tokenizer's."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Values to change in the model's configuration, such as hidden_dropout_prob: 0.0."""
    keep_layers: LayerNumbers | None = None
    """Keep only these layers of the encoder, counted from 0 and ascending, such as [0, 2, 4]: a smaller model, which is
    then trained."""
    resize_vocabulary: bool = False
    """Grow the embedding where the tokenizer has more tokens, such as added ones; new rows start at random."""
    adapter: LoraOptions | None = None
    """Train an adapter and the head in place of the whole model (extra `hub`)."""
    quantize_base: BaseKind | None = None
    """Hold the frozen weights of linear layers in the blocks in few bits (extra `gpu`): nf4 in 4.5, int8 in 8; with
    `adapter`, or where `train` freezes weights. Passes dequantize them layer by layer."""
    head: OwnCode | None = None
    """Your own head on the encoder, for classification, multi_label, ordinal and regression; see
    docs/howto/extend.md."""
    class_: CodeName | None = Field(default=None, alias="class")
    """Your own model class, package.module:Class, a subclass of transformers' PreTrainedModel; see
    docs/howto/extend.md."""
    trust_remote_code: bool = False
    """Run Python code of the model folder. Off by default, because this code has all your rights on this machine."""

    @property
    def may_round_base(self) -> bool:
        """Whether frozen weights may be held in the dtype of autocast: they are not saved, and nothing else reads them.

        DoRA computes with them, and own code may.
        """
        has_own_code = self.class_ is not None or self.head is not None or self.trust_remote_code
        return self.adapter is not None and self.adapter.save == "adapter" and not (self.adapter.dora or has_own_code)


class FreezeOptions(Section):
    """Weights that keep their loaded values: they get no gradients and no optimizer states."""

    embeddings: bool = False
    """Freeze the weights before the first block."""
    blocks: Annotated[int, Field(ge=0)] = 0
    """Number of first blocks to freeze."""
    names: list[Text] = Field(default_factory=list)
    """Freeze parameters by name, with the wildcards * and ?, such as "*.attention.*". The names are those of the model
    in transformers."""


OptimizerName = Literal["adamw", "adamw_8bit", "adafactor"]
ScheduleName = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay", "constant"
]


class Train(Section):
    """The optimization."""

    epochs: PositiveFloat | None = None
    """Passes over the training set; set this or `max_steps`."""
    max_steps: Positive | None = None
    """Number of steps; set this or `epochs`."""
    optimizer: OptimizerName | OwnOptimizer = "adamw"
    """adamw; adamw_8bit: AdamW with moments of 8 bits; adafactor: sums over rows and columns of the second moment, and
    no first one; or your own optimizer."""
    continue_trainer: bool = False
    """Continue a training of Hugging Face's Trainer: `model.name` is its checkpoint, such as out/checkpoint-500. Step
    and learning rate continue after the step in its trainer_state.json; the moments of the optimizer are new."""
    learning_rate: PositiveFloat = 5e-5
    """Peak learning rate."""
    schedule: ScheduleName | OwnCode = "linear"
    """Learning rate after the warm-up, as in transformers' get_scheduler, or your own function. linear, cosine,
    cosine_with_restarts, polynomial and warmup_stable_decay end at `schedule_end_ratio`; inverse_sqrt falls with the
    root of the steps."""
    schedule_cycles: Positive | None = None
    """With `schedule: cosine_with_restarts`: number of half cosines, each from the peak; default: 1."""
    schedule_power: PositiveFloat | None = None
    """With `schedule: polynomial`: the exponent; default: 1."""
    schedule_end_ratio: Share | None = None
    """Learning rate at the end as a share of the peak; default: 0. Not with constant and inverse_sqrt."""
    decay_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """With `schedule: warmup_stable_decay`: share of the steps after the warm-up for the decay at the end, along half a
    cosine; default: 0.1."""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the learning rate rises linearly from 0; set this or `warmup_ratio`."""
    warmup_ratio: Share | None = None
    """Warm-up as a share of all steps; set this or `warmup_steps`."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Layer-wise decay of the learning rate. The head has the whole rate; each block, from the last to the first, has
    `layer_decay` times the rate of the block after it; the embeddings have the smallest rate. 1: one rate for all."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay; not applied to biases and norms."""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = Field(default_factory=lambda: [0.9, 0.999])
    """Decay rates of the optimizer's two moments."""
    eps: PositiveFloat = 1e-8
    """Term in the optimizer's denominator."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Maximum norm of the gradient, as in clip_grad_norm_; null: no clipping."""
    freeze_encoder: bool = False
    """Train only the head."""
    freeze: FreezeOptions = Field(default_factory=FreezeOptions)
    activation_checkpointing: Positive | None = None
    """Activation checkpointing: compute the activations of every block (1) or every n-th block (n) again in backward.
    Less memory, more time, equal gradients. Default: off."""
    compile: bool = False
    """Compile every block with torch.compile: fewer, larger kernels on a GPU, and a start that takes a minute or more.
    On a CPU it was measured to be slower."""
    deterministic: bool = True
    """On a GPU, compute the gradients of packed attention with the same bits in every run; then a resumed run equals an
    uninterrupted one. With false the kernels add in any order, which is faster, and results are equal only up to
    rounding. Not for CPUs, whose results are always the same."""


class BatchSize(Section):
    """Samples of a step, over all ranks or per device."""

    global_: Positive | None = Field(default=None, alias="global")
    """Samples of a step over all ranks; the same for every number of ranks. Accumulation is computed from it."""
    per_device: Positive | None = None
    """Samples per rank and micro-step; the global batch grows with the ranks and with `grad_accum_steps`."""
    micro_batch_size: Positive | Literal["auto"] | None = None
    """With `global`: largest number of samples in a micro-step of a rank; default: its whole share. auto finds the
    largest number that fits into memory, before the first step."""
    grad_accum_steps: Positive | None = None
    """With `per_device`: number of micro-steps in a step."""
    layout: Literal["auto", "packed", "bucketed", "padded"] = "auto"
    """Layout of rows of different lengths. packed: one row after the other, without padding; padded: each row padded to
    the longest one of the micro-batch; bucketed: padded, with the rows of a step sorted by length. auto: packed if a
    test at the start shows that the model supports it, otherwise bucketed. The layout does not change the samples of a
    step."""


class OwnMetric(Section):
    """A metric of your own: a function, a class of torchmetrics or a module of `evaluate`; see docs/howto/extend.md."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    """Its score is called own_NAME. The name ends in _error, _loss or _deviance if smaller values are better."""
    higher_is_better: bool
    """Whether larger values are better."""
    function: CodeName | None = None
    """package.module:function, called with predictions and labels as NumPy arrays; or package.module:Class with
    update(predictions, labels) and compute(), as the classes of torchmetrics, called with tensors."""
    evaluate: Text | None = None
    """In place of `function`: folder or script of a metric of the library `evaluate`, on this machine."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function, of the class, or of `compute` of a module of `evaluate`."""
    input: Literal["predictions", "probabilities", "outputs"] = "predictions"
    """Input of the metric. predictions: class ids, 0 or 1 for each class, or numbers; probabilities: of the classes;
    outputs: of the head."""
    entry: Text | None = None
    """Entry of the result, for a metric that returns a mapping of several values."""


class Evaluate(Section):
    """Evaluation on the validation set, the best model, early stopping."""

    every: Literal["epoch", "steps", "never"] = "epoch"
    """Evaluate after each epoch, every `steps` steps, or only at the end of the run."""
    steps: Positive | None = None
    """Steps between evaluations, with `every: steps`."""
    batch_size: Positive = 32
    """Samples per rank and forward pass, for the longest samples. A pass of shorter samples has more of them, with
    about the same number of tokens, up to 8 times as many samples."""
    best: str | None = None
    """Metric that selects the kept model, such as accuracy, f1, loss or rmse, the first of equals; null: the last."""
    metrics: list[OwnMetric] = Field(default_factory=list)
    """Further metrics of your own; see docs/howto/extend.md."""
    patience: Positive | None = None
    """Stop after this many evaluations without a better `best` metric."""
    min_delta: NonNegative = 0.0
    """Smallest improvement that resets the patience; any improvement selects a new best model."""
    slices: list[str] = Field(default_factory=list)
    """Columns of the data: the final scores are also reported for each value of these columns, with counts and 95%
    intervals. Built-in names: `label` (the task's label) and `length` (quartiles of the number of tokens). A column may
    have at most 50 distinct values."""
    cluster: Text | None = None
    """Column of the data that names clusters: rows that belong together have the same value, such as several answers of
    one person. Intervals of scores are over clusters. Default for `task.kind: qa`: one cluster for each passage."""


class Checkpoint(Section):
    """Checkpoints, from which a run can be resumed."""

    every: Literal["epoch", "steps", "never"] = "epoch"
    """epoch: save after each epoch; steps: every `steps` steps; both also at the end. never: only when a signal stops
    the run."""
    steps: Positive | None = None
    """Steps between checkpoints, with `every: steps`."""
    keep: Positive = 2
    """Number of checkpoints to keep; older ones are deleted."""
    sharded: Literal["auto"] | bool = "auto"
    """true: each process writes and hashes its own shards; needs a strategy that shards weights. false: rank 0 gathers,
    writes and hashes whole tensors. auto: true for checkpoints of 20 GB or more, if the strategy can. Any number of
    processes, with any strategy, can resume from both."""


class MeasureOptions(Section):
    """Measurements and logs."""

    warmup_steps: Annotated[int, Field(ge=0)] = 5
    """First steps, also after a resume, that are marked as warm-up and left out of medians and rates."""
    log_every: Positive = 10
    """Steps between two writes of the event log, and between two updates of the progress line."""
    noise_scale_every: Positive | Literal["auto"] | None = "auto"
    """Steps between two samples of the gradient noise scale; a sample reads the gradients of each micro-batch of a
    step. auto: a twentieth of the measured steps, at least 5 and at most 20. The noise scale needs 20 samples, which a
    run of 100 measured steps has. In a sampled step the rows of a bucketed layout are not sorted, and a single
    micro-batch is cut into two. null: no samples."""
    reference_batch: Positive | None = None
    """Global batch m0, in samples, that counts as a statistical efficiency of 100%. Reports and verdicts use this
    option of the baseline run. null: the global batch of the baseline run."""
    profile_steps: Annotated[int, Field(ge=0)] = 0
    """Number of steps after the warm-up that run under torch.profiler: time of operators and kernels, idle time of the
    device, time of communication. They are left out of medians and rates, and end early at an evaluation or a
    checkpoint. Each rank writes a trace."""
    sample_every_s: Annotated[float, Field(ge=0.1, le=LONGEST_S)] | None = 1.0
    """Seconds between two samples of the devices' utilisation, memory and power; null: no samples."""
    plan: bool = True
    """At the end of the run, record the prediction of `paratune plan` next to the measurements; this takes one or two
    seconds. On a CPU there is none, because a prediction needs a measured run (`paratune plan --measured`)."""
    probe: bool = False
    """Make the run a probe: it only times steps, and has no evaluation, scores, checkpoints and model. The sections
    `evaluate` and `checkpoint` have no effect then. `paratune sweep` sets this for probes."""


class Config(Section):
    """All options of a run."""

    run: RunOptions = Field(default_factory=RunOptions)
    task: Task
    """What the model learns."""
    data: Data
    model: ModelOptions
    train: Train
    batch: BatchSize
    evaluate: Evaluate = Field(default_factory=Evaluate)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    strategy: Strategy = Field(default_factory=lambda: SingleOptions(kind="single"))
    """How the processes of the run share states and work."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp64"] = "fp32"
    """Arithmetic: fp32; tf32 matrix products; fp16 or bf16 autocast with fp32 weights; fp64 for tests on a CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto uses a GPU when there is one."""
    measure: MeasureOptions = Field(default_factory=MeasureOptions)
    trackers: Trackers = Field(default_factory=Trackers)
    baseline: TfidfOptions | None = None
    """Fit a baseline on the same rows in place of the model, in one process on the CPU. Then the options of model
    (except its tokenizer), train, batch, checkpoint, measure, precision and device have no effect."""
    distil: Distil | None = None


def run_path(config: Config) -> Path:
    """Return the folder of the run; `run.name` must not be None."""
    assert config.run.name is not None
    return Path(config.run.folder) / config.run.name

"""What a run can be told: one frozen class a section, a line under each field; no torch.

The line under a field is its help text, its text in the JSON schema and in the file that `paratune config init` writes.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Part = Annotated[float, Field(gt=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Columnar = Text | Annotated[list[Text], Field(min_length=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Section(BaseModel):
    """Base of all sections: frozen, strict about types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class Run(Section):
    """Where the record of the run goes, and its seed."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder; the configuration file's name when not given."""
    folder: Text = "runs"
    """Folder that holds the run folders, made when absent; relative to the working directory."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Seed of the new weights, the sample order and dropout."""


class ClassificationTask(Section):
    """One of several classes for each text or pair of texts."""

    kind: Literal["classification"]
    """The task."""
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data in the order of their ids, or a mapping of each value to the name to show for it."""
    glue: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli"] | None = None
    """Task of GLUE that this is, in any language: gives the kind, labels and columns that are not said; see
    docs/glue.md."""


class MultiLabelTask(Section):
    """Any number of several classes for each text or pair of texts, also none of them."""

    kind: Literal["multi_label"]
    """The task."""
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data in the order of their ids, or a mapping of each value to the name to show for it."""
    separator: Text = "|"
    """What stands between the labels of a row where the column is text; a column of lists needs none."""
    threshold: Part = 0.5
    """A class is predicted when its probability is at least this."""


class OrdinalTask(Section):
    """One of several classes that have an order, such as grades, for each text or pair of texts."""

    kind: Literal["ordinal"]
    """The task."""
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data from the lowest to the highest, or a mapping of each value to the name to show for
    it."""


class RegressionTask(Section):
    """A number for each text or pair of texts, trained with the mean squared error."""

    kind: Literal["regression"]
    """The task."""
    start_at_mean: bool = False
    """Set the bias of a new head to the mean of the training targets: targets far from 0 are then not what the first
    steps are spent on. A head that is trained already has its bias, and is refused."""
    glue: Literal["stsb"] | None = None
    """Task of GLUE that this is, in any language: gives the kind and columns that are not said; see docs/glue.md."""
    round_to: PositiveFloat | None = None
    """Step of the scale on which scores are reported, such as 0.5 for half bands: prediction files get the rounded
    value beside the raw one, and agreement and kappa are those of the rounded values."""
    range: Annotated[list[Finite], Field(min_length=2, max_length=2)] | None = None
    """Lowest and highest score there is, such as [0, 9]: reported values are brought into it, and targets outside it
    are an error."""


class MaskedLMTask(Section):
    """Tokens of running text that are hidden and have to be found again: masked language modelling."""

    kind: Literal["mlm"]
    """The task."""
    mask_probability: Part = 0.15
    """Share of the tokens of each window that are hidden."""
    whole_words: bool = False
    """Hide words, with all of their tokens, and not tokens one by one; needs a fast tokenizer."""
    windows: Literal["joined", "documents"] = "joined"
    """joined: documents one after another, cut into windows of data.max_length; documents: each is a window of its own,
    truncated where it is longer (a line of a .txt file is a document)."""


class QuestionAnsweringTask(Section):
    """The passage of a context that answers a question: extractive question answering, as in SQuAD."""

    kind: Literal["qa"]
    """The task."""
    stride: Annotated[int, Field(ge=0)] = 128
    """Tokens that two neighbouring windows of a context share, where it is longer than `data.max_length` leaves room
    for."""
    max_answer_tokens: Positive = 30
    """Most tokens of an answer."""
    num_best: Positive = 20
    """Answers that are kept of each window, and of each question in nbest files."""
    unanswerable: bool | None = None
    """Whether a question may have no answer in its context (SQuAD 2.0); null: when train or validation has one."""
    null_threshold: Finite | None = None
    """A question counts as unanswerable when the score of "no answer" is by more than this above that of its best
    answer; the threshold with the best F1 on the validation set when not given."""
    articles: list[Text] = Field(default_factory=lambda: ["a", "an", "the"])
    """Words that do not count when an answer is compared with a gold answer; the English ones, as in SQuAD, when not
    given."""


Task = Annotated[
    ClassificationTask | MultiLabelTask | OrdinalTask | RegressionTask | MaskedLMTask | QuestionAnsweringTask,
    Field(discriminator="kind"),
]
ClassTask = ClassificationTask | MultiLabelTask | OrdinalTask
"""Those that name classes."""


def class_names(task: Task) -> list[str]:
    """Return the name of each class in the order of the ids; an empty list where there are no classes.

    Values that a mapping gives the same name are one class; its id is that of the first of them.
    """
    if not isinstance(task, ClassTask):
        return []
    labels = task.labels
    return list(dict.fromkeys(labels.values() if isinstance(labels, dict) else map(str, labels)))


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


class Split(Section):
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


class Figures(Section):
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
    split: Split | None = None
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
    figures: Figures = Field(default_factory=Figures)
    """Pictures of the data."""
    cache_dir: Text | None = None
    """Where token files are kept; $PARATUNE_CACHE, or ~/.cache/paratune, when not given."""


class Model(Section):
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
    """Take the architecture only, with new weights."""
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
    learning_rate: PositiveFloat = 5e-5
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Course of the learning rate after warm-up; linear and cosine end at 0."""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps over which the learning rate rises linearly from 0; or `warmup_ratio`."""
    warmup_ratio: Share | None = None
    """Warm-up as a share of all steps; or `warmup_steps`."""
    weight_decay: NonNegative = 0.01
    """AdamW's decoupled weight decay; biases and norms are left out."""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = Field(default_factory=lambda: [0.9, 0.999])
    """AdamW's decay rates of the two moments."""
    eps: PositiveFloat = 1e-8
    """AdamW's term in the denominator."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this norm when theirs is larger; null leaves them as they are."""
    freeze_encoder: bool = False
    """Train the head alone."""
    activation_checkpointing: Positive | None = None
    """Compute the inside of every block (1) or every n-th one (n) again during backward instead of keeping it: less
    memory for more time, the same gradients. Off when not given."""


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


class Measure(Section):
    """What is measured and logged."""

    warmup_steps: Annotated[int, Field(ge=0)] = 5
    """First steps of a run (and after a resume) that are marked as warm-up and left out of medians and rates."""
    log_every: Positive = 10
    """Steps between two writes of the event log and updates of the progress line."""


class SingleStrategy(Section):
    """One process on one device."""

    kind: Literal["single"]
    """The strategy."""


class DDPStrategy(Section):
    """A whole model in each process; gradients are summed between them during backward."""

    kind: Literal["ddp"]
    """The strategy."""
    bucket_cap_mb: PositiveFloat = 25.0
    """Size in MiB of the pieces in which gradients travel."""
    find_unused_parameters: bool = False
    """Look in each step for parameters without a gradient; needed for models that do not use all of theirs."""


class Zero1Strategy(Section):
    """ZeRO-1: a whole model in each process, the optimizer states of a part of it (ZeroRedundancyOptimizer)."""

    kind: Literal["zero1"]
    """The strategy."""
    bucket_cap_mb: PositiveFloat = 25.0
    """Size in MiB of the pieces in which gradients travel."""
    find_unused_parameters: bool = False
    """Look in each step for parameters without a gradient; needed for models that do not use all of theirs."""


class Zero2Strategy(Section):
    """ZeRO-2 by FSDP2: gradients and optimizer states sharded; weights gathered once a step."""

    kind: Literal["zero2"]
    """The strategy."""
    cpu_offload: bool = False
    """Keep shards of weights, gradients and optimizer states in host memory, and update there; for GPUs."""


class Zero3Strategy(Section):
    """ZeRO-3 by FSDP2: weights, gradients and optimizer states sharded; weights gathered block by block."""

    kind: Literal["zero3"]
    """The strategy."""
    cpu_offload: bool = False
    """Keep shards of weights, gradients and optimizer states in host memory, and update there; for GPUs."""


class HSDPStrategy(Section):
    """ZeRO-3 within groups of ranks, data parallelism between the groups."""

    kind: Literal["hsdp"]
    """The strategy."""
    shard_size: Positive | None = None
    """Ranks that share one copy of the states; those of one node when not given. There must be at least two groups."""
    cpu_offload: bool = False
    """Keep shards of weights, gradients and optimizer states in host memory, and update there; for GPUs."""


class PipelineStrategy(Section):
    """The model's blocks cut into stages, one on each rank, and micro-batches sent through them."""

    kind: Literal["pipeline"]
    """The strategy."""
    stages: Annotated[int, Field(ge=2)] = 2
    """Ranks of one pipeline; as many pipelines as fit into the world size work in data parallel."""
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    """Order of forward and backward passes: GPipe, one forward one backward, or that with several stages a rank."""
    chunks: Annotated[int, Field(ge=2)] | None = None
    """With `schedule: interleaved`: stages on each rank; 2 when not given."""
    balance: Literal["estimated", "measured"] | Annotated[list[Positive], Field(min_length=2)] = "estimated"
    """How blocks are divided: by counted operations, by a measurement at the start, or the blocks of each stage."""


class DeepSpeedStrategy(Section):
    """ZeRO by DeepSpeed (extra `deepspeed`), with offload to the host's memory."""

    kind: Literal["deepspeed"]
    """The strategy."""
    stage: Literal[0, 1, 2, 3] = 2
    """What is sharded: nothing; optimizer states; gradients too; weights too."""
    offload_optimizer: bool = False
    """Keep optimizer states in the host's memory and update there (stages 1 to 3, with a GPU)."""
    offload_parameters: bool = False
    """Keep shards of the weights in the host's memory (stage 3, with a GPU)."""
    cpu_adam: bool = False
    """With `offload_optimizer`: update with DeepSpeed's own AdamW, compiled on first use, instead of PyTorch's."""
    bucket_cap_mb: PositiveFloat | None = None
    """Size in MiB of the pieces in which gradients and weights travel (stages 1 to 3); 100 when not given."""
    param_persistence_threshold: Annotated[int, Field(ge=0)] | None = None
    """Weights with fewer numbers than this stay gathered (stage 3); 100000 when not given."""


class OutsideStrategy(Section):
    """A class of your own, named in full; see docs/strategies.md."""

    kind: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """package.module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


Strategy = (
    SingleStrategy
    | DDPStrategy
    | Zero1Strategy
    | Zero2Strategy
    | Zero3Strategy
    | HSDPStrategy
    | PipelineStrategy
    | DeepSpeedStrategy
    | OutsideStrategy
)
"""Told apart by `kind`."""


def strategy_options(strategy: Section) -> dict[str, Any]:
    """Return the keyword arguments of a strategy's class."""
    if isinstance(strategy, OutsideStrategy):
        return dict(strategy.options)
    return strategy.model_dump(exclude={"kind"})


class Config(Section):
    """A run: one file."""

    run: Run = Field(default_factory=Run)
    """Where the record goes, and the seed."""
    task: Task
    """What is learned."""
    data: Data
    """From which files and columns."""
    model: Model
    """Starting from which model."""
    train: Train
    """The optimization."""
    batch: BatchSize
    """Samples per optimizer step."""
    evaluate: Evaluate = Field(default_factory=Evaluate)
    """Evaluation during training."""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    """Safety against interruption."""
    strategy: Strategy = Field(default_factory=lambda: SingleStrategy(kind="single"))
    """How the work is spread over devices."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp64"] = "fp32"
    """Arithmetic: fp32; tf32 matrix products; fp16 or bf16 autocast with fp32 weights; fp64 for proofs on a CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU when there is one."""
    measure: Measure = Field(default_factory=Measure)
    """Measuring and logging."""


def run_path(config: Config) -> Path:
    """Return the folder of the run; `run.name` must have been resolved."""
    assert config.run.name is not None
    return Path(config.run.folder) / config.run.name

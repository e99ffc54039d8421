"""Options of each task: one class for each kind."""

from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.config.section import CodeName, Finite, OwnCode, Part, Positive, PositiveFloat, Section, Share, Span, Text


class WindowOptions(Section):
    """Windows of texts that are longer than `data.max_length`. Each output of a text is pooled over its windows."""

    pooling: Literal["mean", "max"] = "mean"
    """Mean or maximum of each output over the windows, before the loss."""
    stride: Annotated[int, Field(ge=0)] = 0
    """Tokens that two neighbouring windows share."""
    max_windows: Positive = 8
    """Most windows of a text; its text behind them is truncated."""


_WINDOWS = """Cut texts that are longer than `data.max_length` into windows, and pool their outputs; null: truncate such
texts. See docs/howto/long_documents.md."""
Windows = Annotated[WindowOptions | None, Field(description=_WINDOWS)]
_OWN_LOSS = "Your own loss of each row, in place of the usual one; see docs/howto/extend.md."
OwnLoss = Annotated[OwnCode | None, Field(description=_OWN_LOSS)]


class ClassificationTask(Section):
    """One of several classes for each text or pair of texts."""

    kind: Literal["classification"]
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data in the order of their ids, or a mapping of each value to the name to show for it."""
    glue: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli"] | None = None
    """Task of GLUE, in any language: sets `kind`, `labels` and the columns that the file does not set; see
    docs/howto/glue.md."""
    class_weights: list[PositiveFloat] | dict[str | int, PositiveFloat] | Literal["balanced"] | None = None
    """Weight of each class in the loss: in the order of the ids, or by class name; balanced: rows / (classes * rows of
    the class), from the training data. See docs/howto/imbalance.md."""
    label_smoothing: Share = 0.0
    """Share of the target that is spread evenly over all classes."""
    focal_gamma: PositiveFloat | None = None
    """Exponent of the focal loss, which reduces the loss of rows that are predicted well; 2 is usual. null: the
    cross-entropy."""
    windows: Windows = None
    loss: OwnLoss = None

    @property
    def has_plain_loss(self) -> bool:
        """Whether the loss is the cross-entropy without weights and smoothing."""
        return self.class_weights is None and not self.label_smoothing and self.focal_gamma is None


class MultiLabelTask(Section):
    """Any number of classes for each text or pair of texts, also none."""

    kind: Literal["multi_label"]
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data in the order of their ids, or a mapping of each value to the name to show for it."""
    separator: Text = "|"
    """Text between the labels of a row, for a column of text; a column of lists needs none."""
    threshold: Part = 0.5
    """Smallest probability with which a class is predicted."""
    windows: Windows = None
    loss: OwnLoss = None


class OrdinalTask(Section):
    """One of several ordered classes, such as grades, for each text or pair of texts."""

    kind: Literal["ordinal"]
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data from the lowest to the highest, or a mapping of each value to the name to show for
    it."""
    windows: Windows = None
    loss: OwnLoss = None


class RegressionTask(Section):
    """A number for each text or pair of texts, trained with the mean squared error."""

    kind: Literal["regression"]
    start_at_mean: bool = False
    """Set the bias of a new head to the mean of the training targets. This saves steps if the targets are far from 0. A
    model with a trained head is refused."""
    glue: Literal["stsb"] | None = None
    """Task of GLUE, in any language: sets `kind` and the columns that the file does not set; see docs/howto/glue.md."""
    round_to: PositiveFloat | None = None
    """Step of the scale of reported scores, such as 0.5 for half bands. Prediction files have the rounded and the raw
    value; agreement and kappa use the rounded one."""
    range: Span | None = None
    """Lowest and highest score, such as [0, 9]. Reported values are clipped to it; targets outside are an error."""
    grades: Annotated[list[Finite], Field(min_length=3, max_length=3)] | None = None
    """Lowest grade, highest grade and step, such as [0, 9, 0.5], on which agreement and kappa are computed, for a task
    without `round_to`; null: those of the training targets, if all are multiples of 1 or of 0.5."""
    targets: Annotated[list[Text], Field(min_length=2)] | None = None
    """Names of several targets, each an output of the model; null: the columns, if data.columns.label is a list."""
    raters: Literal["mean", "each"] | None = None
    """The columns of data.columns.label are raters of one target; an empty field: did not rate. mean: a text is trained
    on the mean of its raters; each: once with the score of each. Other sets have the mean. null: they are targets."""
    windows: Windows = None
    loss: OwnLoss = None


class MaskedLMTask(Section):
    """Masked language modelling: the model predicts hidden tokens of running text."""

    kind: Literal["mlm"]
    mask_probability: Part = 0.15
    """Share of the tokens of a window that are hidden."""
    whole_words: bool = False
    """Hide whole words, with all their tokens, instead of single tokens; needs a fast tokenizer."""
    windows: Literal["joined", "separate", "documents"] = "joined"
    """joined: documents are concatenated and cut into windows of data.max_length; separate: pieces of documents fill
    such windows, and each piece attends only to itself; documents: each document is one window and is truncated to that
    length (a line of a .txt file is a document)."""


class QuestionAnsweringTask(Section):
    """Extractive question answering, as in SQuAD: the model selects the part of a context that answers a question."""

    kind: Literal["qa"]
    stride: Annotated[int, Field(ge=0)] = 128
    """Tokens that two neighbouring windows share, for a context that does not fit into `data.max_length`."""
    max_answer_tokens: Positive = 30
    """Maximum number of tokens of an answer."""
    num_best: Positive = 20
    """Number of answers kept for each window."""
    unanswerable: bool | None = None
    """Whether a question may have no answer in its context (SQuAD 2.0); null: yes when train or validation has such a
    question."""
    null_threshold: Finite | None = None
    """Threshold: a question counts as unanswerable when the score of "no answer" minus the score of its best answer is
    larger. Default: the threshold with the best F1 on the validation set."""
    articles: list[Text] = Field(default_factory=lambda: ["a", "an", "the"])
    """Words that are removed before an answer is compared with a gold answer; default: the English articles, as in
    SQuAD."""


class TokenClassificationTask(Section):
    """A tag for each word of a text, such as named entities or parts of speech."""

    kind: Literal["token_classification"]
    labels: list[Text] | dict[str | int, Text]
    """The tags in the order of their ids, such as [O, B-PER, I-PER], or a mapping of each value to its tag; numbers in
    the data that no value equals are positions in the list."""
    scheme: Literal["iob2", "none"] = "iob2"
    """iob2: tags mark entities: B- the first word of an entity, I- its other words, O a word outside of entities; none:
    tags are classes of words, such as parts of speech."""
    strict: bool = False
    """For an I- tag that does not follow a B- or I- tag of its type. true: the tag is part of no entity; false: it
    begins an entity, as in seqeval."""


class MultipleChoiceTask(Section):
    """One right choice among several for each text; rows may have different numbers of choices."""

    kind: Literal["multiple_choice"]
    label_format: Literal["index", "number", "letter", "name", "text"] | None = None
    """What the column `label` has: index: 0 for the first choice; number: 1 for the first choice; letter: A for the
    first choice; name: the name of a column of `data.columns.choices`; text: the text of the choice. null: found in the
    training data."""


class EmbeddingTask(Section):
    """A vector for each text, trained on pairs or triplets of texts, for search and comparison by the cosine of two
    vectors."""

    kind: Literal["embedding"]
    loss: Literal["multiple_negatives_ranking", "cosine_similarity", "triplet", "contrastive"] = (
        "multiple_negatives_ranking"
    )
    """multiple_negatives_ranking: pairs or triplets; a sample's pair must be more similar than the texts of the other
    samples of its group. cosine_similarity: pairs with a score. triplet: triplets. contrastive: pairs with a label, 1
    for related and 0 for unrelated texts. See docs/howto/embeddings.md."""
    pooling: Literal["mean", "cls"] = "mean"
    """The vector of a text: mean: the mean over its tokens; cls: the first token."""
    normalize: bool = False
    """Whether vectors are divided by their length. Cosines do not change; distances of triplets do."""
    group_size: Annotated[int, Field(ge=2)] = 16
    """multiple_negatives_ranking: samples whose texts are each other's negatives: consecutive samples in the order of
    the epoch, always in one micro-batch, so that the loss does not depend on the number of processes. `batch.global`
    and `batch.micro_batch_size` must be multiples of it."""
    scale: PositiveFloat = 20.0
    """multiple_negatives_ranking: factor of the cosines before the softmax."""
    margin: PositiveFloat | None = None
    """triplet: by how much the negative must be farther away than the positive, as a Euclidean distance (default: 5).
    contrastive: smallest cosine distance of unrelated texts without loss (default: 0.5)."""
    score_range: Span | None = Field(default_factory=lambda: [0.0, 1.0])
    """cosine_similarity: the scores of the data that stand for the cosines 0 and 1, such as [0, 5] for STS. null: the
    lowest and the highest score of the training data."""


class OwnTask(Section):
    """A task of your own: a class outside the package that reads the data, computes the loss and the scores."""

    kind: Literal["own"]
    recipe: CodeName
    """package.module:Class, a subclass of paratune.tasks.own.OwnRecipe; see docs/howto/extend.md."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""
    num_outputs: Positive = 1
    """Outputs of the head for each text."""
    scores: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]] = Field(default_factory=list)
    """Names of the scores that the class computes, such as [hit_rate], called own_hit_rate in `evaluate.best` and in
    records. A name ends in _error, _loss or _deviance if smaller values are better, and otherwise it does not."""


Task = Annotated[
    ClassificationTask
    | MultiLabelTask
    | OrdinalTask
    | RegressionTask
    | MaskedLMTask
    | QuestionAnsweringTask
    | TokenClassificationTask
    | MultipleChoiceTask
    | EmbeddingTask
    | OwnTask,
    Field(discriminator="kind"),
]

ClassTask = ClassificationTask | MultiLabelTask | OrdinalTask
"""Tasks with classes."""


def cuts_windows(task: Task) -> bool:
    """Return whether samples are windows of rows, whose number is known only after tokenizing."""
    return isinstance(task, MaskedLMTask | QuestionAnsweringTask)


def group_size(task: Task) -> int:
    """Return the number of consecutive samples that must be in one micro-batch; 1 where the loss is of each sample."""
    is_grouped = isinstance(task, EmbeddingTask) and task.loss == "multiple_negatives_ranking"
    return task.group_size if is_grouped else 1  # type: ignore[union-attr]


def class_names(task: Task) -> list[str]:
    """Return the names of the classes in the order of their ids; an empty list for a task without classes.

    Values with the same name in a mapping are one class.
    """
    if not isinstance(task, ClassTask | TokenClassificationTask):
        return []
    labels = task.labels
    return list(dict.fromkeys(labels.values() if isinstance(labels, dict) else map(str, labels)))

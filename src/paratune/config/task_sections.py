"""What a run can learn: one class a task, chosen by `kind`; no torch."""

from typing import Annotated, Literal

from pydantic import Field

from paratune.config.section import Finite, Part, Positive, PositiveFloat, Section, Text


class ClassificationTask(Section):
    """One of several classes for each text or pair of texts."""

    kind: Literal["classification"]
    """The task."""
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data in the order of their ids, or a mapping of each value to the name to show for it."""
    glue: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli"] | None = None
    """Task of GLUE that this is, in any language: gives the kind, labels and columns that are not said; see
    docs/howto/glue.md."""


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
    """Task of GLUE, in any language: sets `kind` and the columns that the file does not set; see docs/howto/glue.md."""
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

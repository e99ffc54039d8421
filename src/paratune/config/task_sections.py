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
    """Task of GLUE, in any language: sets `kind`, `labels` and the columns that the file does not set; see
    docs/howto/glue.md."""


class MultiLabelTask(Section):
    """Any number of classes for each text or pair of texts, or none."""

    kind: Literal["multi_label"]
    """The task."""
    labels: list[str | int] | dict[str | int, str]
    """The label values of the data in the order of their ids, or a mapping of each value to the name to show for it."""
    separator: Text = "|"
    """Text between the labels of a row, for a column of text; a column of lists needs none."""
    threshold: Part = 0.5
    """Smallest probability with which a class is predicted."""


class OrdinalTask(Section):
    """One of several ordered classes, such as grades, for each text or pair of texts."""

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
    """Set the bias of a new head to the mean of the training targets, so that the first steps are not spent on targets
    far from 0. A model with a trained head is refused."""
    glue: Literal["stsb"] | None = None
    """Task of GLUE, in any language: sets `kind` and the columns that the file does not set; see docs/howto/glue.md."""
    round_to: PositiveFloat | None = None
    """Step of the scale of reported scores, such as 0.5 for half bands. Prediction files have the rounded and the raw
    value; agreement and kappa use the rounded one."""
    range: Annotated[list[Finite], Field(min_length=2, max_length=2)] | None = None
    """Lowest and highest score, such as [0, 9]. Reported values are clipped to it; targets outside are an error."""


class MaskedLMTask(Section):
    """Masked language modelling: the model predicts hidden tokens of running text."""

    kind: Literal["mlm"]
    """The task."""
    mask_probability: Part = 0.15
    """Share of the tokens of a window that are hidden."""
    whole_words: bool = False
    """Hide whole words, with all their tokens, instead of single tokens; needs a fast tokenizer."""
    windows: Literal["joined", "documents"] = "joined"
    """joined: documents are concatenated and cut into windows of data.max_length; documents: each document is one
    window and is truncated to that length (a line of a .txt file is a document)."""


class QuestionAnsweringTask(Section):
    """Extractive question answering, as in SQuAD: the model selects the part of a context that answers a question."""

    kind: Literal["qa"]
    """The task."""
    stride: Annotated[int, Field(ge=0)] = 128
    """Tokens that two neighbouring windows share, for a context that does not fit into `data.max_length`."""
    max_answer_tokens: Positive = 30
    """Maximum number of tokens of an answer."""
    num_best: Positive = 20
    """Number of answers kept for each window, and for each question in nbest files."""
    unanswerable: bool | None = None
    """Whether a question may have no answer in its context (SQuAD 2.0); null: yes when train or validation has such a
    question."""
    null_threshold: Finite | None = None
    """A question counts as unanswerable when the score of "no answer" exceeds the score of its best answer by more than
    this; default: the threshold with the best F1 on the validation set."""
    articles: list[Text] = Field(default_factory=lambda: ["a", "an", "the"])
    """Words that are removed before an answer is compared with a gold answer; default: the English articles, as in
    SQuAD."""


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

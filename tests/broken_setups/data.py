"""Set-ups with faults in their files: columns, labels, splits, lengths, numbers of rows."""

import shutil

from broken_setups.changes import edit_json
from set_ups import Case, SetUp, on_site, rows, sentence, with_gpus


def labelled(set_up: SetUp, name: str, labels: dict[str, str]) -> None:
    set_up.csv(name, [{**row, "label": labels[row["label"]]} for row in rows(80)])


def renamed_file(set_up):
    (set_up.folder / "data" / "train.csv").rename(set_up.folder / "data" / "trainn.csv")


def capital_column(set_up):
    set_up.csv("train.csv", [{"Text": row["text"], "label": row["label"]} for row in rows(80)])
    set_up.csv("validation.csv", [{"Text": row["text"], "label": row["label"]} for row in rows(20, 1000)])
    set_up.csv("test.csv", [{"Text": row["text"], "label": row["label"]} for row in rows(20, 2000)])


def capital_slice(set_up):
    for name in ("train", "validation", "test"):
        only = (set_up.folder / "data" / f"{name}.csv").is_file()
        if only:
            set_up.csv(
                f"{name}.csv", [{**row, "topic": "ab"[n % 2]} for n, row in enumerate(rows(20, 1000 * len(name)))]
            )
    set_up.set("evaluate.slices", ["Topic", "length"])


def id_as_text(set_up):
    for name, first in (("train", 0), ("validation", 1000), ("test", 2000)):
        set_up.csv(f"{name}.csv", [{"uid": f"t{first + n:05d}", **row} for n, row in enumerate(rows(40, first))])
    set_up.set("data.columns.text", "uid")


def numbers_as_text(set_up):
    for name, first in (("train", 0), ("validation", 1000), ("test", 2000)):
        set_up.csv(f"{name}.csv", [{"idx": first + n, **row} for n, row in enumerate(rows(40, first))])
    set_up.set("data.columns.text", "idx")


def capital_labels(set_up):
    for name in ("train", "validation", "test"):
        labelled(set_up, f"{name}.csv", {"negative": "Negative", "positive": "Positive"})
    only_train(set_up)


def only_train(set_up):
    set_up.set("data.validation", None)
    set_up.set("data.test", None)


def third_label(set_up):
    set_up.csv("train.csv", [*rows(80), {"text": sentence(900), "label": "neutral"}])


def scores_as_classes(set_up):
    only_train(set_up)
    set_up.csv("train.csv", [{"text": row["text"], "label": n / 7} for n, row in enumerate(rows(80))])


def absent_label(set_up):
    set_up.set("task.labels", ["negative", "positive", "neutral"])


def other_label_order(set_up):
    edit_json(
        set_up.model / "config.json",
        id2label={"0": "positive", "1": "negative"},
        label2id={"positive": 0, "negative": 1},
    )


def index_as_target(set_up):
    only_train(set_up)
    set_up.config["task"] = {"kind": "regression"}
    set_up.set("data.columns.label", "index")
    set_up.csv("train.csv", [{"text": row["text"], "index": n, "score": n % 7} for n, row in enumerate(rows(80))])


def empty_texts(set_up):
    set_up.csv("train.csv", [*rows(80), {"text": "", "label": "negative"}])


def same_test(set_up):
    set_up.set("data.test", set_up.config["data"]["validation"])


def copied_test(set_up):
    shutil.copy(set_up.folder / "data" / "validation.csv", set_up.folder / "data" / "test.csv")


def validation_is_train(set_up):
    set_up.set("data.validation", set_up.config["data"]["train"])


def leaked(set_up):
    set_up.csv("test.csv", [*rows(10), *rows(10, 2000)])


def conflicting(set_up):
    set_up.csv("train.csv", [*rows(40), *({**row, "label": "negative"} for row in rows(40))])


def too_short(set_up):
    set_up.set("data.max_length", 8)


def large_batch(set_up):
    set_up.set("batch.global", 4096)


def few_rows(set_up):
    with_gpus(set_up, 8)
    set_up.csv("train.csv", rows(4))


def rare_class(set_up):
    set_up.set("evaluate.best", "accuracy")
    set_up.csv("train.csv", [{**row, "label": "positive" if n == 0 else "negative"} for n, row in enumerate(rows(80))])


def bad_answers(set_up):
    only_train(set_up)
    set_up.config["task"] = {"kind": "qa", "stride": 8}
    set_up.config["data"]["columns"] = {"text": "q", "text_pair": "c", "label": "a", "answer_start": "s", "id": None}
    good = [{"q": f"what is {n}", "c": sentence(n), "a": sentence(n).split()[1], "s": 0} for n in range(20)]
    for row in good:
        row["s"] = row["c"].index(row["a"])
    good[3]["s"] = 999
    set_up.csv("train.csv", good)


def scores_as_text(set_up):
    only_train(set_up)
    set_up.csv("train.csv", [{**row, "score": n % 5} for n, row in enumerate(rows(80))])
    set_up.set("data.columns.text", "score")


CASES = [
    Case("data_file", "FileNotFoundError after hours in the queue", renamed_file),
    Case(
        "data_column",
        "transformers#27618: KeyError for a column with a different spelling",
        capital_column,
        line="data.columns.text: Text",
    ),
    Case(
        "data_column",
        "a slice column with a different spelling",
        capital_slice,
        line="evaluate.slices: [topic, length]",
    ),
    Case(
        "text_is_id",
        "an id column was used as the text: the model memorised the ids",
        id_as_text,
        line="data.columns.text: text",
    ),
    Case("text_is_id", "an index was used as the text", numbers_as_text, line="data.columns.text: text"),
    Case(
        "label_unknown",
        "transformers#13334: labels whose names differ in case",
        capital_labels,
        line="task.labels: [Negative, Positive]",
    ),
    Case(
        "label_unknown",
        "CUDA device-side assert: a label outside the head's range",
        third_label,
        line="task.labels: [negative, neutral, positive]",
    ),
    Case(
        "label_unknown",
        "regression targets were learned as classes",
        scores_as_classes,
        line="task: {kind: regression}",
        after=lambda s: s.config.update(task={"kind": "regression"}),
    ),
    Case(
        "label_absent",
        "num_labels=3 for a file with two labels",
        absent_label,
        after=lambda s: s.set("task.labels", ["negative", "positive"]),
    ),
    Case(
        "label_order",
        "transformers#10401: MNLI at 4.3% instead of 90.6%, because of swapped label ids",
        other_label_order,
        line="task.labels: [positive, negative]",
    ),
    Case(
        "label_is_index",
        "the column idx of GLUE was used as the target",
        index_as_target,
        after=lambda s: s.set("data.columns.label", "score"),
    ),
    Case(
        "missing_values",
        "transformers#25054: rows without a text stopped the run",
        empty_texts,
        line="data.missing: drop",
    ),
    Case("test_is_validation", "the test set was the validation set", same_test, line="data.test: null"),
    Case("test_is_validation", "the test file was a copy of the validation file", copied_test),
    Case(
        "test_is_train",
        "evaluated on the training set",
        validation_is_train,
        after=lambda s: (s.set("data.validation", None), s.set("data.split", {"validation": 0.1})),
    ),
    Case(
        "parts_overlap",
        "rows of the test set in the training set",
        leaked,
        after=lambda s: s.csv("test.csv", rows(20, 2000)),
    ),
    Case("label_conflict", "the same text with both labels", conflicting, after=lambda s: s.csv("train.csv", rows(80))),
    Case("truncated", "essays truncated to 128 tokens without a warning", too_short),
    Case("batch_too_large", "a batch larger than the data: one step per epoch", large_batch),
    Case("too_few_rows", "DistributedSampler padded 4 rows to 8 ranks (pytorch#25162)", few_rows),
    Case("accuracy_of_rare", "98% accuracy from always predicting no", rare_class, line="evaluate.best: f1_macro"),
    Case(
        "missing_values",
        "transformers#8710: answers that are not at their position",
        bad_answers,
        line="data.missing: drop",
    ),
    Case("data_value", "a column of scores was named as the text", scores_as_text, line="data.columns.text: text"),
    Case(
        "data_on_hub",
        "datasets that need the network on a compute node",
        lambda s: (
            on_site(s, no_network=True),
            s.set("data.train", "hub:someone/reviews"),
        ),
        after=lambda s: s.set("data.train", str(s.folder / "data" / "train.csv")),
    ),
]

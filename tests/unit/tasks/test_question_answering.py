"""The recipe of question answering: from files to scores, thresholds and prediction files."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from raised import check_logged, raises_code
from tiny import VOCABULARY, tiny_config, tiny_tokenizer
from tiny_questions import squad, tiny_qa_model, write_squad
from transformers import (
    AutoModelForQuestionAnswering,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    ModernBertConfig,
    RobertaConfig,
)

from paratune.config.sections import Columns, Data, MaxRows, ModelOptions
from paratune.config.task_sections import QuestionAnsweringTask
from paratune.data.encode import BOUNDS, TokenizeOptions
from paratune.data.load import Split
from paratune.data.loader import eval_batches
from paratune.data.read import read_table
from paratune.engine.evaluate import evaluate
from paratune.infer.trained import ForwardOnly
from paratune.precision import POLICIES
from paratune.tasks import load_extra_splits, make_recipe, question_answering
from paratune.tasks.question_answering import QuestionAnsweringRecipe, best_answers

COLUMNS = Columns(text="question", text_pair="context", label="answers", id="id")
CPU = torch.device("cpu")
TOKENIZER = tiny_tokenizer()


def recipe(**options: Any) -> QuestionAnsweringRecipe:
    return QuestionAnsweringRecipe(QuestionAnsweringTask(kind="qa", **{"stride": 4, "num_best": 5, **options}))


@pytest.fixture
def how(tmp_path: Path) -> TokenizeOptions:
    return TokenizeOptions(tiny_tokenizer(), 16, need_token_type_ids=True, cache_dir=tmp_path / "cache")


def load(recipe: QuestionAnsweringRecipe, how: TokenizeOptions, path: Path, **options: Any) -> dict[str, Split]:
    data = Data(train=str(path), columns=COLUMNS, **options)
    return recipe.load_splits(data, how)


def oracle(split: Split, *, null: float = 0.0) -> np.ndarray[Any, Any]:
    """Return outputs with the right answer, whose logits are larger by 5 than others; "no answer" has `null`."""
    from paratune.data.questions import answer_tokens

    assert split.samples.answers is not None
    positions = answer_tokens(split.store, split.samples.answers)
    bounds = split.store.row_values[BOUNDS]
    rows = []
    for (first, last), (empty, begin, _) in zip(positions.tolist(), bounds.tolist(), strict=True):
        span = (first, last) if first != empty else (begin, begin)
        logit = 5.0 if first != empty else -5.0
        rows.append([logit, -np.inf, logit, -np.inf, span[0], -1, span[1], -1, null, null])
    return np.asarray(rows, dtype=np.float32)


def test_a_recipe_is_found_by_its_kind():
    task = QuestionAnsweringTask(kind="qa")
    made = make_recipe(task)
    assert isinstance(made, QuestionAnsweringRecipe)
    assert made.task is task
    assert made.names == []


def test_the_data_determines_whether_questions_may_lack_answers(how: TokenizeOptions, tmp_path: Path):
    made = recipe()
    load(made, how, write_squad(tmp_path / "a.json", 20))
    assert made.task.unanswerable is True
    made = recipe()
    load(made, how, write_squad(tmp_path / "b.json", 20, answerable=1.0))
    assert made.task.unanswerable is False


def write_misplaced(path: Path, change: Any) -> Path:
    """Write 20 contexts with 4 answered questions each; `change` gets number and answer, and returns the answers."""
    value = squad(80, answerable=1.0)
    items = [item for article in value["data"] for item in article["paragraphs"]]
    for number, qa in enumerate(qa for item in items for qa in item["qas"]):
        qa["answers"] = change(number, qa["answers"][0])
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def moved(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "answer_start": answer["answer_start"] + 1}


def test_a_misplaced_second_answer_keeps_its_question_in_all_splits(how: TokenizeOptions, tmp_path: Path):
    path = write_misplaced(tmp_path / "a.json", lambda number, gold: [gold] + [moved(gold)] * (number % 4 == 0))
    splits = load(recipe(), how, path, test=str(path), split={"validation": 0.5})
    counts = {name: (split.num_rows, split.num_dropped) for name, split in splits.items()}
    assert counts == {"train": (40, {}), "validation": (40, {}), "test": (80, {})}


def test_wrong_positions_change_no_score_of_an_evaluation_set(how: TokenizeOptions, tmp_path: Path):
    right = write_misplaced(tmp_path / "right.json", lambda number, gold: [gold])
    wrong = write_misplaced(tmp_path / "wrong.json", lambda number, gold: [moved(gold)])
    with raises_code("data.question_unusable", "80 of 80"):
        load(recipe(), how, wrong)
    with raises_code("data.empty"):
        load(recipe(), how, wrong, missing="drop")
    results = {}
    for path in (right, wrong):
        made = recipe()
        split = load(made, how, right, validation=str(path))["validation"]
        found = made.scores(split, oracle(split))
        results[path.stem] = (split.num_rows, found, made._positions(split).tolist())
    assert results["wrong"] == results["right"]
    assert results["wrong"][:2] == (80, found)
    assert found["exact"] == 100.0


def test_a_file_of_version_2_is_an_error_where_answers_are_required(how: TokenizeOptions, tmp_path: Path):
    path = write_squad(tmp_path / "a.json", 20)
    with raises_code("data.question_unusable", "task.unanswerable"):
        load(recipe(unanswerable=False), how, path)
    (split,) = load(recipe(unanswerable=False), how, path, missing="drop").values()
    assert split.num_dropped == {"an answer": 20 - split.num_rows}
    assert all(split.samples.answers or ())


def test_test_and_extra_sets_do_not_determine_whether_answers_may_be_absent(how: TokenizeOptions, tmp_path: Path):
    every = write_squad(tmp_path / "every.json", 20, answerable=1.0)
    some = write_squad(tmp_path / "some.json", 20, seed=1)
    lacking = sum(not qa["answers"] for item in squad(20, seed=1)["data"][0]["paragraphs"] for qa in item["qas"])
    refused = ("data.question_unusable", "some.json", f"{lacking} of 20")
    with raises_code(*refused):
        load(recipe(), how, every, test=str(some))
    made = recipe()
    splits = load(made, how, every, test=str(some), missing="drop")
    assert made.task.unanswerable is False
    assert splits["test"].num_rows == 20 - lacking
    assert splits["test"].num_dropped == {"an answer": lacking}
    data = Data(train=str(every), extra={"other": str(some)}, columns=COLUMNS)
    with raises_code(*refused):
        load_extra_splits(made, data, how)
    assert load(recipe(unanswerable=True), how, every, test=str(some))["test"].num_rows == 20
    made = recipe()
    load(made, how, every, validation=str(some), test=str(some))
    assert made.task.unanswerable is True


def test_shared_contexts_have_a_warning(how: TokenizeOptions, tmp_path: Path):
    made, path = recipe(), write_squad(tmp_path / "a.json", 40)
    splits = load(made, how, path, split={"validation": 0.5})
    ((warning, extra),) = made.warnings(splits)
    assert extra["code"] == "data.contexts_shared"
    assert "questions of validation" in warning
    assert "a context that is also in train; data.split.group_by: context keeps them apart" in warning
    assert made.warnings(load(made, how, path, split={"validation": 0.5, "group_by": "context"})) == []


def test_unreachable_answers_have_a_warning(how: TokenizeOptions, tmp_path: Path):
    context = "one two three four five six seven eight nine ten"
    question = {"id": "1", "question": "x", "answers": [{"text": context, "answer_start": 0}]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]}))
    made = recipe()
    ((warning, extra),) = made.warnings(load(made, replace(how, max_length=12), path))
    assert extra["code"] == "data.answers_cut"
    assert "1 of 1 questions have an answer that no window has whole" in warning


@pytest.mark.parametrize(("ids", "expected_text"), [(["a", "b", "a"], "(a)"), (["a", None, "b"], "row 1")])
def test_a_set_to_predict_needs_unique_ids(ids: list[Any], expected_text: str, how: TokenizeOptions, tmp_path: Path):
    rows = [{"id": name, "question": "film was?", "context": "the film was one"} for name in ids]
    path = tmp_path / "in.json"
    path.write_text(json.dumps(rows))
    data = Data(train="train.json", predict={"asked": str(path)}, columns=COLUMNS)
    with raises_code("data.predict_unfit", expected_text, "data.predict.asked", "in.json", "data.columns.id: null"):
        load_extra_splits(recipe(), data, how)
    columns = COLUMNS.model_copy(update={"id": None})
    assert load_extra_splits(recipe(), data.model_copy(update={"columns": columns}), how)["asked"].num_rows == 3


def test_max_rows_draws_questions(how: TokenizeOptions, tmp_path: Path):
    (split,) = load(recipe(), how, write_squad(tmp_path / "a.json", 20), max_rows=MaxRows(train=7)).values()
    assert split.num_rows == len(split.samples.answers or ()) == 7
    assert split.num_samples > 7


def test_the_fingerprint_depends_on_answers(how: TokenizeOptions, tmp_path: Path):
    value = squad(10)
    (first,) = load(recipe(), how, write_squad(tmp_path / "a.json", 10)).values()
    answered = next(qa for item in value["data"][0]["paragraphs"] for qa in item["qas"] if qa["answers"])
    answered["answers"] *= 2
    (tmp_path / "b.json").write_text(json.dumps(value))
    (second,) = load(recipe(), how, tmp_path / "b.json").values()
    assert first.store.fingerprint == second.store.fingerprint
    assert first.fingerprint != second.fingerprint


def test_an_oracle_has_perfect_scores(how: TokenizeOptions, tmp_path: Path):
    made = recipe()
    (split,) = load(made, how, write_squad(tmp_path / "a.json", 30)).values()
    scores = made.scores(split, oracle(split))
    assert scores == dict.fromkeys(scores, 100.0)
    details = made.details(split, oracle(split))["answers"]
    assert details["num_with_answer"] + details["num_without_answer"] == 30
    # Odds are -10 where there is an answer and 10 where there is none; the last that gains is -10.
    assert details["null_threshold"] == details["best_f1_thresh"] == details["best_exact_thresh"] == -10


def test_the_threshold_of_the_validation_set_is_used(how: TokenizeOptions, tmp_path: Path, caplog: Any):
    made = recipe()
    (split,) = load(made, how, write_squad(tmp_path / "a.json", 30)).values()
    shifted = oracle(split, null=8.0)  # odds of 6 and 26
    tuned = made.tuned((split, shifted))
    assert tuned.task.null_threshold == 6
    assert tuned.task.unanswerable is True
    assert made.task.null_threshold is None
    # By that threshold the first of these would be answered, by their own all is right.
    assert tuned.scores(split, oracle(split))["no_answer_f1"] == 100
    higher = oracle(split, null=8.5)
    assert made.scores(split, higher)["has_answer_f1"] == 100
    assert tuned.scores(split, higher)["has_answer_f1"] == 0
    assert tuned.tuned((split, higher)) is tuned
    fixed = recipe(null_threshold=0.5, unanswerable=True)
    assert fixed.tuned((split, shifted)) is fixed
    with caplog.at_level(logging.WARNING):
        assert made.tuned(None).task.null_threshold == 0
    check_logged(caplog, "task.null_threshold", "0")


def test_nan_outputs_have_no_scores(how: TokenizeOptions, tmp_path: Path):
    made = recipe()
    (split,) = load(made, how, write_squad(tmp_path / "a.json", 10)).values()
    nothing = np.full((split.num_samples, 22), np.nan, dtype=np.float32)
    assert set(made.scores(split, nothing).values()) == {None}
    assert made.details(split, nothing) == {}
    assert made.tuned((split, nothing)).task.null_threshold == 0


def test_files_of_a_run_have_the_official_layout(how: TokenizeOptions, tmp_path: Path):
    made = recipe()
    (split,) = load(made, how, write_squad(tmp_path / "a.json", 12)).values()
    made.write_predictions(tmp_path, split, oracle(split), TOKENIZER)
    golds = {gold[0].text if gold else "" for gold in split.samples.answers or ()}
    odds = json.loads((tmp_path / "null_odds_train.json").read_text())
    answers = json.loads((tmp_path / "predictions.train.json").read_text())
    assert list(answers) == list(odds) == split.samples.ids
    assert set(answers.values()) == golds
    assert set(odds.values()) == {-10.0, 10.0}
    rows = pq.read_table(tmp_path / "predictions.train.parquet").to_pylist()
    assert [row["prediction"] for row in rows] == [row["label"] for row in rows] == list(answers.values())
    assert {row["exact"] for row in rows} == {row["f1"] for row in rows} == {1.0}
    assert list(rows[0]) == ["index", "id", "label", "prediction", "exact", "f1", "null_odds"]


def test_best_answers_are_computed_once(how: TokenizeOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, calls = recipe(), []
    splits = load(made, how, write_squad(tmp_path / "a.json", 24), split={"validation": 0.5})

    def counted(split: Split, outputs: Any) -> Any:
        calls.append(split.name)
        return best_answers(split, outputs)

    monkeypatch.setattr(question_answering, "best_answers", counted)
    outputs = oracle(splits["validation"])
    tuned = made.tuned((splits["validation"], outputs))
    tuned.scores(splits["validation"], outputs)
    tuned.details(splits["validation"], outputs)
    tuned.write_predictions(tmp_path, splits["validation"], outputs, TOKENIZER)
    tuned.scores(splits["train"], oracle(splits["train"]))
    assert tuned.scores(splits["validation"], oracle(splits["validation"], null=99.0))["has_answer_f1"] == 0
    assert calls == ["validation", "train", "validation"]


def test_several_files_are_one_set(how: TokenizeOptions, tmp_path: Path):
    files = [str(write_squad(tmp_path / f"{seed}.json", 10, seed=seed)) for seed in (1, 2)]
    data = Data(train=files, columns=COLUMNS)
    made = recipe()
    (split,) = made.load_splits(data, how).values()
    made.write_predictions(tmp_path, split, oracle(split), TOKENIZER)
    rows = pq.read_table(tmp_path / "predictions.train.parquet").to_pylist()
    assert [row["source"] for row in rows] == [file for file in files for _ in range(10)]
    assert [row["index"] for row in rows] == [*range(10), *range(10)]
    assert [row["id"] for row in rows[9:11]] == ["1-9", "2-0"]
    # Rows of the files have the same numbers.
    nameless = COLUMNS.model_copy(update={"id": None})
    (split,) = recipe().load_splits(data.model_copy(update={"columns": nameless}), how).values()
    made.write_predictions(tmp_path, split, oracle(split), TOKENIZER)
    answers = json.loads((tmp_path / "predictions.train.json").read_text())
    assert list(answers) == [f"{file}:{row}" for file in files for row in range(10)]
    twice = Data(train=[files[0], str(write_squad(tmp_path / "again.json", 10, seed=1))], columns=COLUMNS)
    with raises_code("data.id_twice", "1", "0"):
        recipe().load_splits(twice, how)


def test_without_unanswerable_questions_there_are_no_odds(how: TokenizeOptions, tmp_path: Path):
    made = recipe()
    (split,) = load(made, how, write_squad(tmp_path / "a.json", 12, answerable=1.0)).values()
    outputs = oracle(split, null=99.0)
    made.write_predictions(tmp_path, split, outputs, TOKENIZER)
    assert not (tmp_path / "null_odds_train.json").exists()
    assert "" not in json.loads((tmp_path / "predictions.train.json").read_text()).values()
    assert made.scores(split, outputs)["exact"] == 100
    assert made.scores(split, outputs)["best_f1"] is None
    assert made.tuned((split, outputs)).task.null_threshold is None


def test_prediction_does_not_need_answers(how: TokenizeOptions, tmp_path: Path):
    table = read_table(str(write_squad(tmp_path / "a.json", 12)))
    made = recipe(unanswerable=True, null_threshold=0.0)
    known = made.load_split("a.json", table, COLUMNS, how, missing="refuse", require_labels=True)
    split = made.load_split("a.json", table.drop(["answers"]), COLUMNS, how, missing="drop", require_labels=False)
    columns = made.prediction_columns(split, oracle(known), TOKENIZER)
    assert list(columns) == made.prediction_names() == ["prediction", "null_odds", "best_answer"]
    assert columns["prediction"] == [gold[0].text if gold else "" for gold in known.samples.answers or ()]
    assert "" not in columns["best_answer"]
    assert made.document(split, oracle(known)) == dict(zip(known.samples.ids or (), columns["prediction"], strict=True))
    assert made.document_problem(split) is None
    batch = made.collator(split, how.tokenizer)(np.arange(2), 2.0)
    assert batch.labels is None
    assert batch.row_bounds is not None


SIZE = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, "num_labels": 2}
BERT_SIZE = {
    **SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
ARCHITECTURES = {
    "bert": lambda: tiny_config(),
    "roberta": lambda: RobertaConfig(**BERT_SIZE),
    "distilbert": lambda: DistilBertConfig(
        **SIZE, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=40
    ),
    "electra": lambda: ElectraConfig(**BERT_SIZE, embedding_size=16),
    "deberta-v2": lambda: DebertaV2Config(**BERT_SIZE, relative_attention=True),
    "modernbert": lambda: ModernBertConfig(**BERT_SIZE, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3),
    "gpt2": lambda: GPT2Config(**SIZE, n_embd=16, n_layer=2, n_head=2, n_positions=40),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_with_the_head_works(name: str, how: TokenizeOptions, tmp_path: Path):
    folder = tmp_path / "model"
    torch.manual_seed(0)
    AutoModelForQuestionAnswering.from_config(ARCHITECTURES[name]()).save_pretrained(folder)
    made = recipe()
    (split,) = load(made, how, write_squad(tmp_path / "a.json", 6)).values()
    model = made.load_model(ModelOptions(name=str(folder)), how.tokenizer, POLICIES["fp32"], 0, head_must_exist=True)
    assert model.new_weights == ()
    actual = evaluate(
        ForwardOnly(model, POLICIES["fp32"], CPU),
        model,
        eval_batches(made.collator(split, how.tokenizer), batch_size=4),
        device=CPU,
        should_stop=lambda: False,
    )
    assert actual.outputs.shape == (split.num_samples, 22)
    # New weights guess one of at most 16 tokens, more or less confidently.
    assert actual.loss == pytest.approx(np.log(split.store.lengths).mean(), abs=1.5)
    assert all(value is not None for value in made.scores(split, actual.outputs).values())


def test_a_masked_language_model_gets_a_new_head(how: TokenizeOptions, tmp_path: Path):
    tiny_qa_model(tiny_config()).bert.save_pretrained(tmp_path / "model")
    model = recipe().load_model(ModelOptions(name=str(tmp_path / "model")), how.tokenizer, POLICIES["fp32"], 0)
    assert model.new_weights == ("qa_outputs.bias", "qa_outputs.weight")


def test_a_best_score_without_answers_has_a_warning(how: TokenizeOptions, tmp_path: Path, caplog: Any):
    made = recipe()
    (split,) = load(made, how, write_squad(tmp_path / "a.json", 10)).values()
    wrong = oracle(split)
    wrong[:, [4, 6]] = split.store.row_values[BOUNDS][:, 1:2]  # the first word of each window
    wrong[:, -2:] = 7.0
    with caplog.at_level(logging.WARNING):
        tuned = made.tuned((split, wrong))
    check_logged(caplog, "task.null_threshold")
    assert tuned.scores(split, wrong)["no_answer_f1"] == 100
    assert tuned.scores(split, wrong)["has_answer_f1"] == 0

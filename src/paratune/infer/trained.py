"""A trained model by the name of its run, its folder, or a hub name, ready to be applied to files."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from paratune.batch import Batch
from paratune.config.check import REQUIRED_COLUMNS
from paratune.config.implied import QA_COLUMNS
from paratune.config.sections import Columns, ModelOptions
from paratune.config.task_sections import (
    ClassificationTask,
    MaskedLMTask,
    MultiLabelTask,
    QuestionAnsweringTask,
    RegressionTask,
    Task,
)
from paratune.data.columns import Missing
from paratune.data.duplicates import count_known
from paratune.data.load import Split
from paratune.data.loader import PackedCollator, eval_batches
from paratune.data.squad import is_squad_table
from paratune.data.tokens import Tokenizing
from paratune.engine.evaluate import Evaluation, evaluate
from paratune.errors import CheckpointError, ConfigError, did_you_mean
from paratune.models.attention import cuda
from paratune.models.files import TASK_FILE, check_files
from paratune.models.limits import max_positions
from paratune.models.linear import use_onednn
from paratune.models.load import load_config, load_tokenizer
from paratune.models.packed import find_entry
from paratune.models.task_model import TaskModel, takes_token_types
from paratune.precision import POLICIES, Precision, precision_policy
from paratune.records import MODEL_FOLDER, RUN_FILE, TRAIN_TEXTS_FILE, read_json, read_run
from paratune.strategies.protocol import Layout, ReduceOp
from paratune.tasks import recipe_of
from paratune.tasks.protocol import TaskRecipe

log = logging.getLogger(__name__)

_USUAL_POSITIONS = 512
_MASKED_LM = ("ForMaskedLM", "ForPreTraining", "WithLMHeadModel")
"""Ends of architectures with the head of a masked LM: BertForPreTraining, XLMWithLMHeadModel, ..."""


@dataclass(frozen=True)
class Named:
    """Columns as a user names them on the command line, over what the model's folder says."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    answer_start: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class TrainedModel:
    """A model with all that it takes to apply it."""

    model: TaskModel
    tokenizer: Any
    task: Task
    recipe: TaskRecipe
    columns: Columns
    max_length: int
    truncation: Any
    missing: Any
    precision: Precision
    device: torch.device
    run: Path | None = None
    """Folder of the run that the model is from, where that is known."""
    folder: Path | None = None
    """Folder of the weights; None for those of the hub."""
    named: Named = field(default_factory=Named)
    """Columns that the command line names."""

    @property
    def names(self) -> list[str]:
        """Class names in the order of their ids; empty for regression."""
        return self.recipe.names

    def read(self, source: str, table: pa.Table, *, require_labels: bool, cache_dir: str | Path | None = None) -> Split:
        """Return the rows of a file, tokenized; without labels, rows that lack something are left out.

        Args:
            source: Name of the file in messages.
            table: Its rows.
            require_labels: Whether they are to be scored.
            cache_dir: Where tokens are kept, as `data.cache_dir`.

        Raises:
            DataError: Something is wrong with the file or a column.
        """
        how = Tokenizing(
            self.tokenizer,
            self.max_length,
            truncation=self.truncation,
            need_token_type_ids=takes_token_types(self.tokenizer),
            cache_dir=cache_dir,
        )
        name = self.columns.id  # rows keep their place, and a file for prediction needs no ids
        columns = self.columns.model_copy(update={"id": name if name in table.column_names else None})
        if self.task.kind == "qa" and is_squad_table(table):
            # The layout says what is where, whatever the columns of the files for training were.
            known = {**QA_COLUMNS, "answer_start": None}
            update = {key: value for key, value in known.items() if getattr(self.named, key) is None}
            columns = columns.model_copy(update=update)
        missing: Missing = self.missing if require_labels else "drop"
        return self.recipe.load_split(source, table, columns, how, missing=missing, require_labels=require_labels)

    def apply(self, split: Split, batch_size: int, on_batch: Callable[[int, int], None]) -> Evaluation:
        """Return the outputs for every sample of `split`, in its order.

        Args:
            split: What is predicted.
            batch_size: As `evaluate.batch_size`.
            on_batch: Called with the number of batches done, and that of all.
        """
        collator = self.recipe.collator(split, self.tokenizer)
        if self.model.entry is not None:
            collator = PackedCollator(collator)
        batches = eval_batches(collator, batch_size=batch_size)
        with self.precision.switched(), cuda.switched():
            return evaluate(
                ForwardOnly(self.model, self.precision, self.device),
                self.model,
                batches,
                device=self.device,
                should_stop=lambda: False,
                on_batch=lambda done: on_batch(done, len(batches)),
            )

    def num_trained_on(self, split: Split) -> int | None:
        """Return how many samples of `split` have a text that the model was trained on; None where that is not known.

        Raises:
            CheckpointError: The run's list of them is damaged.
        """
        return None if self.run is None else count_known(self.run / TRAIN_TEXTS_FILE, split.samples)


class ForwardOnly:
    """The part of a strategy that an evaluation in one process needs."""

    layout = Layout(rank=0, world_size=1, data_rank=0, data_world_size=1)

    def __init__(self, model: TaskModel, precision: Precision, device: torch.device) -> None:
        self._model = model.to(device).eval()
        self._precision = precision
        self._device = device

    @torch.inference_mode()
    def predict(self, batch: Batch) -> Tensor:
        with self._precision.autocast(self._device):
            outputs: Tensor = self._model(batch)
        return outputs

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return value


def load_trained(target: str, named: Named, device: str) -> TrainedModel:
    """Load a model for use.

    Args:
        target: A run folder, a model folder, or a hub name.
        named: Columns from the command line; needed where the folder does not know any.
        device: auto, cpu or cuda.

    Raises:
        CheckpointError: The run is not finished, or its folder is damaged.
        ConfigError: The model has no weights for the head of its task, columns are not known or have no effect on it,
            or there is no such device.
    """
    where = _device(device)
    folder = _model_folder(target)
    model = ModelOptions(name=folder)
    known = _known(Path(folder) / TASK_FILE)
    check_files(Path(folder))
    tokenizer = load_tokenizer(model)
    task = _task(known, model, tokenizer)
    precision = _precision(known.get("precision", "fp32"), where)
    recipe = recipe_of(task)
    task_model = recipe.load_model(model, tokenizer, precision, seed=0, head_must_exist=True)
    if where.type == "cpu":
        use_onednn(task_model)
    if known.get("layout", "auto") in ("auto", "packed"):
        find_entry(task_model, device=where, dtype=precision.autocast_dtype)
    limit = max_positions(task_model.hf.config, tokenizer)
    return TrainedModel(
        model=task_model,
        tokenizer=tokenizer,
        task=task,
        recipe=recipe,
        columns=_columns(known.get("columns", {}), named, target, task),
        max_length=known.get("max_length") or limit or 512,
        truncation=known.get("truncation", "longest_first"),
        missing=known.get("missing", "refuse"),
        precision=precision,
        device=where,
        run=Path(folder).parent if (Path(folder).parent / RUN_FILE).is_file() else None,
        folder=Path(folder) if Path(folder).is_dir() else None,
        named=named,
    )


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: PyTorch sees no GPU here (paratune doctor gives the reason); leave it out",
            code="device.no_gpu",
            option="--device",
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _precision(name: str, device: torch.device) -> Precision:
    """Return the policy of the training, or fp32 where this device cannot do it: a model is for any machine."""
    try:
        policy, _ = precision_policy(name, device, None)
    except ConfigError:
        log.info("trained with precision: %s, which %s does not do well here; fp32 is used", name, device.type)
        return POLICIES["fp32"]
    return policy


def _known(record: Path) -> dict[str, Any]:
    """Return what paratune wrote beside the model; nothing for a model that it did not train."""
    if not record.is_file():
        return {}
    known = read_json(record)
    if not isinstance(known, dict) or known.get("precision", "fp32") not in POLICIES:
        raise CheckpointError(
            f"{record} is damaged: paratune did not write its content", code="run.damaged", record=record
        )
    return known


def _model_folder(target: str) -> str:
    path = Path(target)
    if not path.exists() and path.parent != Path() and path.parent.is_dir():
        there = sorted(folder.name for folder in path.parent.iterdir() if (folder / RUN_FILE).is_file())
        raise CheckpointError(
            f"{target} does not exist; runs in {path.parent}: {', '.join(there) or 'none'}"
            f"{did_you_mean(path.name, there)}",
            code="run.not_found",
            target=target,
        )
    if not (path / RUN_FILE).is_file():
        return target
    folder = path / MODEL_FOLDER
    if not folder.is_dir():
        record = read_run(path)
        kind = record.get("kind") if isinstance(record, dict) else None
        if kind == "baseline":
            raise CheckpointError(
                f"{target} is a fitted baseline, of which no model is saved: name the run of a model",
                code="baseline.no_model",
                target=target,
            )
        if kind == "probe":
            raise CheckpointError(
                f"{target} is a probe, of which no model is saved: train the whole run",
                code="run.not_finished",
                target=target,
            )
        raise CheckpointError(
            f"{target} is a run without a model: it is not finished; continue it with --resume",
            code="run.not_finished",
            target=target,
        )
    return str(folder)


def _task(known: dict[str, Any], model: ModelOptions, tokenizer: Any) -> Task:
    """Return the task that the folder was saved with, or the one that the model's own configuration shows."""
    if "task" in known:
        try:
            task: Task = TypeAdapter(Task).validate_python(known["task"])
        except ValidationError as error:
            raise CheckpointError(
                f"{model.name}/{TASK_FILE} is damaged: {error}", code="run.damaged", name=model.name
            ) from error
        return task
    config = load_config(model, num_labels=None)
    if any("ForQuestionAnswering" in name for name in config.architectures or ()):
        # Models of few positions have windows of few tokens.
        positions = getattr(config, "max_position_embeddings", None) or _USUAL_POSITIONS
        log.info("%s does not record the threshold that it was trained for: task.null_threshold is 0", model.name)
        # Not left open: the best threshold of the very file that is scored is one that nobody could have known.
        return QuestionAnsweringTask(kind="qa", stride=min(128, positions // 3), null_threshold=0.0)
    names = config.architectures or ()
    if any(name.endswith(_MASKED_LM) for name in names) or (not names and _fills_masks_in(model, tokenizer)):
        return MaskedLMTask(kind="mlm")
    labels = [config.id2label[index] for index in sorted(config.id2label)]
    if config.problem_type == "multi_label_classification":
        mark = next(mark for mark in ("|", ";", "\t", "\n") if not any(mark in label for label in labels))
        return MultiLabelTask(kind="multi_label", labels=labels, separator=mark)
    if config.problem_type == "regression" or len(labels) == 1:
        return RegressionTask(kind="regression")
    return ClassificationTask(kind="classification", labels=labels)


def _fills_masks_in(model: ModelOptions, tokenizer: Any) -> bool:
    """Say whether the weights have the head of a masked LM, where the configuration names no architecture."""
    try:
        recipe_of(MaskedLMTask(kind="mlm")).load_model(model, tokenizer, POLICIES["fp32"], 0, head_must_exist=True)
    except ConfigError:
        return False
    return True


def _columns(known: dict[str, Any], named: Named, target: str, task: Task) -> Columns:
    given = {key: value for key, value in vars(named).items() if value is not None}
    if isinstance(task, MaskedLMTask):
        for key in ("label", "text_pair"):
            if key in given:
                option = f"--{key.replace('_', '-')}"
                raise ConfigError(
                    f"{option} {given[key]} has no effect on {target}: a masked LM takes the text alone",
                    code="cli.no_effect",
                    option=option,
                    target=target,
                )
    if "answer_start" in given and task.kind != "qa":
        raise ConfigError(
            f"--answer-start {given['answer_start']} has no effect on {target}: it answers no questions",
            code="cli.no_effect",
            option="--answer-start",
            target=target,
        )
    label = {"label": "label"} if "label" in REQUIRED_COLUMNS[task.kind] else {}
    implied = QA_COLUMNS if task.kind == "qa" else label
    if "label" in given:  # the place of the answers of another column
        known = {key: value for key, value in known.items() if key != "answer_start"}
    merged = {**implied, **known, **given}
    if "text" not in merged:
        raise ConfigError(
            f"{target} does not record which column has the text; name it with --text COLUMN",
            code="cli.option_missing",
            target=target,
            option="--text",
        )
    try:
        return Columns.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(
            f"{target}: its columns cannot be used: {error}", code="config.invalid_value", target=target
        ) from error

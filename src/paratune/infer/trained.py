"""Loads a trained model from its run, folder or hub name, and applies it to files."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from torch import Tensor

from paratune.base.text import listing
from paratune.batch import Batch
from paratune.config.check import REQUIRED_COLUMNS
from paratune.config.glue import IMPLIED_COLUMNS, QA_COLUMNS
from paratune.config.own_code import own_model_options
from paratune.config.sections import Columns, ModelOptions, OwnMetric, named_columns
from paratune.config.task_sections import (
    ClassificationTask,
    ClassTask,
    EmbeddingTask,
    MaskedLMTask,
    MultiLabelTask,
    MultipleChoiceTask,
    QuestionAnsweringTask,
    RegressionTask,
    Task,
    TokenClassificationTask,
    class_names,
)
from paratune.data.columns import Missing, with_paths
from paratune.data.encode import TokenizeOptions
from paratune.data.json_tables import SQUAD
from paratune.data.load import Split
from paratune.data.loader import PackedCollator, eval_batches
from paratune.engine.evaluate import Evaluation, evaluate
from paratune.errors import CheckpointError, ConfigError, DataError, coded, did_you_mean, option_error
from paratune.models.attention import cuda
from paratune.models.config import load_config, max_positions
from paratune.models.linear import use_onednn
from paratune.models.locate import check_files, locate, run_model_folder
from paratune.models.onnx_model import ONNX_FILE
from paratune.models.packed import enable_packed_batches
from paratune.models.save import read_modules
from paratune.models.task_model import TaskModel
from paratune.models.tokenizer import load_tokenizer, takes_token_types
from paratune.precision import POLICIES, Precision, precision_policy
from paratune.records import RUN_FILE
from paratune.records.constant import CONSTANT, ConstantComparison, not_better
from paratune.records.own import TASK_FILE, admit_model, read_task_file
from paratune.strategies.protocol import Layout, ReduceOp
from paratune.tasks import make_recipe
from paratune.tasks.protocol import TaskRecipe

log = logging.getLogger(__name__)

_USUAL_POSITIONS = 512
_MASKED_LM = ("ForMaskedLM", "ForPreTraining", "WithLMHeadModel")
"""Ends of the names of architectures with the head of a masked LM: BertForPreTraining, XLMWithLMHeadModel, ..."""


@dataclass(frozen=True)
class NamedColumns:
    """Columns from the command line, which replace those in the model's folder."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    answer_start: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class TrainedModel:
    """A model with everything that is needed to apply it."""

    model: TaskModel
    tokenizer: Any
    task: Task
    recipe: TaskRecipe
    columns: Columns
    max_length: int
    truncation: Any
    head_tokens: int | None
    missing: Any
    precision: Precision
    device: torch.device
    run: Path | None = None
    """Folder of the model's run, if known."""
    folder: Path | None = None
    """Folder of the weights; None for a model of the hub."""
    named: NamedColumns = field(default_factory=NamedColumns)
    metrics: tuple[OwnMetric, ...] = ()
    not_better: ConstantComparison | None = None
    """The comparison with a constant answer, if the model is recorded as not better."""
    label_deviation: float | None = None
    """Standard deviation of the training labels of scores; None where it is unknown, and for other tasks."""

    @property
    def names(self) -> list[str]:
        """Class names in the order of their ids; empty for regression."""
        return self.recipe.names

    def tokenize_options(self, cache_dir: str | Path | None, *, is_cached: bool = True) -> TokenizeOptions:
        """Return the options with which the model's texts are tokenized; arguments as for `read`."""
        return TokenizeOptions(
            self.tokenizer,
            self.max_length,
            truncation=self.truncation,
            head_tokens=self.head_tokens,
            need_token_type_ids=takes_token_types(self.tokenizer),
            cache_dir=cache_dir,
            is_cached=is_cached,
        )

    def read(
        self,
        source: str,
        table: pa.Table,
        *,
        require_labels: bool,
        cache_dir: str | Path | None = None,
        is_cached: bool = True,
    ) -> Split:
        """Return the tokenized rows of a file; rows with missing values are dropped unless labels are required.

        Args:
            source: Name of the file in messages.
            table: The rows of the file.
            require_labels: Whether the rows are scored and need labels.
            cache_dir: Folder of the token cache; None: the default of `data.cache_dir`.
            is_cached: Whether tokens are cached; if not, nothing of the texts is written to a disk.
        """
        options = self.tokenize_options(cache_dir, is_cached=is_cached)
        name = self.columns.id  # not required: predictions are in the order of the rows
        columns = self.columns.model_copy(
            update={"id": name if name in with_paths(table, [str(name)]).column_names else None}
        )
        if self.task.kind == "qa" and table.schema.equals(SQUAD):
            # SQuAD's layout has fixed columns, which may differ from those of the training files.
            known = {**QA_COLUMNS, "answer_start": None}
            update = {key: value for key, value in known.items() if getattr(self.named, key) is None}
            columns = columns.model_copy(update=update)
        is_named = self.named.text_pair is not None or require_labels
        if self.task.kind == "embedding" and not is_named:
            is_single = set(named_columns(columns.text_pair)).isdisjoint(table.column_names)
            # Without any column of the second text, the file has single texts, whose vectors are wanted.
            columns = columns.model_copy(update={"text_pair": None}) if is_single else columns
        missing: Missing = self.missing if require_labels else "drop"
        try:
            return self.recipe.load_split(
                source, table, columns, options, missing=missing, require_labels=require_labels
            )
        except DataError as error:
            if error.code != "data.label_unseen" or "problem" not in error.facts:
                raise
            # A trained model has its labels: the remedy of the training has no effect.
            remedy = "Write the labels of the model in the file; for classes, evaluate has --labels VALUE=LABEL"
            facts: dict[str, Any] = dict(error.facts)
            raise DataError(f"{facts['problem']}. {remedy}", code=error.code, **facts) from error

    def with_labels(self, given: Mapping[str, str]) -> "TrainedModel":
        """Return the model with further values in files for its labels.

        Raises:
            ConfigError: The task has no classes, or the model does not have such a label.
        """
        if not given:
            return self
        names, shown = self.names, ", ".join(f"{value}={label}" for value, label in given.items())
        if not isinstance(self.task, ClassTask):
            reason = f"it has no effect on a model of kind {self.task.kind}; leave it out"
            raise option_error("--labels", shown, reason, code="cli.no_effect")
        if unknown := [label for label in given.values() if label not in names]:
            reason = f"the model has no label {unknown[0]}; its labels are {listing(names, 8)}"
            raise option_error("--labels", shown, reason, code="cli.invalid_value")
        old = self.task.labels if isinstance(self.task.labels, dict) else {name: name for name in names}
        values = {**{str(value): name for value, name in old.items()}, **given}
        if lost := [name for name in names if name not in values.values()]:
            reason = f"no value is left for the label {lost[0]}; give one, as in VALUE={lost[0]}"
            raise option_error("--labels", shown, reason, code="cli.invalid_value")
        # In the order of the names: class ids are that of their first value.
        ordered = {value: name for name in names for value, of_value in values.items() if of_value == name}
        task = self.task.model_copy(update={"labels": ordered})
        return replace(self, task=task, recipe=make_recipe(task))

    def apply(
        self,
        split: Split,
        batch_size: int,
        on_batch: Callable[[int, int], None],
        on_outputs: Callable[[Batch, Tensor], None] = lambda batch, outputs: None,
    ) -> Evaluation:
        """Return the outputs for every sample of `split`, in its order; `batch_size` as `evaluate.batch_size`.

        `on_batch` is called with the number of finished batches and of all batches, `on_outputs` with each batch and
        the outputs of the model for it, such as logits.
        """
        collator = self.recipe.collator(split, self.tokenizer)
        if self.model.entry is not None:
            collator = PackedCollator(collator)
        batches = eval_batches(collator, batch_size=batch_size, group_size=self.recipe.group_size)
        # PyTorch's switches with which the model was trained, for all threads of the process.
        with self.precision.switched(), cuda.attention_settings():
            result = evaluate(
                ForwardOnly(self.model, self.precision, self.device, on_outputs),
                self.model,
                batches,
                device=self.device,
                should_stop=lambda: False,
                on_batch=lambda done: on_batch(done, len(batches)),
            )
        if count := int(np.isnan(result.outputs).any(axis=1).sum()):
            log.warning(
                "%d of %d outputs of the model are not a number (nan), and its predictions there mean nothing: its "
                "weights are damaged, or its precision is too low; train it again",
                count,
                len(result.outputs),
                extra=coded("model.outputs_not_a_number", count=count),
            )
        return result


class ForwardOnly:
    """The part of a strategy that an evaluation in one process needs."""

    layout = Layout(rank=0, world_size=1, data_rank=0, data_world_size=1)

    def __init__(
        self,
        model: TaskModel,
        precision: Precision,
        device: torch.device,
        on_outputs: Callable[[Batch, Tensor], None] = lambda batch, outputs: None,
    ) -> None:
        self._model = model.to(device).eval()
        self._on_outputs = on_outputs
        self._precision = precision
        self._device = device

    @torch.inference_mode()
    def predict(self, batch: Batch) -> Tensor:
        with self._precision.autocast(self._device):
            outputs: Tensor = self._model(batch)
        self._on_outputs(batch, outputs)
        return outputs

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return value


def load_trained(target: str, named: NamedColumns, device: str, *, is_plain: bool = False) -> TrainedModel:
    """Load a model for use: a run folder, a model folder, or a hub name.

    `named` are columns from the command line, required if the folder does not record them; `device` is auto, cpu or
    cuda. With `is_plain` nothing is changed in the model, to apply it faster.

    Raises:
        CheckpointError: The run is not finished, or its folder is damaged.
        ConfigError: The model has no weights for the head of its task, columns are unknown or have no effect, there is
            no such device, or a record that is not the user's names code (`paratune.records.own`).
        MissingDependency: It is an ONNX file, and onnxruntime is not installed.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise option_error("--device", device, "auto, cpu or cuda", code="cli.invalid_value")
    folder = _model_folder(Path(target))
    name = str(folder) if folder.is_dir() else target
    torch_device = _device(device, target, is_onnx=(folder / ONNX_FILE).is_file())
    run = folder.parent if (folder.parent / RUN_FILE).is_file() else None
    known = read_task_file(folder)
    recorded: _Recorded = _validated(_Recorded, known, name)
    runs_files = admit_model(name, known, run)
    options = {"name": name, "trust_remote_code": runs_files, **own_model_options(known.get("model"))}
    model: ModelOptions = _validated(ModelOptions, options, name)
    check_files(folder)
    tokenizer = load_tokenizer(model)
    task = _task(known, model, tokenizer)
    precision = _precision(recorded.precision, torch_device)
    recipe = make_recipe(task)
    task_model = recipe.load_model(model, tokenizer, precision, seed=0, head_must_exist=True)
    if torch_device.type == "cpu" and not is_plain:
        use_onednn(task_model)
    if recorded.layout in ("auto", "packed") and not is_plain:
        enable_packed_batches(task_model, device=torch_device, dtype=precision.autocast_dtype)
    max_length = recorded.max_length
    if max_length is None:
        modules = read_modules(folder)  # of sentence-transformers
        limits = modules and modules.max_length, max_positions(task_model.hf.config, tokenizer)
        max_length = next((limit for limit in limits if limit), _USUAL_POSITIONS)
    return TrainedModel(
        model=task_model,
        tokenizer=tokenizer,
        task=task,
        recipe=recipe,
        columns=_columns(recorded.columns, named, target, task),
        max_length=max_length,
        truncation=recorded.truncation,
        head_tokens=recorded.head_tokens,
        missing=recorded.missing,
        precision=precision,
        device=torch_device,
        run=run,
        folder=folder if folder.is_dir() else None,
        named=named,
        metrics=_validated(tuple[OwnMetric, ...], known.get("metrics", ()), name),
        not_better=not_better(known.get(CONSTANT), folder / TASK_FILE),
        label_deviation=recorded.label_deviation,
    )


def _model_folder(path: Path) -> Path:
    if not path.exists() and path.parent != Path() and path.parent.is_dir():
        runs = sorted(folder.name for folder in path.parent.iterdir() if (folder / RUN_FILE).is_file())
        message = f"{path} does not exist; runs in {path.parent}: {', '.join(runs) or 'none'}"
        message += did_you_mean(path.name, runs)
        raise CheckpointError(message, code="run.not_found", target=str(path))
    return run_model_folder(path) if path.is_dir() else path


def _device(name: str, target: str, *, is_onnx: bool) -> torch.device:
    """Return the device to compute on, auto, cpu or cuda; an ONNX file is computed on the CPU."""
    if name == "cuda" and is_onnx:
        reason = f"{target} is an ONNX file, which runs on the CPU; leave it out, or use the model it was made from"
        raise option_error("--device", name, reason, code="device.conflict", target=target)
    if name == "cuda" and not torch.cuda.is_available():
        reason = "PyTorch sees no GPU here (paratune doctor gives the reason); leave it out"
        raise option_error("--device", name, reason, code="device.no_gpu")
    return torch.device("cuda" if name != "cpu" and not is_onnx and torch.cuda.is_available() else "cpu")


def _precision(name: str, device: torch.device) -> Precision:
    """Return the policy of the training, or fp32 if this device does not support it."""
    try:
        policy, _ = precision_policy(name, device, None)
    except ConfigError:
        log.info("trained with precision: %s, which %s does not support here; using fp32", name, device.type)
        return POLICIES["fp32"]
    return policy


class _Recorded(BaseModel, strict=True):
    """Types of what is read from the record next to a model; task, model and metrics have their own."""

    columns: dict[str, Any] = {}
    max_length: Annotated[int, Field(ge=1)] | None = None
    truncation: Literal["longest_first", "only_first", "only_second", "head_tail"] = "longest_first"
    head_tokens: Annotated[int, Field(ge=0)] | None = None
    missing: Missing = "refuse"
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp64"] = "fp32"
    layout: Literal["auto", "packed", "bucketed", "padded"] = "auto"
    label_deviation: Annotated[float, Field(ge=0)] | None = None


def _validated(kind: Any, value: Any, name: str) -> Any:
    """Return a value of the record next to a model."""
    try:
        return TypeAdapter(kind).validate_python(tuple(value) if isinstance(value, list) else value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its content"
        raise CheckpointError(
            f"{name}/{TASK_FILE} is damaged: {where}: {first['msg']}; copy the folder again, or train again",
            code="run.damaged",
            name=name,
        ) from error


def _task(known: dict[str, Any], model: ModelOptions, tokenizer: Any) -> Task:
    """Return the task in the folder's record, or the task of the model's own configuration."""
    if "task" in known:
        recorded: Task = _validated(Task, known["task"], model.name)
        weights = getattr(recorded, "class_weights", None)
        classes = set(map(str, weights)) if isinstance(weights, dict) else len(weights or ())
        wanted = class_names(recorded)
        if weights is not None and classes not in (set(wanted), len(wanted)):
            message = f"{model.name}/{TASK_FILE} is damaged: task.class_weights does not have a weight for each label"
            raise CheckpointError(message, code="run.damaged", name=model.name)
        return recorded
    if (modules := read_modules(Path(locate(model.name)))) is not None:
        task = EmbeddingTask(kind="embedding", loss="cosine_similarity", score_range=None)
        return task.model_copy(update={"pooling": modules.pooling, "normalize": modules.normalize})
    config = load_config(model)
    names = config.architectures or ()
    if any("ForQuestionAnswering" in name for name in names):
        # A model with few positions needs short windows.
        positions = getattr(config, "max_position_embeddings", None) or _USUAL_POSITIONS
        log.info("%s does not record its threshold for no answer: task.null_threshold is 0", model.name)
        # Not tuned on the file: the best threshold of the scored file itself would be an optimistic choice.
        return QuestionAnsweringTask(kind="qa", stride=min(128, positions // 3), null_threshold=0.0)
    fills_masks = any(name.endswith(_MASKED_LM) for name in names)
    if not names:  # the weights show whether there is the head of a masked LM
        recipe = make_recipe(MaskedLMTask(kind="mlm"))
        with suppress(ConfigError):
            recipe.load_model(model, tokenizer, POLICIES["fp32"], 0, head_must_exist=True)
            fills_masks = True
    if fills_masks:
        return MaskedLMTask(kind="mlm")
    labels = [config.id2label[index] for index in sorted(config.id2label)]
    if any("ForMultipleChoice" in name for name in names):
        return MultipleChoiceTask(kind="multiple_choice")
    if any("ForTokenClassification" in name for name in names):
        is_iob2 = "O" in labels and all(label == "O" or label[:2] in ("B-", "I-") for label in labels)
        return TokenClassificationTask(kind="token_classification", labels=labels, scheme="iob2" if is_iob2 else "none")
    if config.problem_type == "multi_label_classification":
        separators = ("|", ";", "\t", "\n")
        separator = next(mark for mark in separators if not any(mark in label for label in labels))
        return MultiLabelTask(kind="multi_label", labels=labels, separator=separator)
    if config.problem_type == "regression" or len(labels) == 1:
        return RegressionTask(kind="regression", targets=labels if len(labels) > 1 else None)
    return ClassificationTask(kind="classification", labels=labels)


def _columns(known: dict[str, Any], named: NamedColumns, target: str, task: Task) -> Columns:
    given = {key: value for key, value in vars(named).items() if value is not None}
    unused = {"mlm": ("label", "text_pair"), "token_classification": ("text_pair",)}.get(task.kind, ())
    for key in (*unused, *(("answer_start",) if task.kind != "qa" else ())):
        if key in given:
            reason = f"no effect on {target}: a model for {task.kind} does not read it"
            raise option_error(f"--{key.replace('_', '-')}", given[key], reason, code="cli.no_effect", target=target)
    label = {"label": "label"} if "label" in REQUIRED_COLUMNS[task.kind] else {}
    implied = IMPLIED_COLUMNS.get(task.kind, label)
    if "label" in given:  # `answer_start` belongs to the recorded label column
        known = {key: value for key, value in known.items() if key != "answer_start"}
    if task.kind == "multiple_choice":
        implied = {**implied, "choices": "choices"}
    merged = {**implied, **{key: value for key, value in known.items() if value is not None}, **given}
    if "text" not in merged:
        message = f"{target} does not record which column has the text; name it with --text COLUMN"
        raise ConfigError(message, code="cli.required", target=target, option="--text")
    try:
        return Columns.model_validate(merged)
    except ValidationError as error:
        message = f"{target}: its columns cannot be used: {error}"
        raise ConfigError(message, code="config.invalid_value", target=target) from error

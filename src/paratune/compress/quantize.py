"""Writes a smaller model into a new folder, and compares it with the original on rows.

Weights of the form int8 are 8-bit integers with a scale for each output channel. They use 7 of the 8 bits: on a CPU
without VNNI, sums of products of 8 bits exceed 16 bits and are cut off, so that results would depend on the CPU.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from paratune import hardware, records
from paratune.base.atomic import replace_folder
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import utc_now
from paratune.batch import Batch
from paratune.data.load import Split
from paratune.data.loader import eval_batches
from paratune.errors import CheckpointError, ConfigError, os_error_as, require, require_installed
from paratune.infer.trained import NamedColumns, TrainedModel, load_trained
from paratune.models.locate import file_records
from paratune.models.onnx_model import ONNX_FILE, OnnxModel
from paratune.models.task_model import TaskModel
from paratune.models.tokenizer import save_tokenizer
from paratune.precision import POLICIES
from paratune.records import file_sha256, read_json, write_json
from paratune.records.own import SIGNATURE, TASK_FILE, signed
from paratune.records.run_folder import Form, weight_files

OPSET = 18
"""Version of ONNX's operators."""
OPERATORS = ("MatMul", "Gather")
"""Operators whose weights become integers: linear layers and embeddings. Products inside attention stay float32."""
RECORD_FILE: Final = "quantized.json"
TOLERANCE: Final = 1e-4
"""Largest difference between outputs of the exported file and of PyTorch, as a share of the largest output, or of 1 if
all are smaller. Sums of float32 in another order differ in the seventh digit; 24 layers add up to the fifth."""


class _Exported(nn.Module):
    """A model of transformers with tensors as inputs and outputs."""

    def __init__(self, hf: Any, names: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self._hf, self._names, self._outputs = hf, names, outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        result = self._hf(**dict(zip(self._names, inputs, strict=True)))
        return tuple(getattr(result, name) for name in self._outputs)


def export_onnx(hf: Any, batch: Batch, path: Path, target: str) -> None:
    """Write a model as an ONNX file for any batch size and length.

    The exporter follows the operators of one batch: it takes a second, where that of `torch.export` takes ten and needs
    onnxscript. It would not notice a model that decides by its inputs; `quantize.compare` does, on other rows.

    Args:
        hf: Model of transformers, float32, on the CPU, in evaluation mode.
        batch: Padded rows.
        path: File.
        target: Name of the model in messages.

    Raises:
        ConfigError: The architecture cannot be exported.
    """
    assert batch.attention_mask is not None
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    inputs |= {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
    outputs = ("start_logits", "end_logits") if "ForQuestionAnswering" in type(hf).__name__ else ("logits",)
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    axes |= {name: {0: "batch"} for name in outputs}
    earlier, hf.config._attn_implementation = hf.config._attn_implementation, "eager"
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # that this exporter is the older one, and on constants of the trace
            torch.onnx.export(
                _Exported(hf, list(inputs), outputs).eval(),
                tuple(inputs.values()),
                path,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
    except OSError:  # a full disk: the architecture is not the reason
        raise
    except Exception as error:  # torch raises many kinds here
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{target} ({type(hf).__name__}) cannot be exported to ONNX: {first}; use --to bf16, which needs no export",
            code="quantize.export",
            target=target,
            architecture=type(hf).__name__,
        ) from error
    finally:
        hf.config._attn_implementation = earlier


def quantize_dynamic(source: Path, path: Path) -> None:
    """Write a file with integer weights; the range of activations is computed for each batch, while it runs."""
    quantization: Any = require("onnxruntime.quantization", extra="serve")
    with _quiet():
        quantization.quantize_dynamic(
            source,
            path,
            op_types_to_quantize=list(OPERATORS),
            per_channel=True,
            reduce_range=True,  # leaves one of the 8 bits unused
            weight_type=quantization.QuantType.QInt8,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what onnxruntime logs at the root logger, such as advice on preprocessing for convolutions."""
    root = logging.getLogger()
    earlier, handlers, root.disabled = root.disabled, list(root.handlers), True
    try:
        yield
    finally:
        root.disabled, root.handlers[:] = earlier, handlers  # its first message would add a handler


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """What a model computes for the rows of a split."""

    values: tuple[np.ndarray[Any, Any], ...]
    """Outputs of each batch, such as logits; in question answering without those of padding."""
    decisions: tuple[Any, ...] | None
    """Of each row: class, set of classes, answer, tags; None where the output is a number, or not
    finite."""


@dataclass(frozen=True)
class OutputDifference:
    """How the outputs of a smaller model differ."""

    num_rows: int
    max_abs: float
    """Largest difference of an output, such as a logit; NaN or infinite if an output is."""
    mean_abs: float
    largest_output: float
    """Largest absolute output of the original model, for comparison."""
    agreement: float | None
    """Share of rows with the same decision; None where the output is a number."""


def compute_outputs(
    trained: TrainedModel, split: Split, batch_size: int, on_batch: Callable[[int, int], None]
) -> ModelOutputs:
    """Return the outputs of a model for `split` (from `trained.read`) in float32 on the CPU, from padded batches.

    `on_batch` is called with the number of batches done, and of all.
    """
    recorded: list[np.ndarray[Any, Any]] = []

    def record(batch: Batch, outputs: Tensor) -> None:
        values = outputs.float()
        if trained.task.kind == "qa":
            assert batch.attention_mask is not None
            values = values[batch.attention_mask.bool()]
        recorded.append(values.cpu().numpy())

    plain = replace(trained, precision=POLICIES["fp32"])
    plain.model.float().entry = None  # padded batches, which an ONNX file takes
    evaluation = plain.apply(split, batch_size, on_batch, record)
    decisions = None
    if trained.task.kind != "regression" and all(np.isfinite(values).all() for values in recorded):
        columns = trained.recipe.prediction_columns(split, evaluation.outputs, trained.tokenizer)
        decisions = tuple(columns["prediction"])
    return ModelOutputs(tuple(recorded), decisions)


def compare(original: ModelOutputs, smaller: ModelOutputs, num_rows: int) -> OutputDifference:
    """Return how the outputs of a model differ from those of the original one, for the same rows."""
    pairs = list(zip(original.values, smaller.values, strict=True))
    with np.errstate(invalid="ignore"):  # of infinite outputs
        differences = np.concatenate([np.abs(first.astype(np.float64) - second).ravel() for first, second in pairs])
    agreement = None
    if original.decisions is not None and smaller.decisions is not None:
        same = [bool(first == second) for first, second in zip(original.decisions, smaller.decisions, strict=True)]
        agreement = sum(same) / len(same)
    return OutputDifference(
        num_rows=num_rows,
        max_abs=float(differences.max()),
        mean_abs=float(differences.mean()),
        largest_output=max(float(np.abs(first).max()) for first, _ in pairs),
        agreement=agreement,
    )


def num_weight_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the weights of a model in float32; tied weights count once."""
    return sum(4 * parameter.numel() for parameter in model.parameters())


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced numbers below `count`."""
    return [int(number) for number in np.linspace(0, count - 1, min(count, most))]


@dataclass(frozen=True, eq=False)
class QuantizeJob:
    """A model that is made smaller."""

    trained: TrainedModel
    """From `load_trained` on the CPU."""
    target: str
    """Its name in messages and in the record."""
    form: Form
    check_rows: Split
    """Rows on which outputs and decisions are compared."""
    batch_size: int = 32
    on_batch: Callable[[int, int], None] = lambda done, total: None
    """Called with the number of finished batches, and of all."""

    def outputs(self, trained: TrainedModel) -> ModelOutputs:
        """Return the outputs of a model for the rows of the check."""
        return compute_outputs(trained, self.check_rows, self.batch_size, self.on_batch)


def require_quantizable(trained: TrainedModel, target: str, form: Form) -> None:
    """Check that a model can be made smaller.

    Raises:
        ConfigError: It is a masked language model, a model for multiple choice or sentence embeddings, or an ONNX file.
        MissingDependency: The extra `serve` is not installed, and the form needs it.
    """
    if trained.task.kind in ("mlm", "multiple_choice", "embedding"):
        raise ConfigError(
            f"{target} is a model for {trained.task.kind}; quantize is for models that answer with classes, numbers, "
            "spans or tags",
            code="task.unsupported",
            target=target,
            kind=trained.task.kind,
        )
    if isinstance(trained.model.hf, OnnxModel):
        raise ConfigError(
            f"{target} is an ONNX file already; name the run or the model folder that it was made from",
            code="model.is_onnx",
            target=target,
        )
    for package in () if form == "bf16" else ("onnx", "onnxruntime"):
        require_installed(package, extra="serve")


def quantize_model(job: QuantizeJob, out: Path) -> dict[str, Any]:
    """Write the smaller model with its tokenizer and record, all files or none, and return the record.

    Args:
        job: Model, form and rows.
        out: A folder that does not exist, or is empty.

    Raises:
        CheckpointError: The folder cannot be written.
        ConfigError: The architecture cannot be exported, or the outputs of the file differ.
    """
    trained, num_bytes = job.trained, num_weight_bytes(job.trained.model)
    packages = () if job.form == "bf16" else ("onnx", "onnxruntime")
    source = _source(trained, job.target)
    original = job.outputs(trained)
    failure, remedy = f"{plain(out)} could not be written", "free space there and in $TMPDIR, or choose another --out"
    writing = os_error_as(CheckpointError, failure, remedy, code="output.not_writable", folder=out)
    with writing, replace_folder(out, is_new=True) as temporary:
        settings = _write_bf16(job, temporary) if job.form == "bf16" else _write_onnx(job, temporary, original)
        limit = save_tokenizer(temporary, trained.tokenizer, trained.max_length)
        known = _known(trained) | limit | ({} if job.form == "bf16" else {"precision": "fp32", "layout": "padded"})
        # Signed: the code that it names was admitted when the model was loaded.
        write_json(temporary / TASK_FILE, signed(known, temporary))
        smaller = job.outputs(load_trained(str(temporary), NamedColumns(), "cpu"))
        difference = compare(original, smaller, job.check_rows.num_rows)
        if not math.isfinite(difference.max_abs):
            raise ConfigError(
                f"{job.target} as {job.form} has outputs that are not finite on {job.check_rows.source}; use another "
                "form",
                code="quantize.export",
                target=job.target,
                form=job.form,
            )
        size = sum(path.stat().st_size for path in weight_files(temporary))
        record = {
            "schema_version": records.SCHEMA_VERSION,
            "created": utc_now(),
            "versions": hardware.package_versions() | {name: metadata.version(name) for name in packages},
            "form": job.form,
            "source": source,
            "settings": settings,
            "size": {"weights_bytes": size, "original_float32_bytes": num_bytes, "share": size / num_bytes},
            "check": {"data": job.check_rows.source, **asdict(difference)},
        }
        write_json(temporary / RECORD_FILE, record)
        write_json(temporary / TASK_FILE, signed(known | {"files": file_records(temporary)}, temporary))
    return record


def _write_bf16(job: QuantizeJob, folder: Path) -> dict[str, Any]:
    """Write a folder for `from_pretrained`, and return the settings for the record."""
    hf = job.trained.model.hf
    weights = hf.state_dict().items()
    state = {name: value.bfloat16() if value.is_floating_point() else value for name, value in weights}
    hf.to(torch.bfloat16).save_pretrained(folder, state_dict=state)
    return {"weights": "bfloat16", "computed_in": "float32"}


def _write_onnx(job: QuantizeJob, folder: Path, original: ModelOutputs) -> dict[str, Any]:
    """Write configuration and ONNX file, and return the settings for the record."""
    # A model without the layers of paratune, which the exporter does not know (linear layers of oneDNN on some CPUs).
    hf = load_trained(str(job.trained.folder or job.target), job.trained.named, "cpu", is_plain=True).model.release()
    hf.config.save_pretrained(folder)
    settings: dict[str, Any] = {"opset": OPSET, "runtime": "onnxruntime, CPU", "export_tolerance": TOLERANCE}
    with scratch_folder() as scratch:
        place = folder if job.form == "onnx" else scratch
        collator = job.trained.recipe.collator(job.check_rows, job.trained.tokenizer)
        batch = next(iter(eval_batches(collator, batch_size=job.batch_size)))
        export_onnx(hf, batch, place / ONNX_FILE, job.target)
        _check_export(job, place, original)
        if job.form == "onnx":
            return settings | {"weights": "float32"}
        quantize_dynamic(scratch / ONNX_FILE, folder / ONNX_FILE)
    return settings | {
        "weights": "int8 of 7 bits, with a scale for each output channel",
        "operators": list(OPERATORS),
        "activations": "uint8, with the range of each batch",
    }


def _check_export(job: QuantizeJob, folder: Path, original: ModelOutputs) -> None:
    """Raise a ConfigError where the outputs of an exported file differ from those of PyTorch."""
    trained = job.trained
    model = TaskModel(OnnxModel(folder, trained.model.hf.config), trained.task.kind, objective=trained.model.objective)
    try:
        outputs = job.outputs(replace(trained, model=model))
    except Exception as error:  # a shape that became a constant; onnxruntime's errors have no common base class
        raise _export_differs(job, f"the file does not take other rows: {error}") from error
    difference = compare(original, outputs, job.check_rows.num_rows)
    limit = TOLERANCE * max(1.0, difference.largest_output)
    if not difference.max_abs <= limit:
        raise _export_differs(job, f"an output differs by {difference.max_abs:.3g}, more than {limit:.3g}")


def _export_differs(job: QuantizeJob, reason: str) -> ConfigError:
    name = type(job.trained.model.hf).__name__
    return ConfigError(
        f"{job.target} ({name}): the ONNX file does not compute what the model computes: {reason}; use --to bf16, "
        "which needs no export",
        code="quantize.export",
        target=job.target,
        architecture=name,
    )


def _known(trained: TrainedModel) -> dict[str, Any]:
    """Return the content of `paratune.json` for a model, without its files."""
    path = None if trained.folder is None else trained.folder / TASK_FILE
    if path is not None and path.is_file():
        return {key: value for key, value in read_json(path).items() if key not in ("files", "base_model", SIGNATURE)}
    return {
        "schema_version": records.SCHEMA_VERSION,
        "task": trained.task.model_dump(mode="json"),
        "columns": trained.columns.model_dump(mode="json", exclude_none=True),
        "max_length": trained.max_length,
        "truncation": trained.truncation,
        "head_tokens": trained.head_tokens,
        "missing": trained.missing,
        "precision": "fp32",
        "layout": "auto",
    }


def _source(trained: TrainedModel, target: str) -> dict[str, Any]:
    """Return what is known of the original model."""
    weights = weight_files(trained.folder) if trained.folder is not None else []
    run = records.read_json(trained.run / records.RUN_FILE) if trained.run is not None else {}
    return {
        "model": target,
        "run_id": run.get("run_id"),
        "architecture": type(trained.model.hf).__name__,
        "weights_sha256": {path.name: file_sha256(path) for path in weights} or None,
    }

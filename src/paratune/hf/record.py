"""run.json and summary.json of a Trainer run, in the format of docs/reference/records.md."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from torch import nn
from transformers import TrainerState, TrainingArguments

from paratune import records
from paratune.config.differences import flatten
from paratune.config.traits import Traits
from paratune.engine.loop import Progress
from paratune.engine.summary import rank_peaks, summarise
from paratune.hf.steps import TrainerPlace
from paratune.models.task_model import count_parameters, weights_fingerprint
from paratune.strategies.process_group import reduce_over_ranks
from paratune.training.record import gather_nodes, process_facts

_TRAIN_ARGUMENTS = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "weight_decay"),
    *("optim", "optim_args", "optim_target_modules", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("label_smoothing_factor", "neftune_noise_alpha", "group_by_length", "train_sampling_strategy", "data_seed"),
    *("length_column_name", "dataloader_drop_last", "average_tokens_across_devices"),
)
"""Arguments of the Trainer that decide what is trained, and have no other place in the record."""
_OWN_ARGUMENTS = {"output_dir", "logging_dir", "run_name", "seed", "local_rank"}
"""Arguments that differ between runs of one experiment."""
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "jit_compilation_time", "model_preparation_time")
_NOT_MEASURED = "PhaseCallback does not measure it"
_FORWARD = "from the start of a micro-step to the backward pass: forward pass, loss, and copies that the loader left"
_OPTIMIZER = (
    "after the last backward pass: check of the loss, gradient norm, clipping, update, learning rate schedule, "
    "clearing of the gradients"
)
_STRATEGIES = {"NO": "single", "MULTI_CPU": "ddp", "MULTI_GPU": "ddp", "FSDP": "fsdp", "DEEPSPEED": "deepspeed"}
"""Names by the distributed type of accelerate."""
_BACKWARD = {"single": "backward pass"}
_OWN_PHASES = {
    "single": ("get_batch", "forward", "backward", "optimizer"),
    "ddp": ("get_batch", "forward", "optimizer"),
}


@dataclass(frozen=True)
class TrainerEvaluation:
    """The result of `Trainer.evaluate` or `Trainer.predict`."""

    split: str
    """validation for the prefix `eval`; otherwise the prefix without `eval_`."""
    scores: Mapping[str, float]
    num_samples: int | None
    time_s: float | None

    def event(self, state: TrainerState, *, is_best: bool) -> dict[str, Any]:
        """Return the values of an `evaluation` event."""
        return {
            "step": state.global_step,
            "epoch": round(float(state.epoch or 0.0), 6),
            "split": self.split,
            "scores": dict(self.scores),
            "num_samples": self.num_samples,
            "time_s": self.time_s,
            "is_best": is_best,
        }


def read_evaluation(metrics: Mapping[str, Any], loader: Any) -> TrainerEvaluation | None:
    """Return the evaluation that the Trainer reports; None if `metrics` have no prefix.

    Args:
        metrics: Of the Trainer: `eval_loss`, `eval_accuracy`, `eval_runtime`, ...
        loader: Of the evaluation, or None.
    """
    prefix = next((key.removesuffix("_runtime") for key in metrics if key.endswith("_runtime")), None)
    if prefix is None:
        return None
    values = {key.removeprefix(f"{prefix}_"): value for key, value in metrics.items() if key.startswith(f"{prefix}_")}
    return TrainerEvaluation(
        split="validation" if prefix == "eval" else prefix.removeprefix("eval_"),
        scores={key: float(value) for key, value in values.items() if key not in _SPEED and isinstance(value, Real)},
        num_samples=_length(getattr(loader, "dataset", None)),
        time_s=float(values["runtime"]),
    )


@dataclass(frozen=True)
class TrainerRun:
    """What the record needs of a Trainer run, in one process."""

    folder: Path
    place: TrainerPlace
    args: TrainingArguments
    state: TrainerState
    model: nn.Module
    loader: Any

    def write(self, *, warmup_steps: int, log_every: int) -> None:
        """Write run.json on rank 0. Collective."""
        nodes = gather_nodes(self.folder, None, local_rank=self.place.local_rank)
        if self.place.rank != 0:
            return
        config = self._config({"warmup_steps": warmup_steps, "log_every": log_every, "probe": False})
        session = {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "step": 0,
            "config": config,
            "config_origin": dict.fromkeys(flatten(config), "TrainingArguments"),
            "hardware": nodes,
            "world_size": self.place.world_size,
            "device": self.place.device.type,
            **process_facts(),
            "strategy": {"kind": self.traits.kind, "traits": self.traits.as_dict(), "options": {}},
            "loader": {"workers": self.args.dataloader_num_workers},
            "advice": [],
            "batch": {
                **config["batch"],
                "layout": "padded",
                **dict.fromkeys(("layout_reason", "reason", "rounds_tokens", "setup")),
                "changes": [],
            },
        }
        record = {
            "schema_version": records.SCHEMA_VERSION,
            "run_id": self.folder.name,
            "created": session["began"],
            **{key: value for key, value in session.items() if key not in {"began", "step"}},
            "kind": "trainer",
            "seed": self.args.seed,
            "task": {"kind": "trainer", "glue": None, "metrics": [self._metric] if self._metric else []},
            # The Trainer shows its other data sets only when it evaluates them: they are unknown here.
            "data": {"train": _data_facts(getattr(self.loader, "dataset", None))},
            "model": self._model_facts(),
            "plan": self._plan(),
            "sessions": [session],
        }
        records.write_run(self.folder, record)

    @property
    def traits(self) -> Traits:
        """Phases and kind of the parallel strategy; the kind has the prefix `trainer-`."""
        distributed = AcceleratorState().distributed_type.value
        kind = _STRATEGIES.get(distributed, distributed.lower())
        return Traits(
            kind=f"trainer-{kind}",
            phases={
                "get_batch": "next batch of the data loader, with the copy to the device",
                "forward": _FORWARD,
                "backward": _BACKWARD.get(kind, "backward pass and the exchange of gradients, overlapped"),
                "optimizer": _OPTIMIZER,
            },
            own_phases=_OWN_PHASES.get(kind, ("get_batch",)),
        )

    @property
    def _metric(self) -> str | None:
        """Metric that selects the best model, without the prefix `eval_`."""
        metric = self.args.metric_for_best_model
        return None if metric is None else metric.removeprefix("eval_")

    @property
    def _steps_per_epoch(self) -> int | None:
        num_batches = _length(self.loader)
        return None if num_batches is None else max(1, math.ceil(num_batches / self.args.gradient_accumulation_steps))

    @property
    def _global_batch_size(self) -> int:
        num_micro_steps: int = self.args.gradient_accumulation_steps
        return self._micro_batch_size * num_micro_steps * self.place.world_size

    @property
    def _micro_batch_size(self) -> int:
        size: int = self.state.train_batch_size or self.args.train_batch_size
        return size

    def _config(self, measure: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the Trainer in the sections of paratune; the rest is the section `trainer`."""
        arguments = {name: _plain(value) for name, value in self.args.to_dict().items()}
        best = self._metric if self.args.load_best_model_at_end else None
        left = {name: value for name, value in arguments.items() if name not in {*_TRAIN_ARGUMENTS, *_OWN_ARGUMENTS}}
        return {
            "run": {"name": self.folder.name, "folder": str(self.folder.parent), "seed": self.args.seed},
            "model": {"name": self._model_name, "overrides": None},
            "batch": {
                "global_batch_size": self._global_batch_size,
                "micro_batch_size": self._micro_batch_size,
                "grad_accum_steps": self.args.gradient_accumulation_steps,
            },
            "train": {
                "trainer": "transformers",
                "schedule": arguments.get("lr_scheduler_type"),
                **{name: arguments[name] for name in _TRAIN_ARGUMENTS if name in arguments},
            },
            "evaluate": {
                "best": best,
                "patience": None,
                "min_delta": None,
                "every": arguments.get("eval_strategy"),
                "steps": arguments.get("eval_steps"),
            },
            "precision": "bf16" if self.args.bf16 else "fp16" if self.args.fp16 else "fp32",
            "strategy": {"kind": self.traits.kind},
            "measure": measure,
            "trainer": left,
        }

    @property
    def _model_name(self) -> str:
        name = getattr(getattr(self.model, "config", None), "_name_or_path", None)
        return str(name or type(self.model).__name__)

    def _model_facts(self) -> dict[str, Any]:
        """Return architecture and size; sizes and weights are unknown where a rank has only a part of them."""
        is_whole = self.traits.kind in ("trainer-single", "trainer-ddp")
        num_parameters, num_trainable = count_parameters(self.model) if is_whole else (None, None)
        tensors = (*self.model.parameters(), *self.model.buffers())
        return {
            "name": self._model_name,
            "architecture": type(self.model).__name__,
            "num_parameters": num_parameters,
            "num_trainable": num_trainable,
            "size_bytes": sum(tensor.nbytes for tensor in tensors) if is_whole else None,
            "init_fingerprint": weights_fingerprint(self.model) if is_whole else None,
        }

    def _plan(self) -> dict[str, Any]:
        num_steps, per_epoch = self.state.max_steps, self._steps_per_epoch
        num_micro_steps = num_steps * self.args.gradient_accumulation_steps
        return {
            "num_steps": num_steps,
            "steps_per_epoch": per_epoch,
            "num_epochs": num_steps / per_epoch if per_epoch else None,
            "batches_per_epoch": _length(self.loader),
            "num_batches": num_micro_steps * self.place.world_size,
        }

    def sampler_facts(self) -> dict[str, Any]:
        """Return the values of a `sampler` event for a device that is not sampled."""
        return {
            **dict.fromkeys(("kind", "interval_s", "energy_source")),
            "name": str(self.place.device),
            "is_energy_here": False,
            "reason": _NOT_MEASURED,
        }

    def best_of(self, evaluations: Sequence[tuple[int, TrainerEvaluation]]) -> dict[str, Any] | None:
        """Return step, metric and value of the best evaluation; None if the Trainer selects no best model."""
        metric = self._metric
        scored = [
            (step, run_evaluation.scores[metric])
            for step, run_evaluation in evaluations
            if metric is not None and run_evaluation.split == "validation" and metric in run_evaluation.scores
        ]
        if not scored:
            return None
        # As in the Trainer, the first of equal values is the best.
        select = max if self.args.greater_is_better else min
        step, value = select(scored, key=lambda entry: entry[1])
        return {"step": step, "metric": metric, "value": value}

    def write_summary(
        self, progress: Progress, evaluations: Sequence[tuple[int, TrainerEvaluation]], cost_ms: float | None
    ) -> None:
        """Write summary.json on rank 0, from the event logs of all ranks. Collective."""
        peaks = rank_peaks(self.place.device, reduce_over_ranks)
        if self.place.rank != 0:
            return
        kept = progress.best["step"] if progress.best and self.args.load_best_model_at_end else progress.step
        summary = summarise(
            self.folder,
            progress,
            kept_step=kept,
            world_size=self.place.world_size,
            num_steps=self.state.max_steps,
            steps_per_epoch=self._steps_per_epoch or max(1, self.state.max_steps),
            peaks=peaks,
            device=self.place.device.type,
            cost_ms=cost_ms,
            global_batch_size=self._global_batch_size,
            traits=self.traits,
            noise_reason=_NOT_MEASURED,
            profile_reason=_NOT_MEASURED,
            communication_reason=_NOT_MEASURED,
        )
        summary["time"]["tokenize_s"] = None
        summary["pipeline"]["ideal_bubble_share"] = None
        flops = ("model_flops_per_token", "model_flops_per_s", "peak_flops_per_s", "peak_source", "mfu")
        summary |= {
            "kind": "trainer",
            "scores": {evaluation.split: dict(evaluation.scores) for step, evaluation in evaluations if step == kept},
            "num_requeued": None,
            "num_restarts": None,
            "baseline": None,
            "flops": {**dict.fromkeys(flops), "reason": _NOT_MEASURED},
            "prediction": {"reason": _NOT_MEASURED},
        }
        records.write_json(self.folder / records.SUMMARY_FILE, summary)

    def add_scores(self, evaluation: TrainerEvaluation, state: TrainerState) -> None:
        """Add an evaluation of the trained model to the finished record, on rank 0."""
        if self.place.rank != 0:
            return
        summary = records.read_json(self.folder / records.SUMMARY_FILE)
        summary["scores"][evaluation.split] = dict(evaluation.scores)
        records.write_json(self.folder / records.SUMMARY_FILE, summary)


def _data_facts(dataset: Any) -> dict[str, Any]:
    """Return the facts of a data set; the fingerprint is that of the library datasets, null for other data sets."""
    fingerprint = getattr(dataset, "_fingerprint", None)
    return {
        "source": type(dataset).__name__,
        "num_rows": _length(dataset),
        **dict.fromkeys(("num_pseudo", "num_dropped", "num_tokens", "num_truncated", "num_unknown_tokens")),
        "fingerprint": f"datasets:{fingerprint}" if isinstance(fingerprint, str) else None,
    }


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:  # an iterable without a length
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON data; other objects as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)

"""run.json and summary.json of a Trainer run, in the format of docs/reference/records.md."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from torch import nn
from transformers import TrainerState, TrainingArguments

from paratune import records
from paratune.base.units import utc_now
from paratune.config.traits import Traits
from paratune.engine.loop import Progress
from paratune.engine.summary import rank_peaks, summarise
from paratune.records.trainer_folder import split_scores
from paratune.strategies.process_group import reduce_over_ranks
from paratune.training.record import gather_nodes, model_facts, process_facts

_TRAIN_ARGUMENTS = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "weight_decay"),
    *("optim", "optim_args", "optim_target_modules", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("label_smoothing_factor", "neftune_noise_alpha", "group_by_length", "train_sampling_strategy", "data_seed"),
    *("length_column_name", "dataloader_drop_last", "average_tokens_across_devices"),
)
"""Arguments of the Trainer that decide what is trained, and have no other place in the record."""
_OWN_ARGUMENTS = {"output_dir", "logging_dir", "run_name", "seed", "local_rank"}
"""Arguments that differ between runs of one experiment."""
NOT_MEASURED = "PhaseCallback does not measure it"
_PHASES = {
    "get_batch": "next batch of the data loader, with the copy to the device",
    "forward": "from the start of a micro-step to the backward pass: forward pass, loss, and copies that the loader "
    "left",
    "backward": "backward pass; with several processes also the exchange of gradients, overlapped",
    "optimizer": "after the last backward pass: check of the loss, gradient norm, clipping, update, learning rate "
    "schedule, clearing of the gradients",
}
_STRATEGIES = {"NO": "single", "MULTI_CPU": "ddp", "MULTI_GPU": "ddp", "FSDP": "fsdp", "DEEPSPEED": "deepspeed"}
"""Names by the distributed type of accelerate."""
_OWN_PHASES = {"single": tuple(_PHASES), "ddp": ("get_batch", "forward", "optimizer")}


def read_evaluation(metrics: Mapping[str, Any], loader: Any, state: TrainerState) -> dict[str, Any] | None:
    """Return the values of an `evaluation` event; None if the metrics have no prefix.

    Args:
        metrics: Of `Trainer.evaluate` or `Trainer.predict`: `eval_loss`, `eval_accuracy`, `eval_runtime`, ...
        loader: Of the evaluation, or None.
    """
    for split, scores, seconds in split_scores(metrics):
        return {
            "step": state.global_step,
            "epoch": round(float(state.epoch or 0.0), 6),
            "split": split,
            "scores": scores,
            "num_samples": _length(getattr(loader, "dataset", None)),
            "time_s": seconds,
            "is_best": None,  # the Trainer decides it later; the summary has the best step
        }
    return None


class TrainerRun:
    """The record of a Trainer run, in one process."""

    def __init__(
        self, folder: Path, args: TrainingArguments, state: TrainerState, model: nn.Module, loader: Any
    ) -> None:
        """Keep what the record needs; `loader` is that of the training."""
        self.folder, self.args, self.loader = folder, args, loader
        self._state, self._model = state, model
        metric, steps, num_batches = args.metric_for_best_model, args.gradient_accumulation_steps, _length(loader)
        self._metric = None if metric is None else metric.removeprefix("eval_")
        """It selects the best model."""
        self._steps_per_epoch = None if num_batches is None else max(1, math.ceil(num_batches / steps))
        size = state.train_batch_size or args.train_batch_size
        self._batch = {"global_batch_size": size * steps * args.world_size}
        self._batch |= {"micro_batch_size": size, "grad_accum_steps": steps}
        distributed = AcceleratorState().distributed_type.value
        kind = _STRATEGIES.get(distributed, distributed.lower())
        self._traits = Traits(kind=f"trainer-{kind}", phases=_PHASES, own_phases=_OWN_PHASES.get(kind, ("get_batch",)))

    def write(self, *, warmup_steps: int) -> None:
        """Write run.json on rank 0, without the values that are unknown. Collective."""
        args, batch, kind = self.args, self._batch, self._traits.kind
        nodes = gather_nodes(self.folder, None, local_rank=args.local_process_index)
        if args.process_index != 0:
            return
        name = str(getattr(getattr(self._model, "config", None), "_name_or_path", None) or type(self._model).__name__)
        if kind in ("trainer-single", "trainer-ddp"):
            model = model_facts(self._model, name)
        else:  # sizes and weights are unknown where a rank has only a part of them
            unknown = dict.fromkeys(("num_parameters", "num_trainable", "size_bytes", "init_fingerprint"))
            model = {"name": name, "architecture": type(self._model).__name__, **unknown}
        arguments = {key: value for key, value in args.to_dict().items() if key not in _OWN_ARGUMENTS}
        arguments = json.loads(json.dumps(arguments, default=str))
        trained = {key: arguments.pop(key) for key in _TRAIN_ARGUMENTS if key in arguments}
        config = {
            "run": {"name": self.folder.name, "folder": str(self.folder.parent), "seed": args.seed},
            "model": {"name": name},
            "batch": batch,
            "train": {"trainer": "transformers", "schedule": trained.get("lr_scheduler_type"), **trained},
            "evaluate": {
                "best": self._metric if args.load_best_model_at_end else None,
                "every": arguments.get("eval_strategy"),
                "steps": arguments.get("eval_steps"),
            },
            "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
            "strategy": {"kind": kind},
            "measure": {"warmup_steps": warmup_steps},
            "trainer": arguments,
        }
        session = {
            "config": config,
            "hardware": nodes,
            "world_size": args.world_size,
            "device": args.device.type,
            **process_facts(),
            "strategy": {"kind": kind, "traits": asdict(self._traits), "options": {}},
            "loader": {"workers": args.dataloader_num_workers},
            "batch": {**batch, "layout": "padded"},
        }
        dataset, num_steps, began = getattr(self.loader, "dataset", None), self._state.max_steps, utc_now()
        fingerprint = getattr(dataset, "_fingerprint", None)  # of the library datasets
        record = {
            "schema_version": records.SCHEMA_VERSION,
            "run_id": self.folder.name,
            "created": began,
            **session,
            "kind": "trainer",
            "seed": args.seed,
            "task": {"kind": "trainer", "metrics": [self._metric] if self._metric else []},
            # The Trainer shows its other data sets only when it evaluates them: they are unknown here.
            "data": {
                "train": {
                    "source": type(dataset).__name__,
                    "num_rows": _length(dataset),
                    "fingerprint": f"datasets:{fingerprint}" if isinstance(fingerprint, str) else None,
                }
            },
            "model": model,
            "plan": {
                "num_steps": num_steps,
                "steps_per_epoch": self._steps_per_epoch,
                "num_epochs": num_steps / self._steps_per_epoch if self._steps_per_epoch else None,
                "batches_per_epoch": _length(self.loader),
                "num_batches": num_steps * args.gradient_accumulation_steps * args.world_size,
            },
            "sessions": [{"began": began, "step": 0, **session}],
        }
        records.write_json(self.folder / records.RUN_FILE, record)

    def write_summary(self, progress: Progress) -> None:
        """Write summary.json on rank 0, from the event logs of all ranks. Collective."""
        peaks = rank_peaks(self.args.device, reduce_over_ranks)
        if self.args.process_index != 0:
            return
        state, kept = self._state, progress.step
        if state.best_global_step:
            progress.best = {"step": state.best_global_step, "metric": self._metric, "value": state.best_metric}
            kept = state.best_global_step if self.args.load_best_model_at_end else kept
        summary = summarise(
            self.folder,
            progress,
            kept_step=kept,
            world_size=self.args.world_size,
            num_steps=state.max_steps,
            steps_per_epoch=self._steps_per_epoch or max(1, state.max_steps),
            peaks=peaks,
            device=self.args.device.type,
            cost_ms=None,
            global_batch_size=self._batch["global_batch_size"],
            traits=self._traits,
            noise_reason=NOT_MEASURED,
            profile_reason=NOT_MEASURED,
            communication_reason=NOT_MEASURED,
        )
        summary["time"]["tokenize_s"] = None
        summary |= {
            "kind": "trainer",
            "scores": {entry["split"]: entry["scores"] for entry in summary["evaluations"] if entry["step"] == kept},
            "flops": {"reason": NOT_MEASURED},
            "prediction": {"reason": NOT_MEASURED},
        }
        records.write_json(self.folder / records.SUMMARY_FILE, summary)


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:  # an iterable without a length
        return None

"""The outcome of a run, without times: two runs with equal outcomes trained the same."""

import hashlib
from pathlib import Path
from typing import Any

from paratune.records import read_events, read_json

STEP = ("step", "epoch", "loss", "grad_norm", "learning_rate", "num_samples", "num_tokens", "num_padded_tokens")
EVALUATION = ("step", "split", "scores", "num_samples", "is_best")


def outcome(run: Path) -> dict[str, Any]:
    """Return the hash of the final weights, all steps, all evaluations, and the scores of the saved model."""
    events = list(read_events(run))
    summary = read_json(run / "summary.json")
    return {
        "weights": weights_hash(run),
        "steps": [{key: event[key] for key in STEP} for event in events if event["event"] == "step"],
        "evaluations": [{key: event[key] for key in EVALUATION} for event in events if event["event"] == "evaluation"],
        "scores": summary["scores"],
        "best": summary["best"],
    }


def weights_hash(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Return the step events of rank 0."""
    return [event for event in read_events(run) if event["event"] == "step"]

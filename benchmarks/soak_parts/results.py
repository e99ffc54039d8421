"""The result of a command, without times: two commands with equal results did the same work."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paratune.records import read_events, read_json
from paratune.training.model_card import CARD_FILE

STEP = ("step", "epoch", "loss", "grad_norm", "learning_rate", "num_samples", "num_tokens", "num_padded_tokens")
EVALUATION = ("step", "split", "scores", "num_samples", "is_best")
Result = dict[str, Any]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_below(folder: Path, patterns: Iterable[str] = ("*",)) -> Result:
    """Return the SHA-256 of all files below a folder whose names match, by path."""
    paths = {path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()}
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(paths)}


def run_result(run: Path) -> Result:
    """Return hashes of the final weights and of all predictions, steps, evaluations, scores and the best model."""
    events = list(read_events(run))
    summary = read_json(run / "summary.json")
    return {
        "model": files_below(run / "model") | {CARD_FILE: (run / "model" / CARD_FILE).is_file()},  # it contains times
        "predictions": files_below(run, ("predictions.*", "null_odds_*")),
        "steps": [{key: event[key] for key in STEP} for event in events if event["event"] == "step"],
        "evaluations": [{key: event[key] for key in EVALUATION} for event in events if event["event"] == "evaluation"],
        "scores": summary["scores"],
        "best": summary["best"],
    }


def remains(folder: Path) -> list[str]:
    """Return the temporary files and folders that remain below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.tmp"))


def first_difference(expected: Any, actual: Any, at: str = "") -> str | None:
    """Return the first place where two results differ, with both values; None if they are equal."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            if key not in expected or key not in actual:
                return f"{at}.{key}: {'missing' if key in expected else 'not expected'}"
            if difference := first_difference(expected[key], actual[key], f"{at}.{key}"):
                return difference
        return None
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{at}: {len(actual)} values, expected {len(expected)}"
        pairs = enumerate(zip(expected, actual, strict=True))
        return next((difference for i, pair in pairs if (difference := first_difference(*pair, f"{at}[{i}]"))), None)
    same = json.dumps(expected) == json.dumps(actual)
    return None if same else f"{at}: {str(actual)[:200]}, expected {str(expected)[:200]}"

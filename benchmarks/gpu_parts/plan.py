"""The plan compared with the card: calibration by the command, then predicted and measured steps and memory."""

import os
from collections.abc import Iterator
from functools import partial

from .setting import Check, Figures, Setting, Skipped
from .texts import CASES, Case, of_setting, write_config
from .training import free, run_command, train_here


def checks(setting: Setting) -> Iterator[Check]:
    """Yield a comparison without calibration, the calibration, and comparisons with it."""
    cases = CASES[:1] if setting.tiny else CASES
    for case in cases[:1]:
        yield Check(
            f"{case.label}, by data sheet", partial(predicted, setting, case), "Predicted and measured", proves=False
        )
    yield Check("calibration", partial(calibration, setting))
    for case in cases:
        yield Check(
            f"{case.label}, calibrated", partial(predicted, setting, case), "Predicted and measured", proves=False
        )


def _use_own_cache(setting: Setting) -> None:
    """Keep the figures of this card with the results, so that those of the user do not change."""
    os.environ["PARATUNE_CACHE"] = str(setting.folder / "cache")


def calibration(setting: Setting) -> Figures:
    """Run `paratune plan --calibrate` and return its figures."""
    if setting.tiny:
        raise Skipped("a rehearsal does not calibrate: it takes minutes on a CPU")
    setting.need(30)
    _use_own_cache(setting)
    result = run_command("plan", "--calibrate", timeout_s=setting.left_s() - 5)
    if result["exit_code"] != 0:
        raise RuntimeError(f"paratune plan --calibrate exited with {result['exit_code']}: {result}")
    return {"calibration": result.get("calibration")}


def predicted(setting: Setting, case: Case) -> Figures:
    """Train, and return planned and measured figures of the run."""
    setting.need(15)
    _use_own_cache(setting)
    free()
    case = of_setting(case, setting)
    path = write_config(
        case,
        setting,
        f"plan-{case.name}-{case.batch_size}",
        num_rows=64 if setting.tiny else 1024,
        num_steps=6 if setting.tiny else 60,
        measure={"probe": True, "plan": True, "warmup_steps": 3 if setting.tiny else 15},
    )
    summary = train_here(path)
    prediction = summary["prediction"]
    measured_ms = summary["step_ms"]["median"]
    span = prediction.get("step_s")
    low, usual, high = (None, None, None) if span is None else sorted(1000 * value for value in span)
    planned, peak = prediction.get("memory_bytes"), summary["memory"]["largest_bytes"]
    return {
        "measured_ms": measured_ms,
        "predicted_ms": usual,
        "from_ms": low,
        "to_ms": high,
        "inside": None if low is None or high is None else low <= measured_ms <= high,
        "bound": prediction.get("bound"),
        "peak_bytes": peak,
        "predicted_bytes": planned,
        "why_not": prediction.get("reason"),
    }

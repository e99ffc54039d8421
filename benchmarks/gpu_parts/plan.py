"""The plan compared with the card: predicted and measured steps and memory."""

from collections.abc import Iterator
from functools import partial

from .ranks import memory
from .setting import Check, Figures, Setting
from .texts import CASES, Case, of_setting, write_config
from .training import free, train_here


def checks(setting: Setting) -> Iterator[Check]:
    """Yield the allocated memory of two steps against the plan, and a comparison of each case."""
    yield Check("single x 1", partial(memory, setting, "single", 1), "Memory of a rank against the plan")
    for case in CASES[:1] if setting.tiny else CASES:
        yield Check(case.label, partial(predicted, setting, case), "Predicted and measured", proves=False)


def predicted(setting: Setting, case: Case) -> Figures:
    """Train, and return planned and measured figures of the run."""
    setting.need(15)
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
        "peak_bytes": peak,
        "predicted_bytes": planned,
        "why_not": prediction.get("reason"),
    }

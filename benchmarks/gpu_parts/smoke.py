"""Whole trainings on the device in each precision, step by step beside the same training in float32 on the host."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

from paratune.records import read_events

from .setting import Check, Figures, Setting, hold
from .texts import CASES, of_setting, write_config, write_model
from .training import free, train_here

ALLOWED = {"fp32": 2e-3, "bf16": 1e-2, "fp16": 1e-2}
"""Allowed difference of a step's loss, which is about 0.7 at first and below 0.1 at last. On a CPU, bf16 differs by
0.001. Products are TF32 in float32 on a GPU, with 10 bits, as fp16 has; bf16 has 7."""
MODEL = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
NUM_STEPS, NUM_ROWS, BATCH_SIZE, LEARNING_RATE = 40, 16, 8, 3e-4
"""Few rows, which the model learns by heart: their labels are arbitrary."""


def checks(setting: Setting) -> Iterator[Check]:
    """Yield a training in each precision; fp16 is refused on a CPU."""
    expected = cache(lambda: losses(setting, "fp32", "cpu")[0])
    for precision in ("bf16", "fp16", "fp32") if setting.on_gpu else ("bf16", "fp32"):
        yield Check(precision, partial(compare, setting, precision, expected), "Losses beside float32 on the host")


def compare(setting: Setting, precision: str, expected: Callable[[], list[float]]) -> Figures:
    """Train without dropout, and compare the loss of each step."""
    ours, num_skipped = losses(setting, precision, setting.device.type)
    exact = expected()
    # A skipped step of fp16 has no update, so the loss is later by a step.
    delay = max(abs(before - after) for before, after in zip(exact, exact[num_skipped:], strict=False))
    allowed = ALLOWED[precision] + delay
    figures = {
        "first_loss": ours[0],
        "last_loss": ours[-1],
        "last_on_host": exact[-1],
        "largest_difference": max(abs(a - b) for a, b in zip(ours, exact, strict=True)),
        "allowed": allowed,
        "skipped": num_skipped,
    }
    finite = all(loss == loss and abs(loss) < 1e4 for loss in ours)
    hold(finite and num_skipped < 10, "losses are not finite, or the scale of fp16 keeps changing", figures)
    hold(ours[-1] < 0.9 * ours[0], "the loss does not fall", figures)
    return hold(figures["largest_difference"] <= allowed, "losses differ from those of the host", figures)


def losses(setting: Setting, precision: str, device: str) -> tuple[list[float], int]:
    """Return the loss of each step, and the number of steps that were skipped because their gradients overflowed."""
    free()
    write_model(setting, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **MODEL)
    name = f"{device}-{precision}"
    path = write_config(
        replace(of_setting(CASES[2], setting), batch_size=BATCH_SIZE),
        setting,
        name,
        num_rows=NUM_ROWS,
        num_steps=NUM_STEPS,
        measure={"probe": True},
        train={"learning_rate": LEARNING_RATE},
        precision=precision,
        device=device,
    )
    train_here(path)
    steps = [event for event in read_events(setting.folder / "runs" / name) if event["event"] == "step"]
    return [event["loss"] for event in steps], sum(bool(event.get("skipped")) for event in steps)

"""Samples per second and MFU of packed and padded training, and of other libraries on the same rows.

All sides run 15 warm-up and 100 measured steps in bf16 with the model's own dropout; the end of each step is a CUDA
event, so that no step waits. Texts are synthetic (see `texts`); weights are random. On a GPU "Trainer at its best"
trains without padding; `times_as_fast` of each other side is packed training divided by it.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from paratune.hardware.devices import find_device
from paratune.models.attention import cuda

from .peer import Way, step_marks, train_with_packed_encoders, train_with_trainer
from .setting import Check, Figures, Setting, Skipped, spread, wait
from .texts import CASES, MODERN, Case, of_setting, write_config, write_model, write_rows
from .training import free, train_here

WARMUP, MEASURED = 15, 100
NUM_ROWS = 2048
"""Rows of a file: with batches of 128 they are used several times."""


@dataclass
class Work:
    """Values that the sides of a case share, known after packed training."""

    flops_per_sample: dict[str, float] = field(default_factory=dict)
    samples_per_s: dict[str, float] = field(default_factory=dict)


def checks(setting: Setting) -> Iterator[Check]:
    """Yield packed training of each case beside the best peer, then the other sides, the least missed last."""
    work = Work()
    cases = CASES[::2] if setting.tiny else CASES

    def make_check(case: Case, side: str, run: Any) -> Check:
        return Check(f"{case.label}, {side}", partial(_freed, run), "Samples a second", proves=False)

    def with_trainer(case: Case, way: Way, cudnn: bool = True) -> Check:
        side = f"Trainer, {way}" + ("" if cudnn else ", no cuDNN")
        return make_check(case, side, partial(trainer, setting, case, work, way, cudnn))

    for case in (*cases, MODERN):
        yield make_check(case, "packed", partial(ours, setting, case, work, "packed"))
        yield with_trainer(case, "padding-free")
    yield make_check(MODERN, "packed-encoders", partial(packed_encoders, setting, MODERN, work))
    yield with_trainer(cases[0], "padded")
    yield with_trainer(cases[0], "grouped")
    yield make_check(cases[0], "padded", partial(ours, setting, cases[0], work, "padded"))
    for way in ("padded", "grouped"):
        for case in cases[1:]:
            yield with_trainer(case, way)
    yield with_trainer(cases[0], "padded", False)
    if not hasattr(cuda, "attention_settings"):  # otherwise a run itself switches off cuDNN's attention
        yield make_check(cases[0], "padded, no cuDNN", partial(ours, setting, cases[0], work, "padded", cudnn=False))


def _freed(run: Any) -> Figures:
    free()
    try:
        return run()  # type: ignore[no-any-return]
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.compiler.reset()
        free()


def counts(setting: Setting) -> tuple[int, int]:
    """Return warm-up and measured steps."""
    return (2, 4) if setting.tiny else (WARMUP, MEASURED)


def ours(
    setting: Setting, case: Case, work: Work, layout: str, *, compiled: bool = False, cudnn: bool = True
) -> Figures:
    """Train with paratune."""
    if compiled and setting.tiny:
        compiled = False  # a C++ compiler may be missing, and compiling takes a minute
    setting.need(45 if compiled else 12)
    label, case = case.label, of_setting(case, setting)
    warmup, measured = counts(setting)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    path = write_config(
        case,
        setting,
        f"speed-{case.name}-{case.batch_size}",
        num_rows=_num_rows(setting),
        num_steps=warmup + measured,
        measure={"probe": True, "warmup_steps": warmup},
        train={"compile": compiled},
        batch={"layout": layout},
    )
    on_step, marks = step_marks(setting.on_gpu)
    summary = train_here(path, on_step=on_step)
    figures = _rates(setting, marks, case.batch_size)
    throughput = summary["throughput"]
    per_token = summary["flops"]["model_flops_per_token"]
    if per_token is not None:
        tokens = throughput["tokens_per_s"] / throughput["samples_per_s"]
        work.flops_per_sample[label] = per_token * tokens
    if layout == "packed" and not compiled:
        work.samples_per_s[label] = figures["samples_per_s"]
    return {
        **figures,
        "mfu": _mfu(setting, work, label, figures["samples_per_s"]),
        "tokens_per_s": throughput["tokens_per_s"],
        "memory_bytes": summary["memory"]["largest_bytes"],
    }


def trainer(setting: Setting, case: Case, work: Work, way: Way, cudnn: bool) -> Figures:
    """Train with Hugging Face Trainer."""
    setting.need(15)
    label, case = case.label, of_setting(case, setting)
    warmup, measured = counts(setting)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    on_step, marks = step_marks(setting.on_gpu)
    if setting.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    attention = train_with_trainer(
        write_rows(case, setting, _num_rows(setting)),
        write_model(setting, case.model),
        kind=case.kind,
        max_length=case.max_length,
        batch_size=case.batch_size,
        num_steps=warmup + measured,
        way=way,
        on_gpu=setting.on_gpu,
        folder=setting.folder / "trainer",
        on_step=on_step,
    )
    figures = _rates(setting, marks, case.batch_size)
    peak = torch.cuda.max_memory_allocated() if setting.on_gpu else None
    return _of_peer(setting, work, label, figures, peak, attention)


def packed_encoders(setting: Setting, case: Case, work: Work) -> Figures:
    """Train with packed-encoders, in an environment of its own."""
    if setting.packed_encoders is None:
        raise Skipped("not measured: no environment of packed-encoders was given (--packed-encoders)")
    setting.need(60)  # it compiles its kernels
    label, case = case.label, of_setting(case, setting)
    warmup, measured = counts(setting)
    result = train_with_packed_encoders(
        setting.packed_encoders,
        write_rows(case, setting, _num_rows(setting)),
        write_model(setting, case.model),
        max_length=case.max_length,
        batch_size=case.batch_size,
        num_warmup_steps=warmup,
        num_steps=measured,
        on_gpu=setting.on_gpu,
        folder=setting.folder / "packed_encoders",
        timeout_s=setting.left_s() - 5,
    )
    times = result["step_ms"]
    figures = {"samples_per_s": 1000 * case.batch_size * len(times) / sum(times), "step_ms": spread(times)}
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    attention = f"{result['attention']} ({versions})"
    return _of_peer(setting, work, label, figures, result["peak_bytes"], attention)


def _of_peer(
    setting: Setting, work: Work, label: str, figures: dict[str, Any], peak_bytes: int | None, attention: str
) -> Figures:
    """Return the figures of another library, in the order of `ours`; `times_as_fast` is packed training over it."""
    packed = work.samples_per_s.get(label)
    return {
        **figures,
        "mfu": _mfu(setting, work, label, figures["samples_per_s"]),
        "tokens_per_s": None,
        "memory_bytes": peak_bytes,
        "times_as_fast": None if packed is None else packed / figures["samples_per_s"],
        "attention": attention,
    }


def _num_rows(setting: Setting) -> int:
    return 64 if setting.tiny else NUM_ROWS


def _rates(setting: Setting, marks: list[Any], batch_size: int) -> dict[str, Any]:
    """Return samples per second over the measured steps, and the spread of the steps."""
    wait(setting.device)
    warmup, measured = counts(setting)
    marks = marks[warmup - 1 : warmup + measured]
    between = itertools.pairwise(marks)
    times = [a.elapsed_time(b) if setting.on_gpu else 1000 * (b - a) for a, b in between]
    return {"samples_per_s": 1000 * batch_size * len(times) / sum(times), "step_ms": spread(times)}


def _mfu(setting: Setting, work: Work, label: str, samples_per_s: float) -> float | None:
    """Return model FLOPs per second divided by the card's peak in bf16; None if one of them is unknown."""
    if not setting.on_gpu or label not in work.flops_per_sample:
        return None
    device = find_device(torch.cuda.get_device_name(setting.device))
    peak = None if device is None else device.peak_flops_per_s("bf16")
    return None if peak is None else work.flops_per_sample[label] * samples_per_s / peak

"""How long ranks exchange data: from spans written out by hand, and from a profile of two real steps."""

from pathlib import Path
from typing import Any

import pytest
from looping import Bench

from paratune.engine.profiling import ProfiledOperation, StepProfiler, communication, exchanged
from paratune.engine.recorder import Recorder

WINDOW = ProfiledOperation("paratune.profiled", 1000.0, 11_000.0, on_device=False, is_mark=True)


def host(name: str, begin: float, end: float, *, is_mark: bool = False) -> ProfiledOperation:
    return ProfiledOperation(name, begin, end, on_device=False, is_mark=is_mark)


def kernel(name: str, begin: float, end: float, *, is_mark: bool = False) -> ProfiledOperation:
    return ProfiledOperation(name, begin, end, on_device=True, is_mark=is_mark)


def test_gloo_times_match_arithmetic_by_hand():
    spans = [
        WINDOW,
        host("aten::mm", 1000, 4000),
        host("aten::copy_", 1500, 2000),  # inside of it
        host("c10d::allreduce_", 3000, 3100),  # only hands it over
        host("gloo:all_reduce", 3500, 6000, is_mark=True),  # 500 us of it behind mm
        host("gloo:all_reduce", 5000, 7000, is_mark=True),
        host("aten::add_", 6500, 6600),
        host("gloo:all_reduce", 10_500, 12_000, is_mark=True),  # 500 us of it in time
        host("Optimizer.step#AdamW.step", 1000, 11_000, is_mark=True),
    ]
    # 3500 to 7000 and 10500 to 11000: 4 ms, of which 0.5 and 0.1 ms are hidden.
    expected = {"wall_ms": 10.0, "communication_ms": 4.0, "exposed_ms": pytest.approx(3.4)}
    assert exchanged(spans, "gloo") == expected


def test_nccl_times_match_arithmetic_by_hand():
    spans = [
        WINDOW,
        kernel("paratune.profiled", 1000, 11_000, is_mark=True),
        kernel("nccl:all_reduce", 2000, 9000, is_mark=True),  # what PyTorch marks around the kernel
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 3000, 7000),
        kernel("ampere_sgemm_128x64_tn", 1000, 5000),
        kernel("Memcpy DtoD (Device -> Device)", 5000, 7000),
        host("aten::mm", 1000, 11_000),
        host("gloo:all_reduce", 8000, 9000, is_mark=True),
    ]
    assert exchanged(spans, "nccl") == {"wall_ms": 10.0, "communication_ms": 4.0, "exposed_ms": 2.0}


def test_a_summary_has_ratios_of_totals_over_all_ranks():
    profiles = [
        {"wall_ms": 100.0, "communication_ms": 20.0, "exposed_ms": 10.0, "num_steps": 4, "kind": "gloo"},
        {"wall_ms": 60.0, "communication_ms": 4.0, "exposed_ms": 6.0, "num_steps": 2, "kind": "gloo"},
    ]
    assert communication(profiles, None) == {
        "share": pytest.approx(24 / 160),
        "exposed_share": pytest.approx(0.1),
        "time_ms_per_step": 4.0,
        "num_steps": 2,
        "kind": "gloo",
        "reason": None,
    }


def test_a_gpu_whose_kernels_the_profiler_does_not_see_is_unknown():
    blind = exchanged([WINDOW, host("aten::mm", 1000, 11_000)], "nccl")
    assert blind == {"wall_ms": 10.0, "communication_ms": None, "exposed_ms": None}
    seen = {"wall_ms": 10.0, "communication_ms": 4.0, "exposed_ms": 2.0}
    of_ranks = [{**values, "num_steps": 2, "kind": "nccl"} for values in (seen, blind)]
    summary = communication(of_ranks, None)
    assert (summary["share"], summary["reason"]) == (None, "the profiler saw no kernel of a GPU on some ranks")


@pytest.mark.parametrize(("reason", "expected"), [("one process", "one process"), (None, "the session ended before")])
def test_without_a_profile_all_is_unknown(reason: str | None, expected: str):
    summary = communication([], reason)
    assert summary.pop("reason").startswith(expected)
    assert set(summary.values()) == {None}


def test_steps_after_the_warm_up_are_profiled_and_marked(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=6, warmup_steps=2, profile_steps=2, log_every=4)
    bench.run()
    steps = bench.steps()
    assert [step.get("profiled", False) for step in steps] == [False, False, True, True, False, False]
    (event,) = [event for event in bench.logged() if event["event"] == "profile"]
    assert (event["step"], event["num_steps"], event["kind"]) == (4, 2, "gloo")
    assert (event["communication_ms"], event["exposed_ms"]) == (0.0, 0.0)
    # Both steps lie in the window; how much longer it is, is up to the machine.
    assert event["wall_ms"] > 0.99 * sum(step["wall_ms"] for step in steps[2:4])


def test_the_start_and_the_end_of_the_profiler_are_in_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    for owner, name in ((Recorder, "pause"), (Recorder, "resume"), (StepProfiler, "end_step"), (StepProfiler, "stop")):
        real = getattr(owner, name)

        def noted(*args: Any, name: str = name, real: Any = real, **values: Any) -> Any:
            calls.append(f"{name}, profiled" if values.get("is_profiled") else name)
            return real(*args, **values)

        monkeypatch.setattr(owner, name, noted)
    Bench(tmp_path, num_steps=2, warmup_steps=0, profile_steps=1, log_every=9).run()
    assert calls[:3] == ["resume", "pause", "resume, profiled"]
    assert calls[3:8] == ["end_step", "pause", "stop", "resume", "end_step"]


def test_an_evaluation_ends_a_profile(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=6, warmup_steps=1, profile_steps=4, evaluation_due=lambda step: step == 3)
    bench.run()
    assert [step["step"] for step in bench.steps() if step.get("profiled")] == [2, 3]
    assert [event["num_steps"] for event in bench.logged() if event["event"] == "profile"] == [2]


def test_the_end_of_a_run_ends_a_profile(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=3, warmup_steps=1, profile_steps=9)
    bench.run()
    assert [event["num_steps"] for event in bench.logged() if event["event"] == "profile"] == [2]


def test_by_default_nothing_is_profiled(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=3)
    bench.run()
    assert not any("profiled" in step for step in bench.steps())
    assert not any(event["event"] == "profile" for event in bench.logged())

"""Which operators and kernels take the time of profiled steps: by hand, and of a model whose calls are known."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from looping import Bench, row_steps
from raised import check_logged

from paratune.engine import operators
from paratune.engine.operators import NUM_ROWS, Total, operator_totals, operator_values, profile_summary, write_trace

TOTALS = [
    Total("aten::linear", 4, 10.0, 1000.0, 0.0),
    Total("aten::addmm", 4, 900.0, 990.0, 3000.0),
    Total("cudaLaunchKernel", 8, 500.0, 500.0, 0.0),
    Total("sgemm<float, 128>", 4, 0.0, 0.0, 2500.0, on_device=True),
    Total("elementwise", 4, 0.0, 0.0, 500.0, on_device=True),
    Total("Memcpy HtoD (Pinned -> Device)", 2, 0.0, 0.0, 100.0, on_device=True),
]


def test_values_of_a_gpu_match_arithmetic_by_hand():
    values = operator_values(
        TOTALS,
        window=[(1000.0, 11_000.0)],
        host=[(0.0, 4000.0), (3000.0, 6000.0)],
        kernels=[(2000.0, 4000.0), (3500.0, 4500.0), (10_900.0, 12_000.0)],
        has_device=True,
    )
    # 1000 to 6000; 2000 to 4500 and 10900 to 11000. Copies keep the device busy and are no kernels.
    assert (values["host_ms"], values["device_ms"], values["num_kernels"]) == (5.0, pytest.approx(2.6), 8)
    assert [row["name"] for row in values["operators"]] == ["aten::addmm", "cudaLaunchKernel", "aten::linear"]
    assert values["operators"][0] == {
        "name": "aten::addmm",
        "calls": 4,
        "self_host_ms": 0.9,
        "host_ms": 0.99,
        "self_device_ms": 3.0,
    }
    assert [(row["name"], row["calls"], row["device_ms"]) for row in values["kernels"]] == [
        ("sgemm<float, 128>", 4, 2.5),
        ("elementwise", 4, 0.5),
        ("Memcpy HtoD (Pinned -> Device)", 2, 0.1),
    ]


@pytest.mark.parametrize(("totals", "has_device"), [(TOTALS[:3], True), (TOTALS[:3], False)])
def test_a_device_without_visible_kernels_is_unknown_and_not_idle(totals: list[Total], has_device: bool):
    values = operator_values(totals, window=[(0.0, 10.0)], host=[], kernels=[], has_device=has_device)
    assert (values["device_ms"], values["num_kernels"], values["kernels"]) == (None, None, [])
    assert {row["self_device_ms"] for row in values["operators"]} == {None}


def test_an_operator_with_long_kernels_is_listed():
    many = [Total(f"aten::op{number}", 1, 100.0 + number, 100.0, 0.0) for number in range(2 * NUM_ROWS)]
    long = Total("aten::mm", 1, 1.0, 1.0, 9e6)
    kernel = Total("gemm" + "<int>" * 1000, 1, 0.0, 0.0, 9e6, on_device=True)
    values = operator_values([*many, long, kernel], window=[], host=[], kernels=[], has_device=True)
    assert len(values["operators"]) == NUM_ROWS + 1
    assert values["operators"][-1]["name"] == "aten::mm"
    assert len(values["kernels"][0]["name"]) == 160


def profiled(tmp_path: Path, **options: Any) -> dict[str, Any]:
    # Each step has its micro-batch twice.
    batches = [[*step, *step] for step in row_steps(4)]
    bench = Bench(tmp_path, num_steps=4, warmup_steps=1, profile_steps=2, batches=batches, **options)
    bench.run()
    (event,) = [event for event in bench.logged() if event["event"] == "profile"]
    assert [step["step"] for step in bench.steps() if step.get("profiled")] == [2, 3]
    return event


@pytest.mark.parametrize("exchanges", [False, True])
def test_calls_of_operators_are_counted(tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operators, "NUM_ROWS", 1000)  # of so small a model any operator may be among the first 20
    event = profiled(tmp_path, exchanges=exchanges)
    calls = {operator["name"]: operator["calls"] for operator in event["operators"]}
    # Two steps of two micro-batches through two linear layers.
    assert calls["aten::linear"] == 2 * 2 * 2
    assert calls["aten::native_layer_norm"] == 2 * 2
    times = [operator["self_host_ms"] for operator in event["operators"]]
    assert times == sorted(times, reverse=True)
    assert all(0 < operator["self_host_ms"] <= operator["host_ms"] for operator in event["operators"])
    assert not any("paratune" in name or "AdamW.step" in name for name in calls)
    assert 0 < event["host_ms"] <= event["wall_ms"]
    assert (event["device_ms"], event["num_kernels"], event["kernels"]) == (None, None, [])
    assert (event["kind"], event["communication_ms"]) == (("gloo", 0.0) if exchanges else (None, None))


def test_the_trace_is_readable_by_a_browser(tmp_path: Path):
    event = profiled(tmp_path)
    assert event["trace"] == "profile.rank0000.json.gz"
    with gzip.open(tmp_path / event["trace"]) as file:
        trace = json.load(file)
    linear = [trace_event for trace_event in trace["traceEvents"] if trace_event.get("name") == "aten::linear"]
    assert len(linear) == 8
    assert {trace_event["ph"] for trace_event in linear} == {"X"}
    assert not list(tmp_path.glob(".*"))


class Unwritable:
    def export_chrome_trace(self, path: str) -> None:
        raise RuntimeError("the profiler kept nothing")


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert write_trace(Unwritable(), tmp_path, 3) is None  # type: ignore[arg-type]
    check_logged(caplog, "run.file_lost", "profile.rank0003.json.gz")
    assert not list(tmp_path.iterdir())


def test_a_summary_sums_over_ranks_and_lists_operators_of_the_first():
    first = {"num_steps": 2, "wall_ms": 10.0, "host_ms": 8.0, "device_ms": 4.0, "num_kernels": 20}
    first |= {"operators": [{"name": "a"}], "kernels": [{"name": "k"}], "trace": "t"}
    second = first | {
        "wall_ms": 30.0,
        "host_ms": 12.0,
        "device_ms": 8.0,
        "num_kernels": 40,
        "operators": [],
        "trace": None,
    }
    assert profile_summary([first, second], None) == {
        "num_steps": 2,
        "wall_ms_per_step": 10.0,
        "host_ms_per_step": 5.0,
        "device_ms_per_step": 3.0,
        "idle_share": pytest.approx(1 - 12 / 40),
        "num_kernels_per_step": 15.0,
        "operators": [{"name": "a"}],
        "kernels": [{"name": "k"}],
        "trace": "t",
        "reason": None,
    }
    blind = second | {"device_ms": None, "num_kernels": None}
    assert profile_summary([first, blind], None)["idle_share"] is None


def test_without_a_profile_the_summary_has_a_reason():
    # An event of before operators were written down.
    old = {"wall_ms": 10.0, "num_steps": 2, "kind": "gloo"}
    assert profile_summary([], "not asked for")["reason"] == "not asked for"
    summary = profile_summary([old], None)
    assert str(summary["reason"]).startswith("the session ended before")
    assert (summary["operators"], summary["idle_share"]) == ([], None)


def test_marks_are_not_operators():
    class Kind:
        name = "CPU"

    class Event:
        key, count, self_cpu_time_total, cpu_time_total, self_device_time_total = "a", 1, 2.0, 3.0, 0.0
        device_type, is_user_annotation = Kind, False

    class Mark(Event):
        is_user_annotation = True

    class Profile:
        def key_averages(self) -> list[Any]:
            return [Event, Mark]

    assert operator_totals(Profile()) == [Total("a", 1, 2.0, 3.0, 0.0)]  # type: ignore[arg-type]

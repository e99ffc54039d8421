"""Constants are measured, stored and read again; the probes are too short for real values."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from raised import raises_code

from paratune.planning import anchors, calibration, probe_links, probes
from paratune.planning.calibration import calibration_file, refining_runs, store, store_refined, stored_constants
from paratune.planning.clock import CallSeconds, HostCallClock, measure
from paratune.planning.constants import BoundedConstant, Constants
from paratune.planning.machine import detect_machine, this_machine
from paratune.planning.probes import constant_at_one_size, constant_with_curve
from paratune.planning.target import ON_CPU, MeasuredDevice

CPU = torch.device("cpu")
SMALL = replace(
    ON_CPU,
    products=((8, 8, 8), (16, 16, 16)),
    lengths=(8, 16),
    numbers=(1 << 10, 1 << 12),
    weights=(64, 64),
    widths=(8, 16),
    cold=(8, 16, 16, 2),
)
QUICK = MeasuredDevice(CPU, HostCallClock(min_repeat_s=1e-4), SMALL, is_cuda=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path))
    return tmp_path


def test_stored_measurements_are_used() -> None:
    assert this_machine() == detect_machine()
    constants = Constants({"adamw": BoundedConstant(2.0, 1.0, 3.0, "measured")})
    path = store(detect_machine().name, {1: constants, 4: constants})
    assert path == calibration_file(detect_machine().name)
    assert stored_constants(detect_machine().name) == {1: constants, 4: constants}
    assert stored_constants("another machine") == {}
    assert this_machine().is_calibrated
    assert this_machine().constants == constants


def test_nodes_of_one_kind_share_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    path = calibration_file("a CPU")
    monkeypatch.setattr("socket.gethostname", lambda: "another-host")
    assert calibration_file("a CPU") == path
    monkeypatch.setattr(calibration, "this_node", lambda: {"gpus": [], "cpu_model": "a CPU", "num_usable_cores": 1024})
    assert calibration_file("a CPU") != path
    monkeypatch.setattr(calibration, "this_node", lambda: {"gpus": [{"name": "a CPU"}], "cpu_model": "another CPU"})
    assert calibration_file("a CPU").name == "a-cpu-another-cpu.json"


def test_refined_constants_keep_those_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    constants = Constants({"adamw": BoundedConstant(2.0, 1.0, 3.0, "measured")})
    store(detect_machine().name, {1: constants, 8: constants})
    machine = this_machine()
    refined = Constants({"adamw": BoundedConstant(4.0, 3.0, 5.0, "refined")})
    assert refining_runs(machine.name) == []
    store_refined(machine, {1: refined}, ["a"])
    assert stored_constants(machine.name) == {1: refined, 8: constants}
    store_refined(machine, {8: refined}, ["b"])
    assert refining_runs(machine.name) == ["a", "b"]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 7}', '{"schema_version": 1, "by_threads": {"x": {}}}'])
def test_damaged_file_is_an_error(text: str) -> None:
    path = calibration_file("machine")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with raises_code("plan.figures_damaged", "--calibrate"):
        stored_constants("machine")


def test_a_rate_comes_from_the_fastest_call() -> None:
    # 100 bytes in 2 s, 1000 bytes in 4 s; the second's median was half as slow again.
    constant = constant_with_curve([(10.0, 100.0, CallSeconds(2.0, 2.0)), (100.0, 1000.0, CallSeconds(4.0, 6.0))])
    assert constant.curve == ((10.0, 50.0), (100.0, 250.0))
    assert constant.value == 250.0
    assert constant.low == pytest.approx(250 / 1.5)
    assert "median up to 50% slower" in constant.source


def test_spread_widens_the_upper_bound_of_a_time() -> None:
    constant = constant_at_one_size(2.0, CallSeconds(2.0, 3.0), is_rate=False)
    assert (constant.value, constant.high) == (2.0, 3.0)
    assert constant_at_one_size(2.0, CallSeconds(2.0, 3.0), is_rate=True).low == pytest.approx(2 / 1.5)


def test_a_call_is_timed() -> None:
    seconds = measure(lambda: torch.ones(10), HostCallClock(), repeats=3)
    assert 0 < seconds.fastest_s <= seconds.median_s < 0.1
    assert CallSeconds(5.0, 6.0).without(CallSeconds(2.0, 2.5)) == CallSeconds(3.0, 4.0)


def test_every_kernel_is_measured() -> None:
    constants = dict(probes.kernel_figures(QUICK, ["fp32"]))
    assert set(constants) == {
        *("product.fp32", "batched.fp32", "elementwise", "activation", "softmax", "norm", "dropout", "random"),
        *("gather", "scatter", "operands", "adamw", "adamw.tensor", "loader"),
        *("scores", "scores_backward", "rows", "rows_backward"),
    }
    # They are read back: none is out of its bounds.
    assert Constants.from_json(json.loads(json.dumps(Constants(constants).as_json()))) == Constants(constants)


def test_anchors_give_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert anchors.factor_of([1.0, 4.0]).value == pytest.approx(2.0)
    assert anchors.factor_of([1.0, 4.0]).low == pytest.approx(1 / 1.1)
    assert anchors.factor_of([1.0, 4.0]).high == pytest.approx(4.4)
    small = (anchors.Anchor(64, 1, (8, 3)), anchors.Anchor(64, 1, (8, 3), "padded"))
    monkeypatch.setattr(anchors, "ANCHORS", small)
    rates = ("product.fp32", "batched.fp32", "elementwise", "activation", "softmax", "norm", "dropout", "random")
    names = (*rates, "gather", "scores", "scores_backward", "rows", "rows_backward")
    known = {name: BoundedConstant(1e10, 1e10, 1e10, "test") for name in names}
    launches = dict(anchors.launch_figures(QUICK))
    assert set(launches) == {"launch.forward", "launch.backward", "launch.evicted"}
    constants = dict(anchors.factor_figures(QUICK, Constants({**known, **launches})))
    assert set(constants) == {"factor.forward", "factor.backward"}
    for factor in constants.values():
        assert 0 < factor.low < factor.value < factor.high


def test_factors_are_positive_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    profile, *_ = anchors._time_passes(anchors.Anchor(64, 1, (8, 3)), QUICK)
    # Forward alone took longer than both passes: a fifth of both, 0.2 s, is counted for the backward pass.
    monkeypatch.setattr(
        anchors, "_time_passes", lambda anchor, target: (profile, CallSeconds(1.0, 3.0), CallSeconds(0.9, 1.0))
    )
    monkeypatch.setattr(anchors, "pass_time", lambda *args, **options: SimpleNamespace(total_s=2.0))
    factors = dict(anchors.factor_figures(QUICK, Constants({})))
    assert factors["factor.forward"].value == pytest.approx(3.0 / 2.0)
    assert factors["factor.backward"].value == pytest.approx(0.2 / 2.0)


def test_figures_of_a_link() -> None:
    # 16 MiB in 2 s beside 2 s of latency; 1 s alone is 1.5 s together, and 4 s of the 5.5 s of both are left.
    times = {
        "small": CallSeconds(2.0, 2.0),
        "large": CallSeconds(4.0, 4.0),
        "alone": CallSeconds(1.0, 1.0),
        "together": CallSeconds(1.5, 1.5),
        "beside": CallSeconds(4.0, 4.0),
        "gather": CallSeconds(5.0, 5.0),
        "scatter": CallSeconds(9.0, 9.0),
        "shards": CallSeconds(100.0, 100.0),
    }
    constants = dict(probe_links.figures_of(times, probe_links.ON_CPU))
    assert constants["link"].value == pytest.approx(2**24 / 2)
    assert constants["link.latency"].value == 1.0
    # Half of 16 MiB in 5 - 1 and in 9 - 1 seconds; 100 s for 50 tensors.
    assert constants["link.gather"].value == pytest.approx(2**23 / 4)
    assert constants["link.scatter"].value == pytest.approx(2**23 / 8)
    assert constants["adamw.shard"].value == 2.0
    assert constants["together"].value == 1.5
    assert constants["overlap"].value == 1.0
    times["beside"] = CallSeconds(5.5, 5.5)
    assert dict(probe_links.figures_of(times, probe_links.ON_CPU))["overlap"].value == 0.0


@pytest.mark.slow
def test_two_processes_measure_their_link() -> None:
    constants = dict(probe_links.link_figures(CPU, 1))
    assert set(constants) == {
        "link",
        "link.gather",
        "link.scatter",
        "link.latency",
        "adamw.shard",
        "together",
        "overlap",
    }
    assert constants["link"].value > 1e6


def test_calibration_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = BoundedConstant(2e9, 1e9, 3e9, "measured", curve=((1.0, 1e9), (2.0, 2e9)))
    monkeypatch.setattr(probe_links, "link_figures", lambda device, threads: [("link", figure)])
    monkeypatch.setattr(probes, "kernel_figures", lambda target, arithmetics: [("elementwise", figure)])
    monkeypatch.setattr(anchors, "launch_figures", lambda target: [("launch.forward", figure)])
    monkeypatch.setattr(anchors, "factor_figures", lambda target, constants: [("factor.forward", figure)])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    messages: list[str] = []
    before = torch.get_num_threads()
    with_measurements = calibration.calibrate(messages.append)
    assert torch.get_num_threads() == before
    assert set(with_measurements.by_threads) == {3}
    assert with_measurements.machine.is_calibrated
    assert this_machine().constants == with_measurements.machine.constants
    assert messages == ["two processes that exchange bytes", "kernels, with 3 threads"]
    text = "\n".join(with_measurements.lines())
    assert "with 3 threads in a process:" in text
    assert "elementwise: 1 to 2 GB/s (-50% to +50%): bytes/s of sums" in text

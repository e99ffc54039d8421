"""`benchmarks/golden.py`: a changed record, a damaged adapter and a lost number are seen."""

import getpass
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))

from golden_parts import adapter, numbers, records  # noqa: E402
from golden_parts.numbers import Key  # noqa: E402

STORED = Path(__file__).parents[1] / "golden" / "numbers"
REPORT = {"runs": [{"run": "a", "values": {"train_s": 1.5, "seed": 2, "mfu": None}}, {"run": "b", "values": {}}]}


def key(measure: str, subject: str = "a", unit: str = "", statistic: str = "value") -> Key:
    return Key("case", subject, measure, unit, statistic)


def collected(monkeypatch: pytest.MonkeyPatch, *documents: tuple[str, Any]) -> adapter.Found:
    cases = [("case", kind, document) for kind, document in documents]
    monkeypatch.setattr(adapter, "documents", lambda folder: iter(cases))
    return adapter.collect(Path())


def test_numbers_are_equal_different_lost_or_new():
    expected = {key("x"): "1.0", key("y"): "0.1", key("z"): "3", key("v"): "faster"}
    actual = {key("x"): "1.0000000000000002", key("y"): "0.1000000000002", key("w"): "4", key("v"): "slower"}
    found = numbers.compare(expected, actual)
    assert found.num_equal == 1  # another processor rounds the last digits in another way
    assert found.differs == {key("y"): ("0.1", "0.1000000000002"), key("v"): ("faster", "slower")}
    assert (found.lost, found.new) == ({key("z"): "3"}, {key("w"): "4"})
    assert not found.is_equal
    assert not numbers.compare(expected, {key("x"): "1.0", key("y"): "0.1"}).is_equal
    assert numbers.compare(expected, {**expected, key("w"): "4"}).is_equal


def test_the_table_is_read_as_it_was_written(tmp_path: Path):
    table = {key("x", "a, b", "1/s", "low 1"): "-0.1", key('"'): "'cannot tell'"}
    numbers.write(tmp_path / "x.csv", table)
    assert numbers.read(tmp_path / "x.csv") == table


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step_median_ms", ("step median", "ms")),
        ("samples_per_s", ("samples", "1/s")),
        ("train_s", ("train", "s")),
        ("peak_memory_largest_bytes", ("peak memory largest", "bytes")),
        ("validation F1, macro ↑", ("validation f1 macro", "")),
        ("data.split.seed", ("data.split.seed", "")),
    ],
)
def test_a_measure_has_a_plain_name_and_a_unit(name: str, expected: tuple[str, str]):
    assert adapter.plain(name) == expected


def test_documents_that_agree_give_one_number(monkeypatch: pytest.MonkeyPatch):
    found = collected(monkeypatch, ("report", REPORT), ("csv", "run,train_s,seed,device\na,1.5,2,cpu\n"))
    assert found.numbers == {key("train", unit="s"): "1.5", key("seed"): "2"}
    assert (found.num_cells, found.left, found.share) == (4, [], 1.0)


def test_documents_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=r"1\.25.*1\.5"):
        collected(monkeypatch, ("report", REPORT), ("csv", "run,train_s\na,1.25\n"))


def test_cells_without_a_rule_are_counted(monkeypatch: pytest.MonkeyPatch):
    found = collected(monkeypatch, ("report", {**REPORT, "unheard": {"of": 7}}))
    assert found.left == ["report: unheard of"]
    assert found.share == pytest.approx(2 / 3)


def test_a_verdict_is_about_a_pair(monkeypatch: pytest.MonkeyPatch):
    speed = {"change": 0.5, "low": None, "outcome": "cannot tell", "is_better": None}
    verdict = {"label": "b", "baseline": "a", "speed": speed, "quality": [{"measure": "f1", "change": -0.25}]}
    found = collected(monkeypatch, ("report", {"verdicts": [verdict]}))
    assert found.numbers == {
        key("verdict samples", "b against a", "1/s", "change"): "0.5",
        key("verdict samples", "b against a", "1/s", "outcome"): "'cannot tell'",
        key("verdict samples", "b against a", "1/s", "is_better"): "None",
        key("verdict f1", "b against a", "", "change"): "-0.25",
    }


def test_rows_of_equal_names_are_kept_apart():
    table = {"key": "published", "rows": [{"x": {"text": "a"}, "y": {"text": "1", "value": n}} for n in (1, 2)]}
    paths = [path for path, value in adapter.walk({"tables": [table]}) if path[-1] == "value"]
    assert paths == [("tables", "published", "rows", f"a #{n}", "y", "value") for n in (0, 1)]


def test_names_of_the_machine_are_replaced(tmp_path: Path):
    folder = tmp_path / "made"
    text = f'{{"directory": "{folder}/x", "python": "{sys.prefix}/bin", "hostname": "{socket.gethostname()}"}}'
    words = '{"directory": "/golden/x", "python": "/python/bin", "hostname": "machine"}'
    assert records.without_names(text, folder) == words
    for name in (str(tmp_path), getpass.getuser()):
        with pytest.raises(ValueError, match=name):
            records.without_names(f'{{"x": "{name}"}}', folder)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    records.unpack(STORED / "records.tar.xz", folder)
    return folder


def some_documents(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield the documents of six runs that need no figures."""
    import paratune

    case = "packed and padded"
    runs = [folder / "runs" / name for name in adapter.CASES[case]]
    yield "events", "events", {runs[0].name: adapter.from_events(runs[0])}
    yield case, "report", paratune.report(*runs, target=adapter.TARGETS[case]).as_dict()


def differences(folder: Path, monkeypatch: pytest.MonkeyPatch) -> numbers.Differences:
    monkeypatch.setattr(adapter, "documents", some_documents)
    expected = numbers.read(STORED / "expected.csv")
    actual = adapter.collect(folder).numbers
    measured = {key: value for key, value in expected.items() if key in actual or key.case == "packed and padded"}
    return numbers.compare(measured, actual)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "name"),
    [("summary.json", "train_s"), ("events.rank0000.jsonl", "wall_ms"), ("events.rank0000.jsonl", "loss")],
)
def test_one_changed_number_of_a_record_is_seen(stored: Path, monkeypatch: pytest.MonkeyPatch, file: str, name: str):
    path = stored / "runs" / "packed-1" / file
    before = path.read_bytes()
    assert not differences(stored, monkeypatch).differs
    try:
        old, new = records.change_number(stored, f"runs/packed-1/{file}", name)
        assert old != new
        assert differences(stored, monkeypatch).differs
    finally:
        path.write_bytes(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("runs {subject} values {measure}", "runs {subject} figures {measure}"),
        ("runs {subject} values {measure}", "runs {subject} values {measure} -> mean"),
        ("verdicts {subject} speed {rest} -> verdict samples_per_s", "verdicts {subject} quality 0 {rest}"),
    ],
)
def test_a_damaged_adapter_is_seen(stored: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str):
    rules = adapter.RULES["report"]
    assert old in rules
    monkeypatch.setitem(adapter.RULES, "report", tuple(new if rule == old else rule for rule in rules))
    assert differences(stored, monkeypatch).lost


@pytest.mark.slow
def test_all_golden_numbers_are_as_they_were(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    import golden

    monkeypatch.setattr(sys, "argv", ["golden.py"])
    assert golden.main() == 0, capsys.readouterr().out

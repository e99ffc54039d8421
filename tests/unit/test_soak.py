"""`benchmarks/soak.py` finds planted bugs: writers that are not atomic, readers that are wrong."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))

from soak_parts import fuzz, killer  # noqa: E402
from soak_parts.findings import DIFFERENCE, STUCK, TRACEBACK, Count, Finding, table  # noqa: E402
from soak_parts.fuzz import Difference, Reader, damage, feed  # noqa: E402
from soak_parts.read_tables import rfc4180  # noqa: E402
from soak_parts.results import first_difference  # noqa: E402

WRITES = "import pathlib; pathlib.Path('a').write_text('0123456789'); pathlib.Path('a').rename('b')"
"""Operations on files: open, write, rename."""
TRIAL = """
import json, signal, sys
from pathlib import Path
from soak_parts import killer, trials, warm
from soak_parts.kinds import Kind
from paratune.base.atomic import write_text

def torn(words):
    Path("out").write_text("0123456789")

def careful(words):
    if not Path("out").exists():
        write_text(Path("out"), "0123456789")
    for path in Path().glob(".*.tmp"):
        path.unlink()

def resumed(words):  # takes what is there for whole
    if not Path("out").exists():
        torn(words)

def fails(words):
    Path("out").write_text("0123456789")
    if "again" in words:
        raise RuntimeError("planted")

def run(words):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own way is a traceback
    globals()[sys.argv[1]](words)

warm.run_paratune = run
folder = Path(sys.argv[2])
kind = Kind("planted", ("x",), ("again",), lambda world: None, lambda place: {"out": (place / "out").read_text()})
reference = trials.refer(kind, folder, True)
found = [trials.run_trial(reference, number, 1, folder / f"trial{number}") for number in range(12)]
kills = sum(kills for kills, _ in found)
sorts = sorted({finding.sort for _, findings in found for finding in findings})
print(json.dumps([reference.operations, kills, sorts]))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = killer.build(tmp_path_factory.mktemp("killer"))
    if built is None:
        pytest.skip("no C compiler, or no Linux")
    return built


def run_under(library: Path, order: Path, folder: Path, code: str) -> int:
    environment = {**os.environ, "LD_PRELOAD": str(library), killer.VARIABLE: str(order)}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment).returncode


@pytest.mark.parametrize(
    ("at", "moment", "left"),
    [
        (1, killer.BEFORE, {}),
        (1, killer.AFTER, {"a": ""}),
        (2, killer.WITHIN, {"a": "01234"}),  # 500 thousandths of 10 bytes
        (2, killer.AFTER, {"a": "0123456789"}),
        (3, killer.BEFORE, {"a": "0123456789"}),
        (3, killer.AFTER, {"b": "0123456789"}),
    ],
)
def test_a_process_is_killed_at_the_operation_that_the_order_names(
    library: Path, tmp_path: Path, at: int, moment: int, left: dict[str, str]
):
    folder = tmp_path / "folder"
    folder.mkdir()
    killer.write_order(tmp_path / "order", killer.Order(at, signal.SIGKILL, moment), folder)
    assert run_under(library, tmp_path / "order", folder, WRITES) == -signal.SIGKILL
    assert {path.name: path.read_text() for path in folder.iterdir()} == left
    assert killer.counts(tmp_path / "order") == (at, 1)


def test_an_order_without_a_place_counts_operations_below_its_folder_alone(library: Path, tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    killer.write_order(tmp_path / "order", killer.Order(), folder)
    elsewhere = f"{WRITES}; pathlib.Path({str(tmp_path / 'c')!r}).write_text('x')"
    assert run_under(library, tmp_path / "order", folder, elsewhere) == 0
    assert killer.counts(tmp_path / "order") == (3, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "sorts"),
    [("careful", []), ("torn", []), ("resumed", [DIFFERENCE]), ("fails", [DIFFERENCE, TRACEBACK])],
)
def test_trials_find_a_command_that_takes_torn_files_for_whole(
    library: Path, tmp_path: Path, planted: str, sorts: list[str]
):
    """`torn` writes its file again each time, so that nothing of a kill is left at its end."""
    paths = [str(BENCHMARKS), str(BENCHMARKS.parent / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-c", TRIAL, planted, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    operations, kills, found = json.loads(done.stdout.splitlines()[-1])
    assert operations >= 2
    assert kills >= 6
    assert found == sorts


def reader(read: object) -> Reader:
    return Reader("planted", st.binary(min_size=4, max_size=8), bytes, lambda *_: None, read)  # type: ignore[arg-type]


def swallows(document: bytes, raw: bytes, place: Path) -> None:
    """Raises a difference where a file has lost its end, as if a reader had not seen that."""
    if raw != document and document.startswith(raw):
        raise Difference("swallowed")


def breaks(document: bytes, raw: bytes, place: Path) -> None:
    raw.decode()


def hangs(document: bytes, raw: bytes, place: Path) -> None:
    while raw != document:
        pass


@pytest.mark.parametrize(("read", "sort"), [(swallows, DIFFERENCE), (breaks, TRACEBACK), (hangs, STUCK)])
def test_a_reader_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: object, sort: str):
    monkeypatch.setattr(fuzz, "INPUT_S", 0.2)
    count, (finding,) = feed(reader(read), 1, tmp_path)
    assert count > 0
    assert (finding.sort, finding.kind) == (sort, "planted")


def test_a_reader_that_is_right_is_fed_with_whole_and_damaged_files(tmp_path: Path):
    seen = []
    check = reader(lambda document, raw, place: seen.append((document, raw)))
    assert feed(check, 1, tmp_path, num_examples=20) == (20 * (1 + fuzz.COPIES), [])
    assert any(document != raw for document, raw in seen)
    again: list[object] = []
    feed(reader(lambda document, raw, place: again.append((document, raw))), 1, tmp_path, num_examples=20)
    assert seen == again
    assert list(tmp_path.iterdir()) == []


def test_damage_is_a_function_of_its_draw():
    raw = bytes(range(100))
    copies = [damage(raw, random.Random(number)) for number in range(50)]
    assert copies == [damage(raw, random.Random(number)) for number in range(50)]
    assert sum(copy != raw for copy in copies) >= 40
    assert damage(b"", random.Random(0)) is not None


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ('a,b\r\n"c,d","e""f"\n', [["a", "b"], ["c,d", 'e"f']]),
        ('a\n\n""\n"x\r\ny"', [["a"], [""], ["x\r\ny"]]),
        ('a"b,c', [['a"b', "c"]]),
        ("a,\rb,", [["a", ""], ["b", ""]]),
    ],
)
def test_records_of_rfc_4180(text: str, records: list[list[str]]):
    assert rfc4180(text, ",") == records


@pytest.mark.parametrize("text", ['"a', '"a"b', 'a,"b\n'])
def test_quotes_that_rfc_4180_does_not_allow(text: str):
    with pytest.raises(ValueError, match="quote"):
        rfc4180(text, ",")


@pytest.mark.parametrize(
    ("expected", "actual", "text"),
    [
        ({"a": [1, 2]}, {"a": [1, 2]}, None),
        ({"a": [1, 2]}, {"a": [1, 3]}, ".a[1]: 3, expected 2"),
        ({"a": 1}, {"a": 1, "b": 2}, ".b: not expected"),
        ({"a": 1}, {}, ".a: missing"),
        ({"a": [1]}, {"a": []}, ".a: 0 values, expected 1"),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, ".a: 0.3, expected 0.30000000000000004"),
    ],
)
def test_the_first_difference_is_named(expected: object, actual: object, text: str | None):
    assert first_difference(expected, actual) == text


def test_the_table_counts_findings_by_sort_and_sums_all():
    findings = [Finding(DIFFERENCE, "ddp", 1, "x"), Finding(STUCK, "ddp", 2, "x")]
    lines = table([Count("ddp", 3, 5, 0, 1.6, findings), Count("csv", 2, 0, 800, 1.2)]).splitlines()
    assert lines[2] == "| ddp | 3 | 5 | 0 | 1 | 0 | 1 | 2 |"
    assert lines[-1] == "| all | 5 | 5 | 800 | 1 | 0 | 1 | 3 |"


def test_a_soak_ends_after_its_number_of_kills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from soak_parts import soak

    def command(kind: object, seed: int, folder: Path) -> object:
        return soak._Turn(Count(kind.name), 1.0, lambda number: (2, 0, []))

    monkeypatch.setattr(soak.warm, "preload", lambda: None)
    monkeypatch.setattr(soak, "_command", command)
    limits = {"seconds": 60.0, "trial": None, "reading": 0.3}
    counts = soak.run(["single", "ddp"], 1, tmp_path, kills=5, **limits)
    # Trials of two kills: the third one reaches 5.
    assert sum(count.kills for count in counts) == 6


def test_kinds_without_readers_are_commands():
    from soak_parts import soak

    assert {"own-code", "until", "launch"} <= set(soak.names(readers=False))
    assert "csv" not in soak.names(readers=False)

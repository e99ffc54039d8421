import importlib
import pickle
import re
from pathlib import Path

import pytest
from raised import raises_code

from paratune import errors
from paratune.corpus.web import Unavailable
from paratune.errors import (
    CheckpointError,
    ConfigError,
    Fault,
    ParatuneError,
    did_you_mean,
    is_installed,
    os_error_as,
    require,
    require_installed,
)

FAMILY = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ParatuneError)]


def test_each_error_is_a_builtin_too():
    builtin = {cls.__name__: cls.__mro__[2].__name__ for cls in FAMILY if len(cls.__bases__) == 2}
    assert builtin == {
        "ConfigError": "ValueError",
        "DataError": "ValueError",
        "CheckpointError": "OSError",
        "LaunchError": "RuntimeError",
        "MissingDependency": "ImportError",
        "NotFiniteError": "ArithmeticError",
        "OutOfMemory": "MemoryError",
    }


@pytest.mark.parametrize("cls", FAMILY)
def test_an_error_has_a_message_a_code_and_facts(cls):
    error = cls("x.yaml: line 3", code="config.syntax", path=Path("x.yaml"), line=3)
    assert str(error) == "x.yaml: line 3"
    assert error.code == "config.syntax"
    assert error.codes == ("config.syntax",)
    assert error.facts == {"path": Path("x.yaml"), "line": 3}
    assert error.text() == "x.yaml: line 3  [config.syntax]"


FAULTS = (Fault("config.required", "data.train is required", {"line": 2}), Fault("config.no_effect", "no effect"))


def test_an_error_that_lists_faults_shows_the_code_of_each():
    error = ConfigError("x.yaml: 2 problems", code="config.required", faults=FAULTS)
    assert str(error) == "x.yaml: 2 problems\n  data.train is required\n  no effect"
    assert error.codes == ("config.required", "config.no_effect")
    assert error.facts == {"line": 2}
    assert error.text().splitlines() == [
        "x.yaml: 2 problems",
        "  data.train is required  [config.required]",
        "  no effect  [config.no_effect]",
    ]


@pytest.mark.parametrize("faults", [(), FAULTS])
def test_an_error_from_a_process_pool_keeps_its_codes_and_facts(faults):
    error = CheckpointError("damaged", code="run.damaged", faults=faults, **({} if faults else {"path": "x"}))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code, copy.faults) == (CheckpointError, str(error), error.code, error.faults)


def test_each_kind_of_error_has_its_own_exit_code():
    codes = [cls.exit_code for cls in FAMILY]
    assert len(set(codes)) == len(codes)
    # 1 and 2 and up to 125 are the program's; a shell uses 126 to 128, and 128 + n for a signal.
    assert all(0 < code < 126 for code in codes)


def test_the_page_of_exit_codes_is_complete():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "exit_codes.md").read_text()
    documented = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `?(\w+)`? \|", page, re.MULTILINE)}
    constants = {value: name for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {code for code in documented if code < 128} == set(constants)
    for cls in FAMILY:
        if cls is not ParatuneError:
            assert documented[cls.exit_code] == cls.__name__


def test_require_gives_the_package():
    assert require("json", extra="demo").dumps([]) == "[]"


def test_require_names_the_package_and_the_extra():
    with raises_code("dependency.missing", "no_such_package", "paratune[plots]"):
        require("no_such_package", extra="plots")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("learning_rte", "; did you mean learning_rate?"),
        ("LEARNING_RATE", "; did you mean learning_rate?"),
        ("acuracy", "; did you mean Accuracy?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_did_you_mean(word, expected):
    assert did_you_mean(word, ["learning_rate", "warmup_steps", "Accuracy"]) == expected


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("fp16", ["fp32", "fp64"], ""),
        ("bf61", ["bf16"], ""),
        ("dpp", ["single", "ddp"], "; did you mean ddp?"),
        # Suffixes are alike in all files of a kind.
        ("nofile.csv", ["hostile.csv"], ""),
        ("d.yaml", ["c.yaml"], ""),
        ("dota.csv", ["data.csv", "data.tsv"], "; did you mean data.csv?"),
        ("data.tvs", ["data.csv", "data.tsv"], "; did you mean data.tsv?"),
        ("step_000100", ["step_000200", "step_000300"], ""),
        ("tuor-2", ["tour-1", "tour-2"], "; did you mean tour-2?"),
        ("tex", ["text1"], "; did you mean text1?"),
    ],
)
def test_did_you_mean_is_sure(word, known, expected):
    assert did_you_mean(word, known) == expected


def test_did_you_mean_is_empty_without_a_near_name():
    assert did_you_mean("x", []) == ""


def test_a_missing_package_is_detected_without_an_import():
    require_installed("antigravity", extra="fun")  # importing it would open a browser
    with raises_code("dependency.missing", "absent_package", "fun"):
        require_installed("absent_package", extra="fun")


@pytest.mark.parametrize("is_out", [True, False])
def test_an_error_called_in_its_own_way_crosses_to_another_process(is_out: bool):
    """A process pool pickles what a worker raises; where that fails it takes the worker for dead."""
    sent = pickle.loads(pickle.dumps(Unavailable("HTTP 503", is_out=is_out)))
    assert (type(sent), str(sent), sent.is_out, sent.code) == (Unavailable, "HTTP 503", is_out, "corpus.server")
    error = CheckpointError("y", code="a.b", where=3)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.facts, again.exit_code) == ("y", "a.b", {"where": 3}, error.exit_code)


def test_folder_of_a_package_s_name_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "absent_tracker").mkdir()  # such as the folder that wandb writes its files to
    assert not is_installed("absent_tracker")
    (tmp_path / "absent_tracker" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert is_installed("absent_tracker")
    assert not is_installed("absent_around.absent_tracker")


def test_an_error_of_the_system_becomes_a_coded_one_with_its_reason(tmp_path: Path):
    place = tmp_path / "missing" / "file"
    with (
        raises_code("output.not_writable", str(place), "No such file or directory", path=place) as raised,
        os_error_as(
            CheckpointError, f"{place} cannot be written", "choose another", code="output.not_writable", path=place
        ),
    ):
        place.write_text("")
    assert type(raised.value) is CheckpointError
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_other_errors_pass_unchanged():
    with pytest.raises(ZeroDivisionError), os_error_as(CheckpointError, "x", code="output.not_writable"):
        _ = 1 / 0

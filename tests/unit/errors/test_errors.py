import re
from pathlib import Path

import pytest

from paratune import errors
from paratune.errors import MissingDependency, ParatuneError, did_you_mean, require, require_installed

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
def test_an_error_says_its_text(cls):
    assert str(cls("x.yaml: line 3")) == "x.yaml: line 3"


def test_each_kind_of_error_has_its_own_exit_code():
    codes = [cls.exit_code for cls in FAMILY]
    assert len(set(codes)) == len(codes)
    # 1 and 2 and up to 125 are the program's; a shell uses 126 to 128, and 128 + n for a signal.
    assert all(0 < code < 126 for code in codes)


def test_the_page_of_exit_codes_is_complete():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "exit_codes.md").read_text()
    documented = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `?(\w+)`? \|", page, re.MULTILINE)}
    constants = {value: name for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {code for code in documented if code < 128} == set(constants)
    for cls in FAMILY:
        if cls is not ParatuneError:
            assert documented[cls.exit_code] == cls.__name__


def test_require_gives_the_package():
    assert require("json", extra="demo").dumps([]) == "[]"


def test_require_names_the_package_and_the_extra():
    with pytest.raises(MissingDependency, match=r"no_such_package is not installed .*pip install 'paratune\[plots\]'"):
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


def test_did_you_mean_nothing():
    assert did_you_mean("x", []) == ""


def test_a_package_that_is_missing_is_told_without_importing_it():
    require_installed("antigravity", extra="fun")  # importing it would open a browser
    with pytest.raises(MissingDependency, match=r"absent_package is not installed.*paratune\[fun\]"):
        require_installed("absent_package", extra="fun")

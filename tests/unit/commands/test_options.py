"""The command of a public function, and the check of a file before its content is computed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from cyclopts import App
from raised import raises_code

from paratune.commands.options import SHORT_NAMES, Overrides, check_output, command, short_names
from paratune.config.options import find_key
from paratune.config.sections import Config


def public(*runs: str | Path, by: str | Sequence[str] = (), price: float | None = None) -> dict[str, object]:
    """Compare runs.

    RUNS are folders.

    Args:
        runs: Runs.
        by: Axes of a matrix, which
            are compared.
        price: JSON is not its format.

    Returns:
        What it got.
    """
    return {"runs": runs, "by": list(by), "price": price}


def test_arguments_are_options_and_the_docstring_is_the_help(capsys: pytest.CaptureFixture[str]):
    results: list[tuple[object, bool]] = []
    app = App()
    app.default(command(public, lambda result, as_json: results.append((result, as_json)) or 3))
    words = ["a", "b", "--by", "x", "--by", "y", "--price", "2", "--json"]
    assert app(words, result_action="return_value") == 3
    assert results == [({"runs": ("a", "b"), "by": ["x", "y"], "price": 2.0}, True)]
    app(["--help"], result_action="return_value")
    shown = " ".join(capsys.readouterr().out.split())
    assert "RUNS are folders." in shown
    assert "axes of a matrix, which are compared" in shown
    assert "JSON is not its format" in shown
    assert "What it got" not in shown


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("a.txt", {"suffixes": (".csv",)}, "output.format"),
        ("folder", {"overwrite": True}, "output.not_writable"),
        ("taken.csv", {}, "output.exists"),
        ("nowhere/a.csv", {}, "output.not_writable"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path, name: str, options: dict, code: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken.csv").touch()
    with raises_code(code, "--out"):
        check_output(tmp_path / name, option="--out", **options)
    check_output(tmp_path / "taken.csv", option="--out", overwrite=True)


def _command(got: list[list[str]]) -> App:
    def work(config: Path, *, set_: Overrides = (), nproc: int = 1) -> int:
        got.append(list(set_))
        return 0

    app = App()
    app.default(short_names(work))
    return app


def test_a_short_name_is_a_setting(capsys: pytest.CaptureFixture[str]):
    got: list[list[str]] = []
    app = _command(got)
    for name, key in SHORT_NAMES.items():
        assert find_key(key.rpartition(".")[2], Config) is not None
        app(["my.yaml", f"--{name.replace('_', '-')}", "7", "--set", "a.b=1"], result_action="return_value")
        assert got.pop() == ["a.b=1", f"{key}=7"]
    app(["--help"], result_action="return_value")
    shown = capsys.readouterr().out
    assert [key for key in SHORT_NAMES.values() if key not in shown] == []


@pytest.mark.parametrize("override", ["train.learning_rate=1", "train={learning_rate: 1}", "train.learning_rate="])
def test_a_short_name_contradicts_the_same_setting(override: str):
    with raises_code("cli.conflict", "--lr", "train.learning_rate"):
        _command([])(["my.yaml", "--set", override, "--lr", "2"], result_action="return_value")

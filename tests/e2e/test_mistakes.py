"""53 typical mistakes get an error with a stable code, the wrong value and the allowed values."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mistakes import CONFIG, MISTAKES, Mistake, rows
from raised import check_code, check_shown

from paratune.base.stop_signals import STOP_SIGNALS
from paratune.cli import run
from paratune.errors import ParatuneError


@pytest.fixture
def beginning(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with c.yaml, data.csv and model/, as the working directory; commands run in this process."""
    (tmp_path / "model").symlink_to(tiny_folder / "model")
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "data.csv").write_text(rows())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_there_are_53_mistakes():
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) == 53


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered_by_its_code(mistake: Mistake, beginning: Path, capsys: pytest.CaptureFixture[str]):
    mistake.prepare(beginning)
    try:
        run(mistake.arguments)
    except ParatuneError as error:
        check_code(error, mistake.code, *mistake.values)
    except SystemExit:  # the parser of the command line prints its error
        check_shown(" ".join(capsys.readouterr().err.split()), mistake.code, *mistake.values)
    else:
        pytest.fail("the command succeeded")
    assert not (beginning / "runs").exists()

"""The checks of `benchmarks/gpu.py` that can pass or fail, one test each, on a GPU: see docs/howto/gpu.md.

The checks are data in the modules of `benchmarks/gpu_parts`: trainings in each precision, kernels, dropout,
architectures, waits, the clock, memory against the plan, resuming, running out of memory, certificates, two ranks.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.insert(0, BENCHMARKS)

from gpu import find_tokenizer  # noqa: E402
from gpu_parts.part import checks_of  # noqa: E402
from gpu_parts.setting import Check, Setting, Skipped  # noqa: E402

PARTS = ("smoke", "dtypes", "kernels", "models", "loop", "capture", "resume", "plan", "certify", "oom", "ranks")
LIMIT_S = 900.0
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def setting(name: str, folder: Path) -> Setting:
    return Setting(torch.device("cuda", 0), False, folder, find_tokenizer(), time.time() + LIMIT_S)


def proving(name: str, context: Setting) -> Iterator[Check]:
    return (check for check in checks_of(name, context) if check.proves)


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Check]]:
    """Return the checks of all parts by name; the checks of a part share a folder and its runs."""
    if not torch.cuda.is_available():
        pytest.skip("no visible GPU: run make test-gpu on a machine with a GPU")
    return {
        name: {check.name: check for check in proving(name, setting(name, tmp_path_factory.mktemp(name)))}
        for name in PARTS
    }


def names() -> list[tuple[str, str]]:
    """Return part and check; the list of checks is the same with and without a GPU."""
    return [(name, check.name) for name in PARTS for check in proving(name, setting(name, Path()))]


@pytest.mark.parametrize(("part", "name"), names())
def test_check(checks: dict[str, dict[str, Check]], part: str, name: str) -> None:
    try:
        assert checks[part][name].run()
    except Skipped as skipped:
        pytest.skip(str(skipped))

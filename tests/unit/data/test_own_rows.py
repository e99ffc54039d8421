"""Data sets from outside the package: the text of docs/howto/extend.md, written as a module."""

import importlib
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from raised import raises_code

from paratune.data.read import read_table

pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
CODE = """
import pyarrow as pa
class Squares:
    def __init__(self, grows=""): self.size, self.grows = 3, grows
    def __len__(self): return self.size
    def __getitem__(self, number):
        self.size += bool(self.grows)
        if number >= 3: raise IndexError
        return {"x": number**2}
def table(): return pa.table({"x": [1]})
def tuples(): return [("a", 1)]
def number(): return 3
def mixed(): return [{"x": 1}, {"x": "a"}]
def breaks():
    yield {"x": 1}
    raise OSError("gone")
def empty(): return []
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_data.py").write_text("\n".join(text for text in blocks if "# my_data" in text) + CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_data", None)


def test_the_page_s_data_set_gets_its_arguments():
    table = read_table("code:my_data:reviews?part=test")
    assert (table.num_rows, table["text"][1].as_py(), table["label"][1].as_py()) == (100, "test text 1", "good")
    assert read_table("code:my_data:reviews?part=")["text"][1].as_py() == " text 1"


def test_objects_with_items_and_tables():
    assert read_table("code:my_data:Squares")["x"].to_pylist() == [0, 1, 4]
    assert read_table("code:my_data:table").equals(pa.table({"x": [1]}))


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("code:my_data:Squares?grows=yes", "data.own_rows"),
        ("code:my_data:tuples", "data.own_rows"),
        ("code:my_data:number", "data.own_rows"),
        ("code:my_data:mixed", "data.own_rows"),
        ("code:my_data:breaks", "data.own_rows"),
        ("code:my_data:empty", "data.empty"),
        ("code:my_data:absent", "own_code.not_found"),
        ("code:my_data", "own_code.not_found"),
        ("code:my_data:table?x=1", "own_code.raised"),
        ("code:my_data:table?x", "data.own_arguments"),
        ("code:my_data:reviews?part=a&part=b", "data.own_arguments"),
    ],
)
def test_errors_have_codes(source, code):
    with raises_code(code, source.partition("?")[0].removeprefix("code:")):
        read_table(source)

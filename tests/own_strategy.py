"""The strategy that docs/explanation/strategies.md shows, as a module: `from own_strategy import write_module`."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "explanation" / "strategies.md"
MODULE = "my_strategy"
KIND = f"{MODULE}:FlatDDP"


def code() -> str:
    """Return the code block of the page."""
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    return block


def write_module(folder: Path) -> Path:
    """Write the module as a user would, and return its folder, which must be on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{MODULE}.py").write_text(code(), encoding="utf-8")
    return folder

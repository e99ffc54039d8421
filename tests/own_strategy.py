"""The strategy that docs/explanation/strategies.md shows, as a module: `from own_strategy import write_module`."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "explanation" / "strategies.md"
MODULE = "my_strategy"
KIND = f"{MODULE}:FlatDDP"


def code() -> str:
    """Return the block of the document."""
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    return block


def write_module(folder: Path) -> Path:
    """Write it where a user would, and return the folder, which belongs on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{MODULE}.py").write_text(code(), encoding="utf-8")
    return folder

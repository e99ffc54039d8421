"""Results of the parts as Markdown: one section per part, one table for rows with the same figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .runner import PARTS

Row = Mapping[str, Any]


def lines(results: Mapping[str, Any]) -> list[str]:
    """Return the page."""
    parts = results["parts"]
    page = [
        f"# Proofs on {results['card']}",
        "",
        *(f"- {line}" for line in results["about"]),
        "",
        "| part | status | checks ok | wrong | errors | skipped | seconds |",
        "|---|---|---|---|---|---|---|",
        *(_overview(part.name, part.title, parts[part.name]) for part in PARTS if part.name in parts),
    ]
    bad = [(name, row) for name, part in parts.items() for row in part["rows"] if row["status"] in ("wrong", "error")]
    if bad:
        page += ["", "## What is not as it should be", ""]
        page += [f"- **{name}**, {row['name']}: {row['status']}: {_cell(row['reason'])}" for name, row in bad]
    for part in PARTS:
        if part.name in parts:
            page += ["", f"## {part.title}", "", *_section(parts[part.name])]
    return page


def _overview(name: str, title: str, part: Mapping[str, Any]) -> str:
    counts = [sum(row["status"] == status for row in part["rows"]) for status in ("ok", "wrong", "error", "skipped")]
    cells = [f"{title} (`{name}`)", part["status"], *map(str, counts), f"{part['seconds']:.0f}"]
    return "| " + " | ".join(cells) + " |"


def _section(part: Mapping[str, Any]) -> Iterator[str]:
    for title, rows in _tables(part["rows"]):
        if title:
            yield from (f"### {title}", "")
        if title or len(rows) > 1:
            yield from _table(rows)
        else:
            yield from _list(rows[0])
        yield ""
    if part.get("reason"):
        yield f"This part was not finished: {part['reason']}."
    if part.get("log"):
        yield from ("", "```", *part["log"], "```")


def _tables(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return rows by the table that they belong to; a row without a table is alone."""
    tables: dict[str, list[Row]] = {}
    for number, row in enumerate(rows):
        tables.setdefault(row["table"] or f"\0{number}", []).append(row)
    return [(title if not title.startswith("\0") else "", members) for title, members in tables.items()]


def _table(rows: Sequence[Row]) -> Iterator[str]:
    keys = list(dict.fromkeys(key for row in rows for key in row["figures"]))
    yield "| | status | " + " | ".join(_title(key) for key in keys) + (" | reason |" if _reasons(rows) else " |")
    yield "|---" * (len(keys) + 2 + _reasons(rows)) + "|"
    for row in rows:
        cells = [row["name"], row["status"], *(_cell(row["figures"].get(key), key) for key in keys)]
        yield "| " + " | ".join([*cells, *([_cell(row["reason"])] if _reasons(rows) else [])]) + " |"


def _reasons(rows: Sequence[Row]) -> bool:
    return any(row["reason"] for row in rows)


def _list(row: Row) -> Iterator[str]:
    reason = f": {_cell(row['reason'])}" if row["reason"] else ""
    yield f"**{row['name']}**: {row['status']}{reason}"
    if row["figures"]:
        yield ""
    for key, value in row["figures"].items():
        yield f"- {_title(key)}: {_cell(value, key)}"


def _title(key: str) -> str:
    for suffix, unit in (("_bytes", "GiB"), ("_per_s", None), ("_ms", "ms"), ("_us", "us"), ("_s", "s")):
        if key.endswith(suffix) and unit is not None:
            return f"{key.removesuffix(suffix).replace('_', ' ')} ({unit})"
        if key.endswith(suffix):
            break
    return key.replace("_per_s", "/s").replace("_", " ")


def _cell(value: Any, key: str = "") -> str:
    """Return a figure as text; a spread as its median with the 10th to the 90th percentile."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and key.endswith("_bytes"):
        return f"{value / 2**30:.2f}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict) and set(value) == {"median", "p10", "p90", "num"}:
        return f"{_cell(value['median'])} ({_cell(value['p10'])} to {_cell(value['p90'])}, n = {value['num']})"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(element, key) for element in value)
    return str(value).replace("|", "/").replace("\n", " ")[:600]

"""Tables as Markdown, GitHub's flavour."""

from paratune.reports.tables.table import Table
from paratune.reports.text import markdown


def markdown_table(table: Table) -> str:
    """Return a table with its notes as a list below."""
    header = [markdown(name) for name in table.header]
    sides = ["---" if column.is_text else "---:" for column in table.columns]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(sides) + "|"]
    groups = dict(table.groups)
    for position, line in enumerate(table.rows):
        if position in groups:
            lines.append("| " + " | ".join([f"**{markdown(groups[position])}**", *[""] * (len(header) - 1)]) + " |")
        cells = map(markdown, line)
        marked = position in table.marked
        lines.append("| " + " | ".join(f"**{cell}**" if marked and cell else cell for cell in cells) + " |")
    notes = "".join(f"- {markdown(note)}\n" for note in table.notes)
    return "\n".join(lines) + "\n" + (f"\n{notes}" if notes else "")

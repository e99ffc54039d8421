"""`paratune published`: prints the figures in a table of a publication."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.commands.options import Json
from paratune.console import print_json

Mapping = Annotated[Path, Parameter(name="--as", help="mapping of columns to measures, units and axes, a YAML file")]


def published(table: str, /, *, as_: Mapping, matrix: str | None = None, json: Json = False) -> None:
    """Print the figures in TABLE, a file such as .csv or .xlsx, as a file of published figures.

    Args:
        matrix: name of the matrix that the figures are about; the table's file name when not given
    """
    from paratune.config.plain import one_line
    from paratune.data.read import read_table
    from paratune.sweeps.published import read_figures

    name = matrix or Path(table).stem
    read = read_figures(as_, table, read_table(table).to_pylist())
    left_out = f"{counted(read['left_out']['rows'], 'row')}, {counted(read['left_out']['empty_cells'], 'empty cell')}"
    note = f"{table}: figures of {counted(len(read['figures']), 'configuration')}; left out: {left_out}"
    print(plain(note), file=sys.stderr)  # noqa: T201
    if json:
        print_json({"matrix": name, **read})
        return
    lines = [f"source: {one_line(read['source'])}", "matrices:", f"  {one_line(name)}:", "    figures:"]
    print("\n".join([*lines, *(f"      - {one_line(figure)}" for figure in read["figures"])]))  # noqa: T201

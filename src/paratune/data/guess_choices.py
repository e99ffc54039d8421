"""Guesses the columns of choices from usual names.

Imports no torch.
"""

import re

import pyarrow as pa

from paratune.data.columns import lists_of_texts

_LISTS = ("choices", "options", "endings")
"""Usual names of a column with lists of choices, in lower case."""
_NUMBERED = re.compile(r"(choice|option|ending|solution|answer|sol)[_ ]?[0-9a-e]", re.IGNORECASE)
_LETTERS = "abcdefgh"


def choice_columns(table: pa.Table) -> str | list[str] | None:
    """Return the column with lists of choices, or the columns with a choice each; None where no names are usual."""
    names: list[str] = table.column_names
    by_name = {name.lower(): name for name in names}
    for usual in _LISTS:
        if usual in by_name and lists_of_texts(table, by_name[usual]) is not None:
            return by_name[usual]
    numbered = [name for name in names if _NUMBERED.fullmatch(name)]
    letters = [by_name[letter] for letter in _LETTERS if letter in by_name]
    is_row = letters == [by_name.get(letter) for letter in _LETTERS[: len(letters)]]
    if len(numbered) > 1:
        return numbered
    return letters if len(letters) > 1 and is_row else None

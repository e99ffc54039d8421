"""The generated pages of codes and of the Trainer's keys: errors, findings of doctor, the map of the Trainer."""

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from error_codes import TEXTS, exit_codes
from record_fields import table

from paratune.config.trainer.table import MEANT, TABLE, WITHOUT_EFFECT_BELOW, Mapped, Reason

ERRORS = """# Errors and warnings by code

The message of an error has the place, the value, what is allowed and what to do. At its end is a code, which stays the
same from version to version:

```
error: configs/sst2.yaml: 2 problems
  line 14: train.learning_rte is not an option of train; did you mean learning_rate?  [config.unknown_key]
  line 21: train.epochs: 3 and train.max_steps: 100 are both given; keep one of them  [config.conflict]
```

With `--json` a failed command prints one document on stdout; a program should test `code` and `facts`:

```
{"errors": [{"code": "config.unknown_key", "message": "line 14: ...", "facts": {"keys": ["train.learning_rte"], "file": "sst2.yaml", "line": 14}}]}
```

A command that succeeds adds its warnings to its document: `"warnings": [{"code": ..., "message": ..., "facts": ...}]`.
A run writes the code into its `failure` event. A refused command writes no run folder and no output.

The second column is the [exit code](reference/exit_codes.md); after a warning the command continues. `paratune doctor`
has [codes of its own](reference/findings.md). [When something fails](howto/when_it_fails.md) has the first steps.
"""  # noqa: E501

FINDINGS = """# Findings of doctor

What [`paratune doctor`](../howto/doctor.md) looks at. A **problem** stops the run or makes its result wrong, with a
**warning** it runs badly or not everywhere, a **note** is information. Codes stay the same from version to version.
"""

TRAINER = """# Keys of the Trainer

Every key that [`paratune config from-trainer`](../tutorials/from_trainer.md) knows: keys of `TrainingArguments`, of the
example scripts, of Accelerate (`accelerate.`) and of DeepSpeed (`deepspeed.`). The converted file names, in a comment
after each value, the key that it comes from.
"""


LEFT = """# What left, and what to use instead

Settings, commands, functions, files and fields that paratune 0.2.0 no longer has. Such a setting is
refused like any unknown one.
"""


def errors_page() -> str:
    """Return the codes of all errors and warnings, by their first part."""
    lines = [ERRORS]
    for area, codes in groupby(exit_codes().items(), lambda item: item[0].partition(".")[0]):
        rows = ((f"`{code}`", " or ".join(exits), TEXTS["errors"].get(code, "")) for code, exits in codes)
        lines += [f"## {area}", "", *table(("code", "exit code", "cause"), rows)]
    return "\n".join(lines)


def findings_page() -> str:
    lines = [FINDINGS]
    for part, texts in TEXTS["findings"].items():
        rows = ((f"`{code}`", *cells) for code, cells in texts.items())
        lines += [f"## About a {part}", "", *table(("code", "looks at", "worst level, and when"), rows)]
    return "\n".join(lines)


def trainer_page() -> str:
    """Return the table of `paratune.config.trainer.table`."""
    mapped = {key: entry for key, entry in TABLE.items() if isinstance(entry, Mapped)}
    reasons = ((f"`{key}`", entry.why) for key, entry in TABLE.items() if isinstance(entry, Reason))
    names = {**{key: entry for key, entry in TABLE.items() if isinstance(entry, str)}, **MEANT}
    idle = [key for key, entry in TABLE.items() if entry is None]
    lines = [TRAINER, "## One key, one option", ""]
    lines += ["A missing key gets the default of `TrainingArguments`, where there is one.", ""]
    lines += table(("key", "option", "default"), _with_defaults(mapped, has_option=True))
    lines += ["## Converted together with other keys", ""]
    lines += ["The value decides, or several keys are one option: [the rules](../tutorials/from_trainer.md).", ""]
    lines += table(("key", "default"), _with_defaults(mapped, has_option=False))
    lines += ["## Without an equivalent: the run may be another experiment", "", *table(("key", "reason"), reasons)]
    lines += ["## Other names", "", *table(("name", "is read as"), ((f"`{a}`", f"`{b}`") for a, b in names.items()))]
    lines += ["## Without effect on what is learned", "", _listed(idle) + "."]
    lines += ["", f"Also other keys that begin with {_listed(WITHOUT_EFFECT_BELOW)}.", ""]
    return "\n".join(lines)


def left_page() -> str:
    """Return the items of `what_left.txt` beside this file as tables."""
    part = Path(__file__).with_name("what_left.txt").read_text(encoding="utf-8").replace("](docs/", "](../")
    items = [" ".join(item.split()) for item in re.split(r"^- ", part, flags=re.MULTILINE)[1:]]
    found = [match.groups() for item in items if (match := re.fullmatch(r"([\w, ]+): (.*?)\. Instead: (.*)\.", item))]
    assert len(found) == len(items), "each line: - Subject: what left. Instead: what to use."
    lines = [LEFT]
    for area, rows in groupby(found, lambda row: row[0]):
        lines += [f"## {area}", "", *table(("what left", "what to use instead"), (row[1:] for row in rows))]
    return "\n".join(lines)


def _with_defaults(mapped: dict[str, Any], *, has_option: bool) -> Iterable[tuple[str, ...]]:
    for key, entry in mapped.items():
        if (entry.option is not None) == has_option:
            default = "" if entry.default is None else f"`{entry.default}`"
            yield (f"`{key}`", f"`{entry.option}`", default) if has_option else (f"`{key}`", default)


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)

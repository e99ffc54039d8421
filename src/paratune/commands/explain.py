"""`paratune explain` and `paratune feedback`: what the output of a model rests on, and whether that holds.

explain shows words and sentences; feedback has the interval of an essay's score, and which essays a person should read.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from paratune.api.apply import check_model, read_source
from paratune.api.process import set_up_process
from paratune.base.imports import collector_off_for_imports
from paratune.base.text import plain
from paratune.commands.options import All, BatchSize, Device, Json, LabelColumn, PairColumn, RunCode, TextColumn
from paratune.console import Display, print_json, print_result, print_screen, print_table, stdout_for_results
from paratune.errors import ConfigError, DataError, option_error, require_at_least, require_installed

_MAX_WORDS, _MAX_COLUMNS, _MAX_ESSAYS = 6, 200, 20
"""Words and columns of a row, and essays of a file that are printed."""
_MARKED = 0.3
"""Smallest effect of a word that is marked, as a share of the largest one."""
Method = Literal["integrated_gradients", "occlusion", "shapley"]


def explain(
    model: Annotated[str, Parameter(help="run, model folder or hub name")],
    /,
    *,
    input: str,
    rows: str = "0-2",
    out: Path | None = None,
    method: Sequence[Method] = (),
    target: str | None = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    run_code: RunCode = False,
    all_: All = False,
    json: Json = False,
) -> None:
    """Show which words and sentences of rows drive the output of MODEL, and whether that holds.

    Args:
        input: file with the texts
        rows: rows to explain, counted from 0, such as 0-4,17
        out: folder for a page and report.json
        method: method to use, the one that colours the text first; may be repeated; default all
        target: class whose log-odds are explained; default the predicted one
    """
    from paratune.reports.output import MARKER, PAGE, check_folder

    numbers = parse_rows(rows)
    require_at_least("--batch-size", batch_size)
    set_up_process()
    if out is not None:
        check_folder(out, [PAGE, MARKER])
    with stdout_for_results():
        table = read_source(input, model)
        check_model(model, run_code=run_code)
        with collector_off_for_imports():
            import numpy as np

            from paratune.explain.explain import METHODS, explain_rows, require_explainable, select_rows
            from paratune.explain.outputs import prepare
            from paratune.explain.page import Explained, as_dict, marked_text, write_explanations
            from paratune.infer.trained import NamedColumns, load_trained
            from paratune.reports.document import signed

        methods: tuple[str, ...] = tuple(dict.fromkeys(method)) or tuple(METHODS)
        if methods != ("occlusion",):
            require_installed("captum", extra="serve")
        chosen = select_rows(table, numbers, input)
        trained = load_trained(model, NamedColumns(text=text, text_pair=text_pair, label=label), device)
        require_explainable(trained, model)
        split = trained.read(input, chosen, require_labels=False)
        present = split.samples.rows  # as positions in the selected rows
        if without := sorted(set(range(len(numbers))) - set(present.tolist())):
            row = numbers[without[0]]
            message = f"{input}: row {row} has no text to explain; name other rows with --rows"
            raise DataError(message, code="explain.rows", source=input, row=row)
        split = replace(split, samples=replace(split.samples, rows=np.asarray(numbers, dtype=np.int64)[present]))
        prepare(trained)
        with Display(speaks=True).bar(f"explain {model}", len(numbers)) as bar:
            found = explain_rows(trained, split, methods=methods, target=target, batch_size=batch_size, on_row=bar.show)
    explained = Explained(model, input, tuple(found), trained.not_better)
    files = () if out is None else write_explanations(out, explained)
    if json:
        print_json(as_dict(explained) | {"files": [str(file) for file in files]}, indent=1)
        return
    shown = []
    for of_row in found:
        first = next(iter(of_row.effects))
        most = len(of_row.row.words) if all_ else _MAX_WORDS
        words = (f"{plain(word)} {signed(value)}" for word, value in of_row.strongest(first, most))
        verdict = of_row.faithfulness.verdict(first) or "holds"
        verdict += f" (p = {of_row.faithfulness.p_value(first):.3f})"
        head = plain(f"row {of_row.row.row}: {of_row.predicted}; {of_row.target.name} {of_row.value:.4g}")
        line, marked = Text("  "), marked_text(of_row, first)
        for word, share in zip(marked.words, marked.strengths, strict=True):
            style = "" if abs(share) < _MARKED else "bold green underline" if share > 0 else "bold red italic"
            line.append(" " * bool(word.before)).append(plain(word.text), style)
        line.truncate(line.cell_len if all_ else _MAX_COLUMNS, overflow="ellipsis")
        shown += [Text(head, "bold"), line, f"  words: {', '.join(words) or 'n/a'}", f"  {METHODS[first]}: {verdict}"]
    print_screen(*shown, all_=all_)
    if out is not None:
        print(plain(f"{out / PAGE} and {len(files) - 1} other files"))  # noqa: T201


def parse_rows(text: str) -> list[int]:
    """Return the rows that `--rows` names, in its order, each of them once."""
    rows: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < first + 10_000:
            advice = "name rows from 0 and ranges of at most 10000 rows, such as 0-4,17"
            raise option_error("--rows", text, advice, code="explain.rows")
        rows += range(first, last + 1)
    return list(dict.fromkeys(rows))


def feedback(
    run: Annotated[str, Parameter(help="run for regression or ordered labels, with validation and test predictions")],
    /,
    *,
    input: str | None = None,
    split: str | None = None,
    out: Path,
    coverage: float = 0.9,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    run_code: RunCode = False,
    json: Json = False,
) -> None:
    """Write feedback on the essays of a file: an interval for each score, and what the score rests on.

    Args:
        input: file with the essays, in the columns of the run
        split: the essays of this split of the run, such as test, in place of --input
        out: folder for the pages (overview, one page for each essay) and report.json
        coverage: share of essays whose score should be inside its interval
    """
    from paratune.api.split_rows import split_table
    from paratune.reports.output import MARKER, PAGE, check_folder

    require_at_least("--batch-size", batch_size)
    if not 0 < coverage < 1:
        raise option_error("--coverage", coverage, "a share between 0 and 1, such as 0.9", code="cli.invalid_value")
    if (input is None) == (split is None):
        message = "name the essays with one of --input FILE and --split NAME, such as --split test"
        facts: dict[str, Any] = {"option": "--input", "options": ("--input", "--split")}
        raise ConfigError(message, code="cli.required" if input is None else "cli.conflict", **facts)
    set_up_process()
    check_folder(out, [PAGE, MARKER])
    with stdout_for_results():
        check_model(run, run_code=run_code)
        source, table = (input, read_source(input, run)) if input is not None else split_table(Path(run), str(split))
        with collector_off_for_imports():
            from paratune.feedback import page
            from paratune.feedback.feedback import calibrate, give_feedback
            from paratune.infer.trained import NamedColumns, load_trained

        trained = load_trained(run, NamedColumns(), device)
    calibration = calibrate(trained, run, level=coverage)
    rows = trained.read(source, table, require_labels=False)
    with Display(speaks=True).bar("score essays with parts removed", 1) as bar:
        essays = give_feedback(trained, rows, table, calibration, batch_size, bar.show)
    result = page.ClassFeedback(run, source, calibration, tuple(essays))
    files = page.write_feedback(out, result)
    if json:
        print_json(page.as_dict(result) | {"files": [str(file) for file in files]}, indent=1)
        return
    based = f"calibrated on {calibration.num_rows} validation rows for {calibration.level:.0%}"
    print_result(f"intervals: score ± {calibration.half:.3g}, {based}. {page.coverage_sentence(calibration)}")
    shown = []
    for essay in essays[:_MAX_ESSAYS]:
        score, interval = calibration.text(essay.predicted), page.interval_text(calibration, essay)
        for_a_person = page.FOR_A_PERSON[calibration.is_for_a_person(essay.interval)]
        shown.append((page.essay_name(essay), score, interval, for_a_person))
    print_table(("essay", "score", "interval", "for a person"), shown)
    if len(essays) > _MAX_ESSAYS:
        print_result(f"and {len(essays) - _MAX_ESSAYS} more essays")
    print(plain(f"{out / PAGE} and {len(files) - 1} other files"))  # noqa: T201

"""The pages of a publication, of its verification, and of many hand-ins."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.units import NOT_AVAILABLE, counted, format_number
from paratune.reports.document import Listing, Remarks, ReportDocument, ReportSection, Statement, StatementBox
from paratune.reports.page.document import made_by
from paratune.reports.tables.table import Row, Table, TableCell, make_table
from paratune.verify.publication import NUM_STEPS, Publication

_GOOD = {"holds": True, "equal": True, "within the bound": True, "yes": True, "does not hold": False,
    "different": False, "no": False}  # fmt: skip
_WORDS = {
    "equal": "are equal to the published ones bit for bit",
    "within the bound": "are equal within the bound of the certificate",
    "different": "are different",
    "not checked": "could not be trained here",
}
"""Of the first steps of starting points, by the result."""
HOW = """\
paratune verify FOLDER
paratune verify FOLDER --strategy ddp --nproc 2
paratune verify FOLDER --claims --hours 2"""


def _section(
    key: str, title: str, header: Sequence[str], rows: Sequence[Row], *notes: str, is_short: bool = True
) -> ReportSection:
    """Return a section with one table of names; empty without rows."""
    parts = (make_table(key, title, header, rows, len(header), notes),) if rows else ()
    return ReportSection(key, title, parts, is_short)


def _result(text: str) -> TableCell:
    return TableCell(text, better=_GOOD.get(text))


def publication_document(publication: Publication, tables: Sequence[Table]) -> ReportDocument:
    """Return the page of a publication; `tables` are those of its report."""
    runs, starts = publication.runs, publication.starts
    num_equal = sum(start.repeated == "equal" for start in starts)
    lead = (
        f"{counted(len(runs), 'run')}, {counted(len(publication.claims), 'claim')}. The first "
        f"{NUM_STEPS} steps of {counted(len(starts), 'starting point')} were trained again: {num_equal} "
        "equal the record to the bit.",
        f"{f'By {publication.author}. ' if publication.author else ''}Made {publication.created}.",
    )
    points: list[Row] = [
        [
            *(one.run, _place(one.step), _numbers(one.losses), _numbers(one.grad_norms)),
            *(_result(one.repeated), one.reason or ""),
        ]
        for one in starts
    ]
    facts: list[Row] = [
        [
            *(one.run, one.configuration, str(one.seed), f"{one.world_size} x {one.strategy}", str(one.precision)),
            (one.initial_weights or NOT_AVAILABLE)[:12],
            "; ".join(f"{name} {(value or NOT_AVAILABLE)[:12]}" for name, value in one.data.items()),
        ]
        for one in runs
    ]
    claims: list[Row] = [[one.claim, _result(one.result)] for one in publication.claims]
    left_out = (Remarks(publication.left_out),) * bool(publication.left_out)
    of_runs = ("Run", "Configuration", "Seed", "Processes", "Precision", "Initial weights", "Data")
    of_starts = ("Run", "Starts from", "Losses", "Gradient norms", "Repeated", "Remark")
    tables_text = f"report/index.html is the report; tables/ has its {counted(len(tables), 'table')} as CSV and LaTeX."
    sections = (
        _section("claims", "Claims", ("Claim", "Result"), claims),
        _section(
            "starts", "Starting points", of_starts, points,
            "Equal: the record has the same losses and gradient norms to the last bit. publication.json has the "
            "SHA-256 of each weight after each of these steps.",
        ),
        ReportSection("verify", "How to check it", (Listing("Without a network", HOW),)),
        _section(
            "runs", "Runs", of_runs, facts, "Of hashes the first 12 digits.", is_short=False,
        ),
        ReportSection("left-out", "Left out", left_out, is_short=False),
        ReportSection("files", "Tables and report", (tables_text,), is_short=False),
    )  # fmt: skip
    shown = tuple(section for section in sections if section.parts)
    return ReportDocument(publication.name, lead, shown, made_by("the records of the runs"))


def conclusion(result: Mapping[str, Any]) -> str:
    """Return the result of a verification in one sentence, which a reviewer can copy."""
    statuses, rerun = [one["status"] for one in result["starts"]], result["rerun"]
    parts = [
        f"the first steps of {counted(number, 'starting point')} {words}"
        for status, words in _WORDS.items()
        if (number := statuses.count(status))
    ]
    files, claims, num_claims = result["files"]["problems"], result["claims"]["problems"], result["claims"]["num"]
    parts.append(f"{counted(len(files), 'file')} changed, lost or added" if files else "all files have their SHA-256")
    if num_claims and not result["claims"]["checked"]:
        parts.append(f"{counted(num_claims, 'claim')} could not be computed from the records")
    elif num_claims:
        lost = f"{len(claims)} of them are not" if claims else "all of them are"
        parts.append(f"{counted(num_claims, 'claim')}: {lost} what the records give")
    if rerun is not None:
        num_agreed = sum(one["agrees"] == "yes" for one in rerun["claims"])
        of = counted(len(rerun["claims"]), "decided claim")
        made = counted(len(rerun["runs"]), "run")
        parts.append(
            f"{num_agreed} of {of} are confirmed by {made} made here" if rerun["claims"] else "no claim is decided"
        )
    if result["facts"]:
        parts.insert(0, f"{counted(len(result['facts']), 'fact')} of publication.json are not those of the records")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def verification_document(result: Mapping[str, Any]) -> ReportDocument:
    """Return the page of a verification, from its result."""
    rows: list[Row] = [
        [
            *(one["run"], _place(one["step"]), _result(one["status"]), one["bound"] or ""),
            *("" if one["first_step"] is None else _place(one["first_step"]), ", ".join(one["tensors"])),
        ]
        for one in result["starts"]
    ]
    reasons = tuple(
        (f"{one['run']}, {_place(one['step'])}", one["reason"]) for one in result["starts"] if one["reason"]
    )
    groups = {
        "Files": (result["files"]["problems"], f"{result['files']['num']} files, all with their SHA-256"),
        "Records": (result["facts"], "the facts of the runs are those of their records"),
        "Claims": (result["claims"]["problems"], "the claims are what the records give"),
    }
    if not result["claims"]["checked"]:
        del groups["Claims"]
    checked = [Statement(name, "; ".join(found) or good, not found) for name, (found, good) in groups.items()]
    differs = result["machine"]
    checked.append(
        Statement("Machine", "; ".join(differs) or "of the same kind, same versions", None if differs else True)
    )
    if result["own_code"]:
        checked.append(
            Statement(
                "Own code", f"named by the records; it runs only with --run-code: {'; '.join(result['own_code'])}"
            )
        )
    sections = [ReportSection("checked", "What was checked", (StatementBox("", tuple(checked)),))]
    header = ("Run", "Starts from", "Result", "Bound", "First difference", "Tensors")
    filled = [at for at in range(len(header)) if at < 3 or any(row[at] for row in rows)]
    points = _section(
        "starts", "Starting points", [header[at] for at in filled], [[row[at] for at in filled] for row in rows],
        "Equal: losses, gradient norms and the SHA-256 of each weight, to the last bit. Within the bound: without "
        "dropout, the gradients of the first step and the losses differ from those of one process by no more than "
        "rounding can cause.",
    )  # fmt: skip
    sections.append(replace(points, parts=(*points.parts, *([Remarks(reasons)] if reasons else []))))
    if (rerun := result["rerun"]) is not None:
        made: list[Row] = [
            [one["claim"], one["published"], _result(one["agrees"]), one["here"]] for one in rerun["claims"]
        ]
        about = f"Made here in {format_number(rerun['hours'], 2)} hours: {', '.join(rerun['runs']) or 'no run'}."
        title = "Claims by runs made here"
        sections.append(_section("rerun", title, ("Claim", "Published", "Agrees here", "Found here"), made, about))
        not_made = (*rerun["failed"], *rerun["left_out"])
        sections.append(
            ReportSection("not-made", "Claims that were not decided again", (Remarks(not_made),) * bool(not_made))
        )
    unchecked = (Remarks(tuple(result["not_checked"])),) * bool(result["not_checked"])
    sections.append(ReportSection("not-checked", "What was not checked", unchecked))
    lead = (
        conclusion(result),
        f"Publication: {result['publication']} ({result['source']}). Checked {result['created']}.",
    )
    shown = tuple(section for section in sections if section.parts)
    return ReportDocument(f"{result['publication']}: {result['verdict']}", lead, shown, made_by())


def class_document(lines: Sequence[Mapping[str, Any]]) -> ReportDocument:
    """Return a page with one line for each of several publications."""
    header = ("Hand-in", "Author", "Runs", "Problems", "Same training as", "Same record as", "Claims")
    rows: list[Row] = [
        [
            *(one["name"], one["author"] or NOT_AVAILABLE, str(one["num_runs"])),
            TableCell("; ".join(one["problems"]) or "none", better=not one["problems"]),
            *(", ".join(one[key]) or "none" for key in ("equal_to", "copy_of")),
            "; ".join(one["claims"]) or "none decided",
        ]
        for one in lines
    ]
    section = _section(
        "class", "Hand-ins", header, rows,
        "Same training: the losses of all steps of a run are equal to the last bit, as with the same settings on one "
        "kind of machine. Same record: the times are equal, too, which two trainings never have.",
    )  # fmt: skip
    return ReportDocument("Hand-ins", (f"{counted(len(lines), 'publication')}.",), (section,), made_by())


def _place(step: int) -> str:
    return "initial weights" if step == 0 else f"step {step}"


def _numbers(values: Sequence[float | None]) -> str:
    return ", ".join(format_number(value, 6) for value in values)

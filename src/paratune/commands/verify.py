"""`paratune verify`: checks publications, see `paratune.verify`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paratune.base.text import plain
from paratune.commands.options import Json, require_some
from paratune.console import print_json, print_result, print_table, set_up_logging
from paratune.errors import EXIT_DIFFERS, EXIT_FAILED, EXIT_OK, ConfigError

EXIT_CODES = {"equal": EXIT_OK, "within the bound": EXIT_OK, "different": EXIT_DIFFERS, "not checked": EXIT_FAILED}
Settings = Annotated[
    Sequence[str],
    Parameter(name="--set", help="where data or model are, or precision and device: data.train=PATH; may be repeated"),
]


def verify(
    *files: Path,
    set_: Settings = (),
    strategy: str | None = None,
    nproc: int | None = None,
    claims: bool = False,
    hours: float | None = None,
    table: bool = False,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    run_code: bool = False,
    json: Json = False,
) -> int:
    """Check a publication: its files, its claims, and the first steps of its runs, which are trained here.

    FILES are folders or zip files that paratune publish wrote. Nothing in them is executed, and nothing is downloaded.
    The result is a page and a JSON file in --out.

    Args:
        strategy: train the steps with another strategy, such as ddp, and compare them by the certificate's bound
        nproc: number of processes of that strategy
        claims: also make the cheapest runs that decide the claims
        hours: hours that these runs may take together
        table: show one line for each of several publications: who ran what, and what is equal; nothing is trained
        out: folder for the result; default: verified/NAME
        run_code: run Python code that the publication names
    """
    from paratune.reports.output import PAGE, check_folder, write_page
    from paratune.verify.check import class_lines, read_way
    from paratune.verify.check import verify as check
    from paratune.verify.page import class_document, conclusion, verification_document

    require_some(files, "the folder or zip file of a publication")
    if table and (claims or strategy or set_ or nproc):
        raise ConfigError(
            "--table trains nothing: leave out --claims, --strategy, --nproc and --set", code="cli.conflict"
        )
    if not table and len(files) > 1:
        raise ConfigError(
            f"{len(files)} publications are given; check one at a time, or use --table", code="cli.conflict"
        )
    if claims != (hours is not None):
        raise ConfigError("--claims and --hours belong together: --claims --hours 2", code="cli.required")
    if hours is not None and not 0 < hours < 10_000:
        raise ConfigError(
            f"--hours is {hours:g}; a number above 0 is needed", code="cli.invalid_value", option="--hours"
        )
    way = read_way(set_, strategy, nproc, run_code=run_code)
    name = "table" if table else plain(files[0].resolve().name).removesuffix(".zip")
    folder = out or Path("verified") / name
    check_folder(folder, [PAGE])
    set_up_logging(speaks=True)
    if table:
        lines = class_lines(files)
        document = class_document(lines)
        write_page(folder, document, "class", {"hand_ins": lines})
        (shown,) = document.sections[0].tables
        if json:
            print_json(lines)
        else:
            print_table(shown.header[:-1], [row[:-1] for row in shown.rows])
            print_result(f"{folder / PAGE}")
        return EXIT_OK
    result = check(files[0], way, hours=hours, out=folder / "again")
    result["conclusion"] = conclusion(result)
    write_page(folder, verification_document(result), "verification", {"result": result})
    if json:
        print_json(result)
    else:
        _show(result, folder / PAGE)
    return EXIT_CODES[result["verdict"]]


def _show(result: dict[str, Any], page: Path) -> None:
    print_result(result["conclusion"])
    for one in result["starts"]:
        where = "" if not one["tensors"] else f" ({', '.join(one['tensors'])})"
        bound = f" [{one['bound']}]" if one["bound"] else ""
        why = f": {one['reason']}" if one["reason"] else ""
        print_result(f"  {one['run']}, step {one['step']}: {one['status']}{bound}{where}{why}")
    for line in [*result["files"]["problems"], *result["facts"], *result["claims"]["problems"]][:8]:
        print_result(f"  {line}")
    for one in (result["rerun"] or {"claims": []})["claims"][:8]:
        print_result(f"  agrees here: {one['agrees']}: {one['claim']}")
    if result["machine"]:
        print_result(f"this machine: {'; '.join(result['machine'][:4])}")
    print_result(f"verdict: {result['verdict']}   {page}")

"""`paratune publish`: the folder with which others can check the results of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import counted, format_bytes
from paratune.commands.options import Json, require_some
from paratune.console import print_json, print_result, set_up_logging
from paratune.errors import require_at_least

if TYPE_CHECKING:
    from paratune.records.finished import RunRecord

MB = 10**6


def publish(
    *runs: Path,
    out: Annotated[Path, Parameter(alias="-o")],
    author: str | None = None,
    include: Annotated[Sequence[Literal["data", "model"]], Parameter(consume_multiple=True)] = (),
    max_size: int = 0,
    run_code: bool = False,
    json: Json = False,
) -> None:
    """Write a folder with claims, tables and records of RUNS, with which others can check them.

    RUNS are the folder of one matrix, or folders of runs. The first steps of each configuration are trained again, and
    must be those of its record. Data and models are only copied when --include names them.

    Args:
        out: new folder
        author: name for the page, and for a table of several publications
        include: data, model, or both
        max_size: megabytes of kept checkpoints that are copied, of all together
        run_code: also run Python code that the records name, of runs that somebody else made
    """
    from paratune.config.permission import trust
    from paratune.verify.publication import NUM_STEPS
    from paratune.verify.publish import publish as write

    require_some(runs, "the folder of a matrix, or folders of runs")
    require_at_least("--max-size", max_size, 0)
    if run_code:
        trust(*map(str, runs))
    set_up_logging(speaks=True)
    with scratch_folder() as scratch:

        def add_inputs(run: "RunRecord", number: int) -> tuple[Mapping[str, Path], Mapping[str, str | list[str]]]:
            from paratune.commands.bundle_contents import BundleContents, add_data, add_model
            from paratune.config.load import load_values

            contents, place, top = BundleContents(), scratch / str(number), f"inputs/{number}"
            place.mkdir()
            loaded = load_values({key: value for key, value in run.run.config.items() if value is not None})
            if "model" in include:
                add_model(contents, loaded)
            if "data" in include:
                add_data(contents, loaded, place)

            def inside(name: str) -> str:
                return name if name.startswith("demo:") else f"{top}/{name}"

            paths = {
                key: [*map(inside, value)] if isinstance(value, list) else inside(value)
                for key, value in contents.paths.items()
            }
            return {f"{top}/{name}": path for name, path in contents.files.items()}, paths

        made = write(
            runs, out, author=author, max_bytes=max_size * MB, run_code=run_code,
            add_inputs=add_inputs if include else None,
        )  # fmt: skip
    if json:
        print_json(made.model_dump(mode="json"))
        return
    equal = sum(start.repeated == "equal" for start in made.starts)
    print_result(
        f"{counted(len(made.runs), 'run')}, {counted(len(made.claims), 'claim')}; the first {NUM_STEPS} steps of "
        f"{counted(len(made.starts), 'starting point')}, trained again: {equal} equal to their record, bit for bit."
    )
    for claim in made.claims[:8]:
        print_result(f"  {plain(claim.claim)}  [{claim.result}]")
    if (more := len(made.claims) - 8) > 0:
        print_result(f"  and {more} more")
    total = sum(file.num_bytes for file in made.files)
    print_result(
        f"{out}: {counted(len(made.files), 'file')}, {format_bytes(total)}   check: paratune verify {plain(out)}"
    )

"""`paratune plan`: predicts memory and time of a run, and recommends a strategy, without a device."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.api.plan_options import PlanOptions, check_options, planned_strategies
from paratune.base.text import plain
from paratune.commands.options import Json, Overrides, RunCode
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_FAILED, EXIT_OK


def plan(
    config: Path,
    *,
    options: Annotated[PlanOptions, Parameter(name="*")] = PlanOptions(),  # noqa: B008
    measured: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    set_: Overrides = (),
    write: Path | None = None,
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Estimate memory and time of CONFIG, and recommend a strategy, devices, precision and micro-batch.

    Needs no GPU, no network and no weights: the model is traced on the meta device, for the longest rows of the data.

    Args:
        measured: runs or matrices on the machine, 20 steps are enough, or figures such as "310 s an epoch on 1 x
            a100-40gb, fp16": times follow them; needed for times on a CPU or an unlisted GPU
        write: YAML file for the recommended configuration; of a matrix, JSON file for its plan
        run_code: import the Python code that CONFIG names: its data sets, head, class, strategy, and that of its model
    """
    from rich.text import Text

    from paratune.api.plan import make_plan
    from paratune.config.baseline_sections import refuse_baseline
    from paratune.config.load import allow_code, load_config
    from paratune.planning.written import check_writable, write_config

    check_options(options)
    if is_matrix(config):
        from paratune.commands.plan_matrix import plan_matrix

        return plan_matrix(config, set_, options, measured, write=write, run_code=run_code, as_json=json)
    loaded = load_config(config, set_)
    if run_code:
        allow_code(loaded, strategies=planned_strategies(options) or ())
    refuse_baseline(loaded.config.baseline, "paratune plan predicts")
    if write is not None:
        check_writable(write)
    set_up_logging(speaks=True)
    with stdout_for_results():
        result = make_plan(loaded, options, measured)
    if not json:  # before writing, which may fail because there is nothing to write
        print_result(result)
    written = None if write is None else write_config(write, loaded, set_, result.recommended)
    if json:
        print_json(result.as_dict() | {"written": None if written is None else str(write)})
    elif written is not None:
        print_result(Text(plain(written)))
    return EXIT_FAILED if result.recommended is None else EXIT_OK


def is_matrix(path: Path) -> bool:
    """Return whether a file is a matrix of runs: it has axes."""
    from paratune.config.layers import read_text
    from paratune.config.yaml_tree import read_tree

    values = read_tree(read_text(path), path.name).value
    return isinstance(values, dict) and "axes" in values

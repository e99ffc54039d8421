"""`paratune plan`: predicts memory and time of a run, and recommends a strategy, without a device."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paratune.api.plan_options import PlanOptions, plan_request
from paratune.commands.options import All, Json, Overrides
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.planning.predict import Prediction


def plan(
    config: Path,
    /,
    *,
    options: Annotated[PlanOptions, Parameter(name="*")] = PlanOptions(),  # noqa: B008
    measured: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    set_: Overrides = (),
    run_code: bool = False,
    all_: All = False,
    json: Json = False,
) -> int:
    """Estimate memory and time of CONFIG, and recommend a strategy, devices, precision and micro-batch.

    Needs no GPU, no network and no weights: the model is traced on the meta device, for the longest rows of the data.

    Args:
        measured: runs or matrices on the machine, 20 steps are enough: times follow them; needed for times on a CPU or
            an unlisted GPU
        run_code: import the Python code that CONFIG names: its data sets, head, class, and that of its model
    """
    from paratune.api.plan import make_plan
    from paratune.config.layers import read_text
    from paratune.config.load import load_config
    from paratune.config.yaml_tree import read_tree

    plan_request(options)
    values = read_tree(read_text(config), config.name).value
    if isinstance(values, dict) and "axes" in values:  # a matrix of runs
        from paratune.commands.plan_matrix import plan_matrix

        return plan_matrix(config, set_, options, measured, run_code=run_code, all_=all_, as_json=json)
    loaded = load_config(config, set_)
    set_up_logging(speaks=True)
    with stdout_for_results():
        result = make_plan(loaded, options, measured, run_code=run_code)
    start = None if result.recommended is None else start_command(loaded, set_, result.recommended)
    if json:
        print_json(result.as_dict() | {"start": start})
    else:
        print_result(replace(result, start=start, shows_all=all_))
    return EXIT_FAILED if result.recommended is None else EXIT_OK


def start_command(loaded: "LoadedConfig", overrides: Sequence[str], chosen: "Prediction") -> str:
    """Return the command that trains a configuration as a predicted option; `overrides` are the values of `--set`."""
    from paratune.config.plain import one_line

    setup, config = chosen.option.setup, chosen.option.config
    settings = [*overrides, *(chosen.option.remedy.settings if chosen.option.remedy is not None else ())]
    if config.strategy != loaded.config.strategy:
        # The kind alone replaces the section, so that no option of another strategy is left.
        settings.append(f"strategy={one_line(config.strategy.kind)}")
        options = config.strategy.model_dump(mode="json", by_alias=True, exclude={"kind"}, exclude_defaults=True)
        settings += [f"strategy.{name}={one_line(value)}" for name, value in options.items()]
    if config.precision != loaded.config.precision:
        settings.append(f"precision={config.precision}")
    if config.batch.per_device is None:
        settings.append(f"batch.micro_batch_size={setup.micro_batch_size}")
    else:
        settings += [f"batch.per_device={setup.micro_batch_size}", f"batch.grad_accum_steps={setup.grad_accum_steps}"]
    words = [word for setting in settings for word in ("--set", setting)]
    if setup.num_nodes > 1:
        launch = (
            f"torchrun --nnodes {setup.num_nodes} --nproc-per-node {setup.ranks_per_node} --rdzv-backend c10d "
            "--rdzv-endpoint HOST:PORT -m paratune"
        )
    else:
        launch, words = "paratune", [*(("--nproc", str(setup.num_ranks)) if setup.num_ranks > 1 else ()), *words]
    return f"{launch} train {shlex.join([str(loaded.source), *words])}"

"""`paratune.certify`: whether strategies train the same thing."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from paratune.api.configuration import Configuration, written
from paratune.api.process import run_command, several
from paratune.errors import EXIT_DIFFERS, EXIT_FAILED, EXIT_OK


def certify(
    config: Configuration,
    strategies: str | Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    *,
    layouts: str | Sequence[str] = (),
    nproc: int = 2,
    steps: int = 4,
) -> Mapping[str, Any]:
    """Compare a few steps of strategies with one process, each in new processes of this machine.

    Args:
        config: A YAML file, or the same sections as a mapping.
        strategies: Such as `["ddp", "zero3", "hsdp:2"]`; a value after the colon sets the first option.
        overrides: Values by dotted key that replace those of `config`.
        layouts: Values of `batch.layout`: one process with each of them is compared, too.
        nproc: Number of processes of each strategy, at least 1.
        steps: Number of steps to compare, at least 1.

    Returns:
        The certificate, as written to RUN.certificate; its `verdict` is `holds`, `differs` or `incomplete`.

    Raises:
        ParatuneError: The configuration is invalid, or one process cannot run it.

    >>> paratune.certify("my.yaml", "ddp", steps=2)["verdict"]
    'holds'
    """
    with written(config, overrides) as words:
        chosen = ["--strategies", ",".join(several(strategies)), "--layouts", ",".join(several(layouts))]
        options = [*chosen, "--nproc", str(nproc), "--steps", str(steps)]
        results = (EXIT_OK, EXIT_DIFFERS, EXIT_FAILED)
        return cast(Mapping[str, Any], run_command(["certify", *words, *options], results=results))

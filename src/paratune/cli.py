"""The command line. Each command imports what it needs when it is called, so that --help is instant.

Exit codes are those of `paratune.errors`; docs/exit_codes.md lists them.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from paratune import __version__
from paratune.errors import EXIT_OK, ParatuneError

app = App(
    name="paratune",
    help="Fine-tune BERT-family models on one device or many: one file, measured, resumable, compared.",
    version=__version__,
    help_format="plaintext",
)
config_app = App(name="config", help="Show, describe or begin a configuration file.")
app.command(config_app)

Overrides = Annotated[
    list[str] | None,
    Parameter(name="--set", negative=(), help="section.key=value, on top of the file; may be repeated"),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="print the result as JSON on stdout")]
BEGAN = time.perf_counter()


@app.command
def train(
    config: Path,
    *,
    set_: Overrides = None,
    nproc: Annotated[int, Parameter(help="processes to start on this machine")] = 1,
    resume: Annotated[bool, Parameter(negative=(), help="go on with an unfinished run, or begin it")] = False,
    overwrite: Annotated[bool, Parameter(negative=(), help="delete the run folder if it exists")] = False,
    json: Json = False,
) -> int:
    """Train what CONFIG says, and evaluate, save and report it.

    Under torchrun it is one of the run's processes; --nproc starts them itself.
    """
    from paratune.commands.train import train_command

    return train_command(
        config, set_ or [], num_processes=nproc, resume=resume, overwrite=overwrite, as_json=json, began=BEGAN
    )


def main() -> None:
    """Run the command line and exit with a code of `paratune.errors`."""
    try:
        code = app(result_action="return_value")
    except ParatuneError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else EXIT_OK)

"""`paratune corpus`."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from paratune.cli.options import Json

corpus_app = App(name="corpus")


@corpus_app.default
def corpus(
    config: Path,
    *,
    only: Annotated[str | None, Parameter(help="stage to run anew, and no other: index")] = None,
    workers: Annotated[int | None, Parameter(help="processes, instead of those of CONFIG")] = None,
    json: Json = False,
) -> int:
    """Build what CONFIG says of a corpus from a web archive, stage by stage; start it again after a crash.

    What is done is kept, and what is dropped too, with the reason; any number of workers gives the same files.
    """
    from paratune.commands.corpus import corpus_command

    return corpus_command(config, only=only, workers=workers, as_json=json)

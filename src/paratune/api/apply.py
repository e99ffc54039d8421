"""Applies a model to a file."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.base.imports import collector_off_for_imports
from paratune.config.own_code import source_code
from paratune.config.permission import allow, trust
from paratune.config.sources import CODE
from paratune.console import Display
from paratune.errors import CheckpointError, coded
from paratune.records import MODEL_FOLDER, RUN_FILE
from paratune.records.own import TASK_FILE, read_task_file

if TYPE_CHECKING:
    import pyarrow as pa

    from paratune.config.sections import FileReading
    from paratune.infer.trained import TrainedModel

log = logging.getLogger(__name__)


def warn_about_unknown_tokens(split: Any) -> None:
    from paratune.data.load import unknown_warnings

    for warning in unknown_warnings({split.source: split}):
        log.warning("%s", warning, extra=coded("data.unknown_tokens_many"))


def apply(trained: Any, split: Any, batch_size: int) -> Any:
    """Return the outputs of a model for a split, with a progress bar."""
    with Display(speaks=True).bar("predict", 1) as bar:
        return trained.apply(split, batch_size, bar.show)


def load_model(name: str, device: str, *, run_code: bool = False, **columns: str | None) -> "TrainedModel":
    """Return a model, ready for `apply`; torch is imported here, and not before a missing folder is reported.

    Args:
        name: A run folder, a model folder, or a hub name.
        device: auto, cpu or cuda.
        run_code: Run the code that the folder names, whoever wrote it.
        columns: Those of a command line (`text`, `text_pair`, `label`, `answer_start`), for models that record none.
    """
    check_model(name, run_code=run_code)
    with collector_off_for_imports():
        from paratune.infer.trained import NamedColumns, load_trained
    return load_trained(name, NamedColumns(**columns), device)


def model_reading(name: str) -> "FileReading":
    """Return how the files of a model's run were read: further files are read in the same way."""
    from pydantic import ValidationError

    from paratune.config.sections import Data  # imports pydantic, which no --help needs

    folder = model_folder(name)
    try:
        return Data.model_validate(read_task_file(folder).get("reading", {})).reading
    except ValidationError as error:
        message = f"{folder / TASK_FILE} is damaged: reading: {error.errors()[0]['msg']}; train the run again"
        raise CheckpointError(message, code="run.damaged", folder=str(folder)) from error


def model_folder(name: str) -> Path:
    """Return the folder of a model, also of that of a run; a name of the hub as a path that does not exist."""
    return Path(name) / MODEL_FOLDER if (Path(name) / RUN_FILE).is_file() else Path(name)


def check_model(name: str, *, run_code: bool = False) -> None:
    """Raise an error for a missing model folder before torch is imported; `run_code` as for `load_model`.

    Warns of a model that is not better than a constant answer.
    """
    from paratune.models.locate import locate
    from paratune.records.constant import CONSTANT, not_better  # imports pydantic, which no --help needs

    # A folder that is not whole gets the error of `load_trained`, which knows more.
    folder = model_folder(name)
    if not Path(name).is_dir():
        folder = Path(locate(name))
    if run_code:
        trust(name)
    if (found := not_better(read_task_file(folder).get(CONSTANT), folder / TASK_FILE)) is not None:
        message = "%s is %s Do not rely on its answers; train it longer, on more rows or with other options"
        extra = coded("model.not_better", target=name, **found.model_dump())
        log.warning(message, name, found.sentence, extra=extra)


def allow_source(source: str) -> None:
    """Let this process import the code of a data source (code:...) that the user named in the call or on the command
    line."""
    if source.startswith(CODE):
        allow([source_code(source, "data")])


def read_source(source: str, model: str) -> "pa.Table":
    """Return the rows of a data source that the user named in the call or on the command line, also of its code.

    A file is read as those of the run of `model`.
    """
    from paratune.data.read import read_table

    allow_source(source)
    return read_table(source, model_reading(model))

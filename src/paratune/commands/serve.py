"""`paratune serve`: answer HTTP requests with the predictions of a trained model."""

import stat
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.api.apply import check_model
from paratune.api.process import set_up_process
from paratune.base.imports import collector_off_for_imports
from paratune.base.text import plain
from paratune.commands.options import Device, PairColumn, RunCode, TextColumn
from paratune.console import outlive_readers, stdout_for_results
from paratune.errors import ConfigError, ParatuneError, Stopped, option_error, require_at_least, require_installed

if TYPE_CHECKING:
    from paratune.infer.trained import TrainedModel

_MOST_ROWS = 100_000
"""Of a run whose files are read again for an example."""


def serve(
    run: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token_file: Path | None = None,
    rate: int = 50,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    device: Device = "auto",
    run_code: RunCode = False,
) -> int:
    """Answer HTTP requests with the predictions of RUN (a run, a model folder or a hub name) until a signal.

    stdout has the access log: one JSON line per request, without its texts.

    Args:
        host: address to listen on; every address that other machines reach needs a token
        port: port to listen on; 0 takes a free one
        token_file: file with the token that requests need; else the variable PARATUNE_SERVE_TOKEN
        rate: requests per second of a client, with a burst of twice as many
    """
    from paratune.serving.access import ServingLimits, read_token, require_token

    if not 0 <= port <= 65535:
        raise option_error("--port", port, "use 0 to 65535", code="cli.invalid_value")
    require_at_least("--rate", rate)
    token = read_token(token_file)
    require_token(host, token)
    for module in ("fastapi", "uvicorn"):
        require_installed(module, extra="serve")
    outlive_readers()  # the reader of the access log may end before the server
    set_up_process()
    with stdout_for_results():
        check_model(run, run_code=run_code)
        with collector_off_for_imports():
            from paratune.infer.trained import NamedColumns, load_trained
            from paratune.serving.app import Service, make_app
            from paratune.serving.server import open_socket, run_server

        # Before the model is loaded, which takes seconds: a port that is in use is reported at once.
        listener = open_socket(host, port)
        trained = load_trained(run, NamedColumns(text=text, text_pair=text_pair), device)
        if trained.task.kind in ("multiple_choice", "embedding"):
            why = "requests have no choices" if trained.task.kind == "multiple_choice" else "vectors are no answers"
            message = f"{run} is a model for {trained.task.kind}, and {why}; use paratune predict with a file"
            raise ConfigError(message, code="task.unsupported", target=run, kind=trained.task.kind)
    service = Service(trained, ServingLimits(rate_per_s=rate), _about(run, trained))
    app = make_app(service, listens_on=host, token=token, write_line=partial(print, flush=True))
    address = f"[{host}]" if ":" in host else host
    print(plain(f"{run} at http://{address}:{listener.getsockname()[1]}"), file=sys.stderr, flush=True)  # noqa: T201
    signal = run_server(app, listener)
    raise Stopped(f"stopped by {signal}", code="stopped.signal", signal=signal)


def _about(name: str, trained: "TrainedModel") -> dict[str, Any]:
    """Return what the page shows of a model: its name, score, and a row of its data; None where it is unknown."""
    from paratune.api.split_rows import split_table
    from paratune.records.finished import read_typed
    from paratune.records.typed import RunFile, Summary
    from paratune.serving.predictor import column_names

    about: dict[str, Any] = {"model": trained.run.name if trained.run else name, "score": None, "example": None}
    with suppress(ParatuneError, OSError, LookupError):  # a run of another program, or data that has moved
        run = trained.run or Path(name)
        summary = read_typed(run, Summary)
        metric, scores = summary.best.metric, summary.scores.get("validation", {})
        about["score"] = {"metric": f"validation {metric}", "value": scores[metric]} if metric in scores else None
        record = read_typed(run, RunFile)
        num_rows = sum(part.num_rows or _MOST_ROWS + 1 for part in record.data.values() if part)
        data = record.config["data"]
        if num_rows <= _MOST_ROWS and _is_public(data["validation"] or data["train"]):
            table = split_table(run, "validation")[1]
            about["example"] = {column: table[column][0].as_py() for column in column_names(trained.columns).values()}
    return about


def _is_public(source: str | list[str]) -> bool:
    """Return whether every user of this machine, who may ask for the page, can also read the data.

    Raises:
        OSError: It is no file, but a pattern or a name of the hub.
    """
    paths = [Path(name).resolve() for name in ([source] if isinstance(source, str) else source) if name[:5] != "demo:"]
    return all(
        path.stat().st_mode & stat.S_IROTH and all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
        for path in paths
    )

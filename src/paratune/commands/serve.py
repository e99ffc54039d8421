"""`paratune serve`: answer HTTP requests with the predictions of a trained model."""

import sys
from pathlib import Path

from paratune.api.apply import check_model
from paratune.api.threads import respect_quota
from paratune.base.imports import collector_off_for_imports
from paratune.base.text import plain
from paratune.commands.options import Device, PairColumn, RunCode, TextColumn
from paratune.console import outlive_readers, set_up_logging, stdout_for_results
from paratune.errors import ConfigError, Stopped, option_error, require, require_at_least


def serve(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token_file: Path | None = None,
    max_wait_ms: int = 5,
    max_tokens: int = 2048,
    max_rows: int = 64,
    max_chars: int = 20_000,
    max_body_kib: int = 1024,
    max_queue: int = 256,
    max_explain_queue: int = 4,
    max_explain_s: int = 60,
    rate: int = 50,
    grace_s: int = 30,
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
        max_wait_ms: milliseconds that a row waits for others of its batch
        max_tokens: most tokens of a batch
        max_rows: most rows of a request
        max_chars: most characters of a text
        max_body_kib: largest request in KiB
        max_queue: most rows in the queue
        max_explain_queue: most explanations that wait or are computed; 0 gives none
        max_explain_s: seconds after which an explanation is given up
        rate: requests per second of a client, with a burst of twice as many
        grace_s: seconds for accepted requests after a signal
    """
    from paratune.serving.access import read_token, require_token
    from paratune.serving.settings import ServingLimits

    if not 0 <= port <= 65535:
        raise option_error("--port", port, "use 0 to 65535", code="cli.out_of_range")
    least = {
        "--max-wait-ms": (max_wait_ms, 0),
        "--grace-s": (grace_s, 0),
        "--max-explain-queue": (max_explain_queue, 0),
    }
    counts = {"--max-tokens": max_tokens, "--max-rows": max_rows, "--max-chars": max_chars, "--rate": rate}
    counts |= {"--max-explain-s": max_explain_s, "--max-body-kib": max_body_kib, "--max-queue": max_queue}
    for option, (value, lowest) in {**least, **{name: (value, 1) for name, value in counts.items()}}.items():
        require_at_least(option, value, lowest)
    limits = ServingLimits(
        max_wait_s=max_wait_ms / 1000,
        max_tokens=max_tokens,
        max_rows=max_rows,
        max_chars=max_chars,
        max_body_bytes=max_body_kib << 10,
        max_queue=max_queue,
        max_explain_queue=max_explain_queue,
        max_explain_s=max_explain_s,
        rate_per_s=rate,
    )
    token = read_token(token_file)
    require_token(host, token)
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require(module, extra="serve")
    outlive_readers()  # the reader of the access log may end before the server
    set_up_logging(speaks=True)
    respect_quota()
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
            raise ConfigError(message, code="serve.task", target=run, kind=trained.task.kind)
    service = Service(trained, limits)
    app = make_app(service, listens_on=host, token=token, write_line=_write_line)
    address = f"[{host}]" if ":" in host else host
    print(plain(f"{run} at http://{address}:{listener.getsockname()[1]}"), file=sys.stderr, flush=True)  # noqa: T201
    signal = run_server(app, service, listener, grace_s)
    raise Stopped(f"stopped by {signal}", code="stopped.signal", signal=signal)


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

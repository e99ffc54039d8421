"""`/predict`, `/health`, their limits and errors, in one process with tiny models."""

import asyncio
import errno
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from explained import save_tiny
from raised import raises_code
from starlette.requests import Request
from starlette.testclient import TestClient
from tiny import tiny_config, tiny_tokenizer
from transformers import BertForTokenClassification

from paratune.commands.infer import predict
from paratune.data.read import read_table
from paratune.infer.trained import NamedColumns, load_trained
from paratune.records.constant import CONSTANT
from paratune.records.own import TASK_FILE
from paratune.serving.access import ServingLimits
from paratune.serving.app import Service, make_app, read_body
from paratune.serving.server import open_socket, run_server

TEXTS = ["the film was good", "bad", "a story that was really good " * 6, "never again", "it is not bad " * 3, "good"]


@contextmanager
def client(folder: Path, limits: ServingLimits | None = None, **options: Any) -> Iterator[tuple[TestClient, Service]]:
    service = Service(load_trained(str(folder), NamedColumns(), "cpu"), limits or ServingLimits())
    with TestClient(make_app(service, **options), base_url="http://127.0.0.1") as http:
        yield http, service


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), "classification").folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[TestClient]:
    with client(folder, ServingLimits(max_rows=8, max_chars=300, max_body_bytes=4000, rate_per_s=1000)) as (http, _):
        yield http


def predicted(folder: Path, columns: dict[str, list[Any]], tmp_path: Path) -> list[dict[str, Any]]:
    """Return what `paratune predict` writes for a file with these columns."""
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pa.parquet.write_table(pa.table(columns), source)
    predict(str(folder), input=str(source), out=output, device="cpu", overwrite=True)
    rows: list[dict[str, Any]] = read_table(str(output)).to_pylist()
    return [{name: value for name, value in row.items() if name not in (*columns, "row")} for row in rows]


def assert_equal(answers: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [sorted(answer) for answer in answers] == [sorted(row) for row in expected]
    for answer, row in zip(answers, expected, strict=True):
        for name, value in row.items():
            assert answer[name] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value)


def check(response: Any, status: int, code: str, **facts: object) -> None:
    assert response.status_code == status
    fault = response.json()["errors"][0]
    assert (fault["code"], {name: fault["facts"].get(name) for name in facts}) == (code, facts)


@pytest.mark.parametrize(
    ("kind", "is_pair"),
    [("classification", True), ("regression", False)],
)
def test_answers_are_those_of_predict(tmp_path: Path, kind: str, is_pair: bool):
    folder = save_tiny(tmp_path / "model", kind, is_pair=is_pair).folder
    columns = {"text": TEXTS} | ({"pair": TEXTS[::-1]} if is_pair else {})
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    with client(folder) as (http, _):
        together = http.post("/predict", json={"rows": rows}).json()["predictions"]
        alone = [http.post("/predict", json=row).json()["predictions"][0] for row in rows]
    expected = predicted(folder, columns, tmp_path)
    assert_equal(together, expected)
    assert_equal(alone, expected)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_an_explanation_hides_each_word(tmp_path: Path, kind: str):
    folder = save_tiny(tmp_path / "model", kind).folder
    with client(folder) as (http, service):
        row = {"text": "the film was good"}
        found = http.post("/explain", json=row).json()
        shown = http.post("/predict", json=row).json()["predictions"][0]
        hidden = http.post("/predict", json={"text": f"the {service.trained.tokenizer.mask_token} was good"}).json()
        check(http.post("/explain", json={"rows": [row, row]}), 422, "serve.too_many_rows", num_rows=2)
        check(http.post("/explain", json={"text": "\u200b"}), 422, "explain.rows", row=0)

    def output(columns: dict[str, Any]) -> float:
        share = columns.get(f"score_{shown['prediction']}")
        return float(columns["prediction"] if kind == "regression" else np.log(share / (1 - share)))

    assert "".join(word["before"] + word["text"] for word in found["words"]) == row["text"]
    fall = output(shown) - output(hidden["predictions"][0])
    assert abs(fall) > 0.02  # smaller effects on log-odds are null
    assert found["words"][1]["effect"] == pytest.approx(fall, abs=1e-4)


def test_a_model_without_explanations_says_so(tmp_path: Path, served: TestClient):
    assert served.get("/health").json()["explains"] is True
    folder = save_tiny(tmp_path / "model", "classification").folder
    with client(folder) as (http, service):
        service.trained = replace(service.trained, truncation="head_tail")
        assert http.get("/health").json()["explains"] is False
        check(http.post("/explain", json={"text": "good"}), 422, "task.unsupported", key="data.truncation")
        object.__setattr__(service.trained.task, "kind", "masked_lm")
        assert http.get("/health").json()["explains"] is False
        check(http.post("/explain", json={"text": "good"}), 422, "task.unsupported", kind="masked_lm")


def test_a_text_of_the_data_is_shown_only_without_a_token(folder: Path):
    about = {"model": "tour", "score": {"metric": "accuracy", "value": 0.9}, "example": {"text": "good"}}
    service = Service(load_trained(str(folder), NamedColumns(), "cpu"), ServingLimits(), about)
    open_to_all, secret = service.health(needs_token=False), service.health(needs_token=True)
    assert {key: open_to_all[key] for key in about} == about
    assert (secret["model"], secret["example"]) == ("tour", None)


@pytest.mark.parametrize(("score", "is_warned"), [(0.25, True), (0.75, False)])
def test_each_answer_of_a_model_that_is_not_better_than_a_constant_one_has_a_warning(
    tmp_path: Path, score: float, is_warned: bool
):
    folder = save_tiny(tmp_path / "model", "classification").folder
    compared = {"predicts": "majority class", "split": "test", "metric": "accuracy", "model": score, "constant": 0.5}
    known = json.loads((folder / TASK_FILE).read_text())
    (folder / TASK_FILE).write_text(json.dumps(known | {CONSTANT: compared}))
    with client(folder) as (http, _):
        answers = [http.get("/health"), http.post("/predict", json={"text": "good"})]
    warnings = [answer.json().get("warning") for answer in answers]
    assert [warning is not None and warning["code"] == "model.not_better" for warning in warnings] == [is_warned] * 2
    assert all("0.2500" in warning["message"] and "0.5000" in warning["message"] for warning in warnings if warning)


def test_requests_leave_nothing_in_the_cache_of_tokens(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    with client(folder) as (http, _):
        assert http.post("/predict", json={"rows": [{"text": "good"}, {"text": "bad"}]}).status_code == 200
    assert not (tmp_path / "cache").exists()


def test_answers_of_concurrent_requests_are_those_of_predict(folder: Path, tmp_path: Path):
    limits = ServingLimits(max_wait_s=0.05, max_tokens=150)
    with client(folder, limits) as (http, _), ThreadPoolExecutor(8) as threads:
        posted = threads.map(lambda text: http.post("/predict", json={"text": text}).json(), TEXTS * 4)
        answers = [answer["predictions"][0] for answer in posted]
    assert_equal(answers, predicted(folder, {"text": TEXTS * 4}, tmp_path))


def test_answers_to_questions_are_those_of_predict(tmp_path: Path):
    folder = save_tiny(tmp_path / "model", "qa").folder
    columns = {"question": ["what was good", "it is"], "context": ["the film was good " * 30, "bad story"]}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    with client(folder) as (http, _):
        answers = http.post("/predict", json={"rows": rows}).json()["predictions"]
    assert_equal(answers, predicted(folder, columns, tmp_path))


def test_tags_of_words_are_those_of_predict(tmp_path: Path):
    folder = tmp_path / "model"
    torch.manual_seed(0)
    BertForTokenClassification(tiny_config(3)).save_pretrained(folder)
    tiny_tokenizer(folder)
    task = {"kind": "token_classification", "labels": ["O", "B-X", "I-X"], "scheme": "iob2"}
    (folder / TASK_FILE).write_text(json.dumps({"task": task, "columns": {"text": "tokens", "label": "tags"}}))
    columns = {"tokens": [["the", "film", "was", "good"], ["bad"]]}
    with client(folder) as (http, _):
        rows = [{"tokens": words} for words in columns["tokens"]]
        answers = http.post("/predict", json={"rows": rows}).json()["predictions"]
        check(http.post("/predict", json={"tokens": "the film"}), 422, "serve.value", column="tokens")
    assert_equal(answers, predicted(folder, columns, tmp_path))


def test_answers_for_texts_in_windows_are_those_of_predict(tmp_path: Path):
    folder = save_tiny(tmp_path / "model", "classification").folder
    record = json.loads((folder / TASK_FILE).read_text())
    record["task"]["windows"] = {"pooling": "mean", "max_windows": 3}
    (folder / TASK_FILE).write_text(json.dumps({**record, "max_length": 8}))
    columns = {"text": ["the film was good " * 5, "bad", "the story is fine and very good"]}
    with client(folder) as (http, _):
        rows = [{"text": text} for text in columns["text"]]
        answers = http.post("/predict", json={"rows": rows}).json()["predictions"]
    assert_equal(answers, predicted(folder, columns, tmp_path))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "serve.value"),
        (b"[" * 3000, "serve.value"),
        (b"[1]", "serve.value"),
        (b'{"rows": []}', "serve.value"),
        (b'{"rows": [3]}', "serve.value"),
        (b'{"text": "a", "text": "a"}', "serve.value"),
        (b'{"rows": [{"text": "a"}], "rows": [{"text": "b"}]}', "serve.value"),
        (b'{"rows": [{"text": "a", "text": "b"}]}', "serve.value"),
        (b'{"rows": [{"text": "a"}], "other": 1}', "serve.value"),
        (b'{"rows": [{"text": "a"}], "text": "b"}', "serve.value"),
        (b'{"text": "a", "other": {"b": 1, "b": 2}}', "serve.value"),
        (b'{"text": NaN}', "serve.value"),
        (b'{"text": -Infinity}', "serve.value"),
        (b'{"text": "a"} {"text": "b"}', "serve.value"),
        (b'{"text": "\xff"}', "serve.value"),
        (b'{"a":' * 700, "serve.value"),
        (b"9" * 3990, "serve.value"),
        (b"{}", "serve.value"),
        (b'{"text": "a", "other": "b"}', "serve.value"),
        (b'{"text": 3}', "serve.value"),
        (b'{"text": null}', "serve.value"),
        (b'{"text": "\\ud800"}', "serve.value"),
        (b'{"text": "%s"}' % (b"a" * 301), "serve.text_too_long"),
        (b'{"rows": [%s]}' % b",".join([b'{"text": "a"}'] * 9), "serve.too_many_rows"),
        (b'{"rows": [{"text": "a"}, {"text": ""}]}', "serve.value"),
        (b'{"text": ""}', "data.empty"),
    ],
)
def test_a_request_that_cannot_be_used_gets_422(served: TestClient, body: bytes, code: str):
    check(served.post("/predict", content=body, headers={"Content-Type": "application/json"}), 422, code)


def test_a_body_that_is_too_large_gets_413(served: TestClient):
    check(served.post("/predict", json={"text": "a" * 5000}), 413, "serve.body_too_large", max_bytes=4000)
    parts = iter([b'{"text": "'] + [b"a" * 1000] * 5)  # without Content-Length
    headers = {"Content-Type": "application/json"}
    check(served.post("/predict", content=parts, headers=headers), 413, "serve.body_too_large")


def test_a_client_that_leaves_within_its_body_is_no_failure_of_the_server():
    parts = iter([{"type": "http.request", "body": b'{"te', "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(parts)

    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
    with raises_code("serve.client_gone"):
        asyncio.run(read_body(request, ServingLimits()))


def test_other_content_paths_methods_and_hosts_are_refused(served: TestClient):
    check(served.post("/predict", content=b'{"text": "a"}'), 415, "serve.content_type")
    check(served.get("/nothing"), 404, "serve.path")
    check(served.get("/docs"), 404, "serve.path")
    check(served.get("/predict"), 405, "serve.method")
    check(served.get("/health", headers={"Host": "attacker.example"}), 403, "serve.host")
    assert served.get("/health", headers={"Host": "LOCALHOST:80"}).status_code == 200
    assert served.get("/health", headers={"Host": "[::1]:80"}).status_code == 200


def test_a_full_queue_and_a_fast_client_get_429(folder: Path):
    with client(folder, ServingLimits(max_queue=2, rate_per_s=1)) as (http, _):
        full = http.post("/predict", json={"rows": [{"text": "a"}] * 3})
        check(full, 429, "serve.queue_full", max_queue=2)
        assert full.headers["retry-after"] == "1"
        assert http.post("/predict", json={"text": "a"}).status_code == 200
        check(http.post("/predict", json={"text": "a"}), 429, "serve.rate", retry_after_s=1)
        assert http.get("/health").status_code == 200


def test_a_token_is_required_and_no_text_is_logged(folder: Path):
    lines: list[str] = []
    with client(folder, listens_on="0.0.0.0", token="t" * 16, write_line=lines.append) as (http, _):
        row = {"text": "a secret text"}
        check(http.post("/predict", json=row), 401, "serve.token")
        check(http.post("/predict", headers={"Authorization": "Bearer ttt"}), 401, "serve.token")
        good = {"Authorization": "Bearer " + "t" * 16}
        assert http.post("/predict?text=secret", json=row, headers=good).status_code == 200
    logged = [json.loads(line) for line in lines]
    assert [(line["path"], line["status"], line["code"]) for line in logged] == [
        ("/predict", 401, "serve.token"),
        ("/predict", 401, "serve.token"),
        ("/predict", 200, None),
    ]
    assert (logged[2]["num_rows"], logged[2]["client"]) == (1, "testclient")
    assert logged[2]["num_tokens"] > 2
    assert "secret" not in "".join(lines)


def test_accepted_requests_are_answered_after_a_signal_and_new_connections_are_refused(folder: Path):
    service = Service(load_trained(str(folder), NamedColumns(), "cpu"), ServingLimits())
    has_begun, may_end = threading.Event(), threading.Event()
    compute = service.predictor.predict

    def slow(rows: Any) -> Any:
        has_begun.set()
        may_end.wait(60)
        return compute(rows)

    service.batcher._predict = slow
    listener = open_socket("127.0.0.1", 0)
    address = listener.getsockname()

    def ask() -> bytes:
        with socket.create_connection(address) as client:
            body = b'{"text": "good"}'
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            return client.recv(100)

    def talk() -> tuple[bytes, int]:
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(ask)
            assert has_begun.wait(60)
            os.kill(os.getpid(), signal.SIGTERM)
            deadline, refused = time.monotonic() + 60, 0
            while not refused and time.monotonic() < deadline:
                with socket.socket() as late:
                    refused = late.connect_ex(address)
            may_end.set()
            return answer.result(), refused

    with ThreadPoolExecutor(1) as threads:
        talked = threads.submit(talk)
        assert run_server(make_app(service), listener) == "SIGTERM"
        answer, refused = talked.result()
    assert answer.startswith(b"HTTP/1.1 200")
    assert refused == errno.ECONNREFUSED


def test_an_error_of_the_model_is_reported_without_its_text(folder: Path):
    with client(folder) as (http, service):

        def fail(rows: Any) -> Any:
            raise RuntimeError("secret text")

        service.batcher._predict = fail
        response = http.post("/predict", json={"text": "good"})
        check(response, 500, "serve.failed")
        assert "secret" not in response.text

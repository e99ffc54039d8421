"""`/explain` and the page `/`, with tiny models."""

import asyncio
import base64
import hashlib
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explained import Saved, save_tiny
from raised import raises_code
from starlette.testclient import TestClient

import paratune.serving.app as app
from paratune.explain.explain import ExplainOptions, explain_rows
from paratune.feedback.feedback import ScoreCalibration
from paratune.infer.trained import NamedColumns, load_trained
from paratune.models.attention import masks
from paratune.precision import POLICIES
from paratune.records.predictions import NumberScale
from paratune.serving.app import Service, make_app
from paratune.serving.explainer import Explainer
from paratune.serving.settings import ServingLimits

ROW = {"text": "the film was good 😀 never"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save_tiny(tmp_path_factory.mktemp("model"), "classification")


def service_of(folder: Path, limits: ServingLimits | None = None) -> Service:
    return Service(load_trained(str(folder), NamedColumns(), "cpu"), limits or ServingLimits())


def open_client(service: Service, **options: Any) -> TestClient:
    return TestClient(make_app(service, **options), base_url="http://127.0.0.1")


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["errors"][0]["code"]


async def stays() -> bool:
    return False


async def leaves() -> bool:
    return True


def test_an_explanation_is_that_of_the_command_and_leaves_predictions_as_they_are(saved: Saved):
    trained, split = saved.read(ROW["text"])
    (expected,) = explain_rows(trained, split, ExplainOptions(methods=("occlusion",), target="low"))
    with open_client(service_of(saved.folder)) as http:
        before = http.post("/predict", json=ROW).json()
        found = http.post("/explain?method=occlusion&target=low", json=ROW).json()
        assert http.post("/predict", json=ROW).json() == before
    effects = [word["effects"]["occlusion"] for word in found["words"]]
    assert effects == pytest.approx(expected.effects["occlusion"], abs=1e-5)
    assert (found["target"], found["texts"]) == ("log-odds of low", [ROW["text"]])
    assert "".join(word["text"] for word in found["words"]) == ROW["text"].replace(" ", "")
    assert found["methods"]["occlusion"]["holds"] is (expected.faithfulness.verdict("occlusion") is None)


def test_explanations_that_cannot_be_given_are_refused(saved: Saved):
    with open_client(service_of(saved.folder, ServingLimits(max_explain_s=0.0))) as http:
        for query in ("method=magic", "target=nobody", "rows=1", "method=occlusion&method=occlusion"):
            assert code_of(http.post(f"/explain?{query}", json=ROW)) == (422, "serve.query")
        assert code_of(http.post("/explain", json={"rows": [ROW, ROW]})) == (422, "serve.too_many_rows")
        assert code_of(http.post("/explain", json={"text": ""})) == (422, "data.no_rows_left")
        assert code_of(http.get("/explain")) == (405, "serve.method")
        late = http.post("/explain", json=ROW)
        assert code_of(late) == (503, "serve.explain_timeout")
        assert late.headers["retry-after"] == "1"
        assert http.post("/predict", json=ROW).status_code == 200


def test_an_explanation_waits_for_predictions_and_its_queue_has_a_limit(saved: Saved):
    looks: list[bool] = []

    def is_busy() -> bool:
        looks.append(len(looks) < 3)
        return looks[-1]

    async def run() -> None:
        trained = load_trained(str(saved.folder), NamedColumns(), "cpu")
        explainer = Explainer(trained, ServingLimits(max_explain_queue=1), is_busy)
        explainer.num_waiting = 1
        with raises_code("serve.explain_queue_full", num_waiting=1, max_explain_queue=1):
            await explainer.explain(ROW, ExplainOptions(), stays)
        explainer.num_waiting = 0
        await explainer.explain(ROW, ExplainOptions(methods=("occlusion",)), stays)
        explainer.close()

    asyncio.run(run())
    assert looks[:5] == [True, True, True, False, False]


def test_predictions_beside_explanations_are_those_of_one_thread(saved: Saved, monkeypatch: pytest.MonkeyPatch):
    """With padded rows, whose masks are made as on a GPU: while explanations are computed, and afterwards."""
    monkeypatch.setattr(masks, "ON_DEVICE", ("cpu",))
    service = service_of(saved.folder)
    service.trained.model.entry = None
    assert service.explainer is not None
    rows = service.predictor.tokenize([ROW, {"text": "never"}])
    expected = service.predictor.predict(rows)
    options, found, is_done = ExplainOptions(methods=("occlusion",)), [], threading.Event()
    (alone,) = explain_rows(service.trained, service.predictor.tokenize([ROW])[0].request, options)

    def explain() -> None:
        while not is_done.is_set():
            found.append(service.explainer._explain(ROW, options, threading.Event()))

    explaining = threading.Thread(target=explain)
    explaining.start()
    different = sum(service.predictor.predict(rows) != expected for _ in range(60))
    is_done.set()
    explaining.join()
    assert [different, sum(service.predictor.predict(rows) != expected for _ in range(20))] == [0, 0]
    for explanation in found:
        effects = [word["effects"]["occlusion"] for word in explanation["words"]]
        assert effects == pytest.approx(alone.effects["occlusion"], abs=1e-5)


def test_switches_of_the_process_are_those_of_the_model_while_it_is_served(saved: Saved):
    """One thread's prediction must not change them under another thread's explanation."""
    before = torch.get_float32_matmul_precision()
    trained = replace(load_trained(str(saved.folder), NamedColumns(), "cpu"), precision=POLICIES["tf32"])
    with open_client(Service(trained, ServingLimits())) as http:
        assert http.post("/predict", json=ROW).status_code == 200
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before == "highest"


def test_an_explanation_ends_when_its_client_leaves(saved: Saved):
    async def run() -> int:
        trained = load_trained(str(saved.folder), NamedColumns(), "cpu")
        explainer = Explainer(trained, ServingLimits(), lambda: True)  # it waits until it is abandoned
        with raises_code("serve.client_gone"):
            await explainer.explain(ROW, ExplainOptions(), leaves)
        while explainer.num_waiting:
            await asyncio.sleep(0.01)
        return len(explainer._thread._threads)

    assert asyncio.run(run()) == 1


def test_a_client_that_leaves_the_queue_frees_its_place(saved: Saved):
    async def run() -> int:
        trained = load_trained(str(saved.folder), NamedColumns(), "cpu")
        explainer = Explainer(trained, ServingLimits(), lambda: True)  # the first one waits until it is abandoned
        first = asyncio.create_task(explainer.explain(ROW, ExplainOptions(), stays))
        while explainer._job is None:
            await asyncio.sleep(0.01)
        with raises_code("serve.client_gone"):
            await explainer.explain(ROW, ExplainOptions(), leaves)
        await asyncio.sleep(0.05)
        num_waiting = explainer.num_waiting
        first.cancel()
        await asyncio.wait({first})
        return num_waiting

    assert asyncio.run(run()) == 1


def test_scores_have_the_interval_of_the_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rule: Any = None
    calibration = ScoreCalibration((), NumberScale(None, (0.0, 9.0)), 0.9, 0.25, 40, None, rule, 0.5, 0.1, None)
    monkeypatch.setattr(app, "read_calibration", lambda trained: calibration)
    folder = save_tiny(tmp_path / "model", "regression").folder
    with open_client(service_of(folder)) as http:
        answer = http.post("/predict", json=ROW).json()
        health = http.get("/health").json()
    score = answer["predictions"][0]["prediction"]
    assert answer["intervals"][0] == pytest.approx(np.clip([score - 0.25, score + 0.25], 0, 9))
    assert health["interval"] == {"coverage": 0.9, "half_width": 0.25, "num_validation_rows": 40, "test": None}


def test_the_page_needs_no_token_and_no_other_site(saved: Saved):
    with open_client(service_of(saved.folder), listens_on="0.0.0.0", token="t" * 16) as http:
        page, health = http.get("/"), http.get("/health").json()
        assert code_of(http.post("/explain", json=ROW)) == (401, "serve.token")
    assert health["needs_token"] is True
    policy = page.headers["content-security-policy"]
    for name in ("script", "style"):
        (content,) = re.findall(f"<{name}>(.*?)</{name}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"https?://|innerHTML|@import|url\(", page.text)

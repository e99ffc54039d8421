"""One process's part of a certificate, in this process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from raised import raises_code
from safetensors.torch import save_file
from tiny import tiny_model
from torch import nn

from paratune.config.load import load_config
from paratune.engine.stop import StopRequest
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.training import certify
from paratune.training.certify import CertificateJob, tensor_hashes, train_job, zero_dropout
from paratune.training.gradients import Differences, compare_gradients, relative_difference

F64 = torch.float64


def test_the_difference_is_relative_to_the_largest_entry_of_its_tensor():
    expected = torch.tensor([4.0, -8.0], dtype=F64)
    # |-7.5 + 8| / 8
    assert relative_difference(torch.tensor([4.0, -7.5], dtype=F64), expected, 8.0) == 0.0625


def test_rounding_of_a_zero_gradient_is_relative_to_the_largest_entry_of_all():
    expected = torch.tensor([1e-18, 0.0], dtype=F64)
    # 2e-18 / (1e-6 * 10), and not 2e-18 / 1e-18.
    assert relative_difference(torch.tensor([3e-18, 0.0], dtype=F64), expected, 10.0) == pytest.approx(2e-13)


def test_different_shapes_are_infinitely_different():
    assert relative_difference(torch.ones(2), torch.ones(3), 1.0) == float("inf")


def test_gradients_are_compared_by_name(tmp_path: Path):
    path = tmp_path / "gradients.safetensors"
    kept = {f"optimizer/{name}/exp_avg": torch.full((2,), 4.0, dtype=F64) for name in ("a", "b", "c")}
    save_file(kept, path, metadata={"largest": "4.0"})
    own = {"a": 4.0, "b": 5.0, "z": 1.0}
    tensors = [(f"optimizer/{name}/exp_avg", torch.full((2,), value, dtype=F64)) for name, value in own.items()]
    result = compare_gradients(path, iter(tensors), is_first=True)
    names = {"largest": 0.25, "tensor": "b", "missing": ["c"], "unexpected": ["z"]}
    # Of a and b: |(0, 0, 1, 1)| over |(4, 4, 4, 4)|, and (2 * 16 + 2 * 20) / 64 - 1; b alone is a quarter off.
    norms = {"difference": 2**0.5 / 8, "length": 0.125, "worst_tensor": 0.25, "worst_name": "b"}
    assert {key: result[key] for key in names} == names
    assert {key: result[key] for key in norms} == norms
    # The others take part in gathering and see nothing.
    nothing = compare_gradients(path, iter([(key, None) for key, _ in tensors]), is_first=False)
    empty = {"largest": 0.0, "tensor": None, "missing": [], "unexpected": []}
    assert nothing == empty | {"difference": 0.0, "length": 0.0, "worst_tensor": 0.0, "worst_name": None}


def test_a_gradient_that_is_too_long_is_detected_despite_rounding():
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(1000, generator=generator, dtype=F64)
    rounded = (expected * (1 + 2**-8 * torch.randn(1000, generator=generator))).bfloat16()
    for factor, length in ((1.0, 0.0), (1.05, 0.05)):
        differences = Differences()
        differences.add("a", rounded * factor, expected)
        result = differences.as_dict()
        # Of 1000 entries, rounding of 2^-8 each leaves about 2^-8 / 1000^0.5 of the length, 1e-4.
        assert result["length"] == pytest.approx(length, abs=1e-3)
        assert result["difference"] == pytest.approx((length**2 + 2**-16) ** 0.5, rel=0.2)


def test_a_small_tensor_is_relative_to_the_norm_of_all():
    differences = Differences()
    differences.add("large", torch.tensor([100.0]), torch.tensor([100.0]))
    differences.add("zero but for rounding", torch.tensor([1e-9]), torch.tensor([-1e-12]))
    result = differences.as_dict()
    assert result["worst_tensor"] == pytest.approx(1e-9)  # over 1% of 100
    differences.add("shape", torch.ones(2), torch.ones(3))
    assert differences.as_dict()["worst_name"] == "shape"
    assert differences.as_dict()["difference"] == float("inf")
    differences.add("not a number", torch.tensor([torch.nan]), torch.ones(1))
    assert differences.as_dict()["length"] == float("inf")


def test_a_nan_gradient_is_the_worst(tmp_path: Path):
    path = tmp_path / "gradients.safetensors"
    save_file({f"optimizer/{name}/exp_avg": torch.ones(1) for name in "ab"}, path, metadata={"largest": "1.0"})
    tensors = [("optimizer/a/exp_avg", torch.tensor([torch.nan])), ("optimizer/b/exp_avg", torch.tensor([2.0]))]
    result = compare_gradients(path, iter(tensors), is_first=True)
    assert result["tensor"] == "a"


def test_hashes_depend_on_values_and_not_on_signs_of_zero():
    value = torch.tensor([1.5, -2.25])
    same = tensor_hashes([("model/a", value), ("model/b", None)])
    assert same == tensor_hashes([("model/a", value.double())])
    assert same.keys() == {"a"}
    assert same != tensor_hashes([("model/a", value + 1e-6)])
    assert tensor_hashes([("model/a", torch.tensor([-0.0]))]) == tensor_hashes([("model/a", torch.tensor([0.0]))])


def test_dropout_modules_are_switched_off():
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 4), nn.Sequential(nn.Dropout1d(0.2)))
    zero_dropout(model)
    assert [module.p for module in model.modules() if hasattr(module, "p")] == [0.0, 0.0]


def test_a_model_that_uses_random_numbers_is_refused():
    class Noisy(TaskModel):
        def forward(self, batch: Any) -> torch.Tensor:
            return torch.rand(3)

    with raises_code("certify.unsupported", "BertForSequenceClassification"):
        certify.refuse_randomness(Noisy(tiny_model(), "classification"), None)  # type: ignore[arg-type]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    tiny_model(tmp_path / "model", dropout=0.3)
    rows = [f"{word} film,{label}" for word in ("good", "fine", "great") for label in ("yes", "no")]
    (tmp_path / "data.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (tmp_path / "c.yaml").write_text(
        "task: {kind: classification, labels: ['yes', 'no']}\n"
        "data: {train: data.csv, columns: {text: text, label: label}}\n"
        "model: {name: model}\n"
        "train: {max_steps: 2, schedule: constant}\n"
        "batch: {global: 4}\n"
    )

    def make(folder: str, reference: str | None = None, **changed: Any) -> CertificateJob:
        values = load_config(tmp_path / "c.yaml").values
        values["train"] |= changed
        (tmp_path / folder).mkdir()
        return CertificateJob(
            name="single",
            values=values,
            source="c.yaml",
            num_steps=2,
            exact=True,
            folder=str(tmp_path / folder),
            reference=reference and str(tmp_path / reference),
        )

    return make


def test_the_same_process_agrees_with_itself_and_another_gradient_is_detected(job: Any):
    first = train_job(job("a"), Place(0, 0, 1), StopRequest())
    assert first["precision"] == "fp64"
    assert first["about"]["global_batch_size"] == 4
    # Three steps of 4 samples are needed for 6: the second has 2.
    assert [len(rows) for rows in first["rows"]] == [4, 2]
    assert sorted(first["rows"][0] + first["rows"][1]) == list(range(6))

    again = train_job(job("b", reference="a"), Place(0, 0, 1), StopRequest())
    assert (again["gradients"]["largest"], again["gradients"]["difference"]) == (0.0, 0.0)
    assert (again["gradients"]["missing"], again["gradients"]["unexpected"]) == ([], [])
    assert (again["losses"], again["weights"]) == (first["losses"], first["weights"])

    # AdamW's first moment is (1 - beta) times the gradient: with 0.8 in place of 0.9 it is twice as large.
    other = train_job(job("c", reference="a", betas=[0.8, 0.999]), Place(0, 0, 1), StopRequest())
    assert other["gradients"]["largest"] == pytest.approx(1.0)
    assert other["gradients"]["length"] == pytest.approx(1.0)
    assert other["losses"][0] == first["losses"][0]


@pytest.mark.parametrize(
    ("device", "exact", "name", "capability", "precision"),
    [
        ("cpu", True, "", None, "fp64"),
        ("cpu", False, "", None, "fp32"),
        ("cuda", True, "NVIDIA H200", (9, 0), "fp64"),
        ("cuda", True, "NVIDIA L40S", (8, 9), "fp32"),
        ("cuda", False, "NVIDIA H200", (9, 0), "fp32"),
    ],
)
def test_fp64_is_used_only_if_the_device_is_fast_with_it(
    device: str, exact: bool, name: str, capability: Any, precision: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    job = CertificateJob("ddp", {"precision": "fp32"}, "c.yaml", 3, exact, "folder", None)
    assert certify._most_exact(torch.device(device), job) == precision


@pytest.mark.parametrize(("precision", "tries", "norm"), [("fp16", 3, 2.0), ("bf16", 1, float("inf"))])
def test_a_step_of_fp16_that_overflows_is_repeated(precision: str, tries: int, norm: float):
    norms = iter([float("inf"), float("nan"), 2.0])
    calls: list[str] = []

    class Overflows:
        layout = SimpleNamespace(rank=0)

        def forward_backward(self, micro_batches: Any, phases: Any) -> torch.Tensor:
            calls.append("forward")
            return torch.tensor(0.5)

        def optimizer_step(self, max_grad_norm: float | None) -> torch.Tensor:
            assert max_grad_norm is None
            return torch.tensor(next(norms))

        def reduce(self, value: torch.Tensor, operation: str) -> torch.Tensor:
            return value

    config = SimpleNamespace(train=SimpleNamespace(max_grad_norm=1.0), run=SimpleNamespace(seed=1))
    prepared = SimpleNamespace(config=config, precision=POLICIES[precision], device=torch.device("cpu"))
    optimizer = SimpleNamespace(set_learning_rate=lambda step: 0.0)
    outcome: dict[str, Any] = {"rows": [], "losses": [], "grad_norms": []}
    certify._step(prepared, Overflows(), optimizer, [], 0, outcome)  # type: ignore[arg-type]
    assert len(calls) == tries
    # What is written down is of the last try alone.
    assert outcome == {"rows": [[]], "losses": [0.5], "grad_norms": [norm]}

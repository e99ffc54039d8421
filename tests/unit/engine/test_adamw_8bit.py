"""AdamW with 8-bit moments: against torchao, which has its own table and rounding, and against AdamW in float32."""

import numpy as np
import pytest
import torch
from raised import raises_code
from torch import nn

from paratune.config.candidates import common_values
from paratune.config.load import load_config
from paratune.config.model_states import compact_state_tensors
from paratune.config.sections import Train
from paratune.engine import adamw_8bit
from paratune.engine.adamw_8bit import dynamic_table
from paratune.engine.optim import OptimizerFactory
from paratune.strategies.whole import WholeState

SHAPES = {"weight": (40, 128), "odd.weight": (41, 100), "bias": (64,)}


def trained(kind: str, steps: int, *, dtype=torch.float32, resumed: dict | None = None, start: int = 0, **options):
    draw = torch.Generator().manual_seed(0)
    model = nn.ParameterDict(
        {
            name.replace(".", "_"): nn.Parameter(torch.randn(shape, generator=draw).to(dtype))
            for name, shape in SHAPES.items()
        }
    )
    gradients = [[torch.randn(p.shape, generator=draw).to(dtype) for p in model.values()] for _ in range(4)]
    train = Train(epochs=1.0, optimizer=kind, learning_rate=0.01, schedule="constant", weight_decay=0.1, **options)
    optimizer = OptimizerFactory(train, 10)(model.named_parameters())
    state = WholeState(model, optimizer, rank=0)
    if resumed is not None:
        state.load(resumed.__getitem__, resumed)
    for number in range(start, start + steps):
        for parameter, gradient in zip(model.values(), gradients[number], strict=True):
            parameter.grad = gradient
        optimizer.step()
    return model, optimizer, {key: value.clone() for key, value in state.tensors()}


def test_the_table_has_the_values_of_the_dynamic_type():
    # Exponent 10^-6 has one value for signed numbers: (0.1 + 1) / 2 * 1e-6. 10^0 has 64: steps of 0.9 / 64 from
    # 0.1 + 0.9 / 128.
    table = dynamic_table(signed=True)
    assert (len(table), table[0].item(), table[-1].item()) == (256, -table[-2].item(), 1.0)
    assert table[table > 0].min().item() == pytest.approx(0.55e-6)
    assert table[-65].item() == pytest.approx(0.1 + 0.9 / 128)
    unsigned = dynamic_table(signed=False)
    assert (len(unsigned), unsigned[0].item(), unsigned[-1].item()) == (256, 0.0, 1.0)
    assert unsigned[1].item() == pytest.approx((0.1 + 0.55) / 2 * 1e-6)


def test_weights_and_moments_are_those_of_torchao():
    torchao = pytest.importorskip("torchao.optim.adam")
    from torchao.optim.subclass_8bit import OptimState8bit

    model, optimizer, _ = trained("adamw_8bit", 4)
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=draw) for shape in SHAPES.values()]
    by_name = sorted(SHAPES)  # as `ParameterDict` orders them
    gradients = [[torch.randn(SHAPES[name], generator=draw) for name in by_name] for _ in range(4)]
    weight = weights[0]
    moments = [OptimState8bit.zeros(weight.shape, signed, 256) for signed in (True, False)]
    for step in range(4):
        torchao.single_param_adam(
            weight, gradients[step][-1], torch.tensor(step + 1.0), *moments, None, torch.tensor(0.01), 0.9, 0.999, 0.1,
            1e-8, True, False,
        )  # fmt: skip
    # It computes 1 - 0.999^t in float32, which is off by 3e-5 of a step of 0.01.
    torch.testing.assert_close(model["weight"].detach(), weight, rtol=1e-6, atol=1e-6)
    state = optimizer.state[model["weight"]]
    assert (state["exp_avg_codes"].int() - moments[0].codes.int()).abs().max() <= 1
    assert (state["exp_avg_codes"] == moments[0].codes).float().mean() > 0.999
    torch.testing.assert_close(state["exp_avg_sq_scale"], moments[1].scale)


def test_the_moments_are_off_by_half_a_step_of_the_table_and_small_parameters_are_exact(monkeypatch):
    monkeypatch.setattr(adamw_8bit, "PART_NUMBERS_8_BITS", 1024)  # the weight is updated in five parts
    model, optimizer, _ = trained("adamw_8bit", 1)
    exact, reference, _ = trained("adamw", 1)
    for name in ("odd_weight", "bias"):  # 4100 numbers are not a multiple of 256
        torch.testing.assert_close(model[name], exact[name], rtol=1e-6, atol=1e-7)
    # The first step uses moments before they are rounded.
    torch.testing.assert_close(model["weight"], exact["weight"], rtol=1e-6, atol=1e-7)
    state, wanted = optimizer.state[model["weight"]], reference.state[exact["weight"]]
    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        table = dynamic_table(signed=signed).numpy()
        blocks = wanted[name].numpy().reshape(-1, 256)
        scales = np.abs(blocks).max(axis=1)
        np.testing.assert_allclose(state[f"{name}_scale"].numpy(), scales, rtol=1e-6)
        found = table[state[f"{name}_codes"].numpy().reshape(-1, 256)] * scales[:, None]
        assert np.abs(found - blocks).max() <= np.diff(table).max() / 2 * scales.max() * (1 + 1e-5)
    assert (state["exp_avg_codes"].dtype, state["exp_avg_codes"].shape) == (torch.uint8, (40, 128))


@pytest.mark.parametrize("kind", ["adamw_8bit", "adafactor"])
def test_a_checkpoint_continues_bit_for_bit_and_has_the_planned_bytes(kind):
    _, _, whole = trained(kind, 4)
    _, optimizer, half = trained(kind, 2)
    _, _, continued = trained(kind, 2, resumed=half, start=2)
    assert whole.keys() == continued.keys()
    assert all(torch.equal(whole[key], continued[key]) for key in whole)
    for parameter, states in optimizer.state.items():
        sizes = [value.nbytes for value in states.values() if torch.as_tensor(value).ndim > 0]
        assert tuple(sizes) == compact_state_tensors(kind, parameter.shape)
    # In BERT's width: for both moments a byte a number and a float32 for 256 numbers; or a row and a column.
    assert compact_state_tensors("adamw_8bit", (768, 768)) == (768**2, 4 * 768**2 // 256) * 2
    assert compact_state_tensors("adafactor", (768, 3072)) == (4 * 768, 4 * 3072)
    assert compact_state_tensors("adamw", (768, 768)) is None


TEXT = """
task: regression
data: {{train: a.csv, columns: {{text: t, label: l}}, split: {{validation: 0.1}}}}
model: {{name: m}}
batch: {{global: 8}}
train: {{epochs: 1, optimizer: {kind}, eps: {eps}}}
strategy: {strategy}
"""


@pytest.mark.parametrize("kind", ["adamw_8bit", "adafactor"])
@pytest.mark.parametrize("strategy", ["zero1", "zero3", "deepspeed", "{kind: pipeline, stages: 2}"])
def test_strategies_that_divide_weights_refuse_them(tmp_path, kind, strategy):
    (tmp_path / "c.yaml").write_text(TEXT.format(kind=kind, strategy=strategy, eps="1e-8"))
    with raises_code("strategy.excluded", kind):
        load_config(tmp_path / "c.yaml")


def test_certificates_compare_gradients_under_adamw(tmp_path):
    (tmp_path / "c.yaml").write_text(TEXT.format(kind="adamw_8bit", strategy="single", eps="1e-7"))
    values, notes = common_values(load_config(tmp_path / "c.yaml"), 2, 2)
    assert values["train"]["optimizer"] == "adamw"
    assert any("adamw_8bit" in note for note in notes)
    (tmp_path / "c.yaml").write_text(TEXT.format(kind="adafactor", strategy="single", eps="1e-7"))
    with raises_code("config.no_effect", "train.eps"):
        load_config(tmp_path / "c.yaml")

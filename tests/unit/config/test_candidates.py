"""The same configuration under strategies that a command line names."""

from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.config.candidates import (
    common_values,
    strategy_candidate,
    strategy_candidates,
    strategy_names,
    strategy_section,
)
from paratune.config.check import check
from paratune.config.load import LoadedConfig, load_config
from paratune.errors import ConfigError

TEXT = """\
task: {{kind: classification, labels: [a, b]}}
data: {{train: data.csv, columns: {{text: t, label: l}}}}
model: {{name: m}}
train: {{epochs: 3, warmup_ratio: 0.1, learning_rate: 2e-3}}
batch: {batch}
strategy: {strategy}
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def make(batch: str = "{global: 16}", strategy: str = "single") -> LoadedConfig:
        (tmp_path / "c.yaml").write_text(TEXT.format(batch=batch, strategy=strategy))
        return load_config(tmp_path / "c.yaml")

    return make


def test_strategies_are_separated_by_commas_outside_of_brackets():
    assert strategy_names("ddp, zero3,ddp,") == ["ddp", "zero3"]
    assert strategy_names("pipeline:2:balance=[3,1],hsdp:2") == ["pipeline:2:balance=[3,1]", "hsdp:2"]
    with raises_code("cli.required", option="--strategies"):
        strategy_names(" ,")


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("zero3", {"kind": "zero3"}),
        ("hsdp:2", {"kind": "hsdp", "shard_size": 2}),
        ("ddp:bucket_cap_mb=5", {"kind": "ddp", "bucket_cap_mb": 5}),
        ("pipeline:2:schedule=gpipe", {"kind": "pipeline", "stages": 2, "schedule": "gpipe"}),
        ("my_module:Mine", {"kind": "my_module:Mine"}),
    ],
)
def test_a_value_sets_the_first_option_and_others_are_named(load: Any, name: str, section: dict[str, Any]):
    assert strategy_section(load(), name) == (section, [])


def test_weights_of_16_bits_have_only_their_own_precision(load: Any):
    loaded = load()
    common = common_values(loaded, 2, 4)[0]
    candidates = [strategy_candidate(loaded, common, name, 2) for name in ("zero3", "zero3:param_dtype=bf16")]
    assert [candidate.config.precision for candidate in candidates] == ["fp32", "bf16"]
    problems = [problem for candidate in candidates for problem in check(candidate.config)]
    assert not any("precision" in key for problem in problems for key in problem.keys)


def test_options_that_the_file_gives_a_strategy_are_kept(load: Any):
    section, _ = strategy_section(load(strategy="{kind: ddp, bucket_cap_mb: 3.0}"), "ddp:find_unused_parameters=true")
    assert section == {"kind": "ddp", "bucket_cap_mb": 3.0, "find_unused_parameters": True}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dpd", "--strategies dpd: dpd is not a strategy; did you mean ddp?"),
        ("fsdp", "fsdp is not a strategy; FSDP's full shard is zero3 here"),
        ("hsdp:two", 'strategy.shard_size is "two"'),
        ("pipeline:2:4", "'4' is not option=value; pipeline has: stages"),
        ("ddp:stages=2", "stages is not an option of ddp"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_starts(load: Any, name: str, expected: str):
    with pytest.raises(ConfigError) as refused:
        strategy_candidate(load(), common_values(load(), 2, 4)[0], name, 2)
    assert expected in str(refused.value)


def test_all_that_is_wrong_is_named_at_once(load: Any):
    loaded = load()
    with pytest.raises(ConfigError) as refused:
        strategy_candidates(
            loaded, common_values(loaded, 2, 4)[0], ["dpd", "zero3", "pipeline:2:4:=", "ddp:stages=2:x=1:y"], 2
        )
    lines = str(refused.value).splitlines()
    assert lines[0] == "3 of 4 strategies cannot be tried:"
    assert lines[1].startswith("  --strategies dpd: dpd is not a strategy; did you mean ddp?")
    assert lines[2].startswith("  --strategies pipeline:2:4:=: '4' is not option=value")
    assert "stages is not an option of ddp; pipeline has it" in lines[3]
    assert "x is not an option of ddp" in lines[3]
    assert "'y' is not option=value" in lines[3]
    assert len(lines) == 4
    # One alone needs no heading.
    with raises_code("strategy.unknown", option="--strategies", name="dpd"):
        strategy_candidates(loaded, common_values(loaded, 2, 4)[0], ["ddp", "dpd"], 2)


def test_auto_has_no_effect_and_a_note_states_it(load: Any):
    values, notes = common_values(load("{global: 16, micro_batch_size: auto}"), 2, 5)
    assert values["batch"]["micro_batch_size"] is None
    assert any("batch.micro_batch_size: auto" in note for note in notes)
    assert not any("auto" in note for note in common_values(load("{global: 16, micro_batch_size: 4}"), 2, 5)[1])


def test_all_strategies_have_the_same_global_batch_and_learning_rate(load: Any):
    values, notes = common_values(load("{per_device: 4, grad_accum_steps: 2}"), 3, 5)
    # 4 samples, 2 micro-steps, 3 processes.
    assert values["batch"]["global"] == 24
    assert values["batch"]["micro_batch_size"] == 4
    assert (values["train"]["schedule"], values["train"]["warmup_ratio"]) == ("constant", None)
    assert (values["train"]["max_steps"], values["train"]["epochs"]) == (5, None)
    assert notes == [
        "dropout off",
        "batch.global: 24, from batch.per_device and 3 processes",
        "learning rate 0.002 from the first step on",
    ]


def test_one_process_has_the_micro_batch_of_the_others(load: Any):
    common, _ = common_values(load(), 4, 5)
    single, ddp = (strategy_candidate(load(), common, name, 4) for name in ("single", "ddp"))
    assert (single.world_size, single.config.batch.micro_batch_size) == (1, 4)
    assert (ddp.world_size, ddp.config.batch.micro_batch_size) == (4, None)


def test_steps_of_evaluations_and_checkpoints_are_limited_to_the_run(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(TEXT.format(batch="{global: 16}", strategy="single"))
    often = [f"{name}.{candidate}" for name in ("evaluate", "checkpoint") for candidate in ("every=steps", "steps=100")]
    often.append("data.split.validation=0.1")
    loaded = load_config(tmp_path / "c.yaml", often)
    values, _ = common_values(loaded, 2, 3)
    candidates = strategy_candidate(loaded, values, "ddp", 2).config
    assert (candidates.train.max_steps, candidates.evaluate.steps, candidates.checkpoint.steps) == (3, 3, 3)


def test_one_process_with_another_layout_is_a_candidate(load: Any):
    loaded = load()
    common, _ = common_values(loaded, 2, 4)
    padded = strategy_candidate(loaded, common, "single", 2, "padded")
    assert (padded.name, padded.world_size, padded.config.batch.layout) == ("single, padded", 1, "padded")
    assert common["batch"]["layout"] == "auto"  # the others keep the layout of the file
    with raises_code("cli.invalid_value", "--layouts rows", "padded"):
        strategy_candidate(loaded, common, "single", 2, "rows")

"""Each rule of feasibility once, with its facts, and what each command makes of it: one table, rule by surface."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from error_codes import feasibility_codes

from paratune.config.feasibility import Ranks, Target, reasons_against
from paratune.config.load import LoadedConfig, load_config
from paratune.config.problems import refuse
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import TRAITS, Traits, strategy_traits
from paratune.doctor import options as feasible
from paratune.doctor.facts import MachineFacts as DoctorMachine
from paratune.doctor.facts import ModelFacts, Probes, QueuedRun, Start
from paratune.errors import ConfigError, DataError, LaunchError, MissingDependency, ParatuneError
from paratune.processes.place import global_batch_size
from paratune.sweeps.cells import why_impossible

NUM_LAYERS = 4
CPU = Target(is_cpu=True, description="this run computes on the CPU")
A100 = Target(is_cpu=False, description="A100 has 8.0", num_devices=2)
T4 = replace(A100, description="T4 has 7.5", missing_precisions=frozenset(("bf16", "tf32")))
CAPABILITIES = {"A100": (8, 0), "T4": (7, 5)}
PIPELINE = "strategy={kind: pipeline, stages: 2}"
INTERLEAVED = "strategy={kind: pipeline, stages: 2, schedule: interleaved}"
ALL = frozenset({"start", "sweep", "doctor"})
"""Commands: `start` is what train and launch ask before processes start; plan's table is in tests/unit/planning."""


@dataclass(frozen=True)
class Rule:
    """A configuration that breaks one rule."""

    code: str
    overrides: tuple[str, ...]
    world_size: int
    facts: dict[str, Any]
    keys: tuple[str, ...]
    target: Target | None = None
    num_nodes: int | None = 1
    num_samples: int | None = None
    missing_package: str | None = None
    excludes: dict[str, str] = field(default_factory=dict)
    surfaces: frozenset[str] = ALL


RULES = [
    Rule(
        "strategy.excluded",
        ("strategy=ddp", "precision=bf16"),
        1,
        {"kind": "ddp", "value": "bf16", "why": "it is slow"},
        ("precision", "strategy.kind"),
        excludes={"precision=bf16": "it is slow", "precision=fp16": "no"},
        surfaces=frozenset(),  # of a class from outside; of those of this package the file is refused
    ),
    Rule("strategy.too_few_ranks", (PIPELINE,), 1, {"kind": "pipeline", "world_size": 1, "min": 2}, ("strategy.kind",)),
    Rule(
        "strategy.ranks_not_multiple",
        (PIPELINE,),
        3,
        {"kind": "pipeline", "world_size": 3, "multiple": 2},
        ("strategy.kind",),
    ),
    Rule(
        "strategy.too_many_ranks",
        ("strategy=single",),
        2,
        {"kind": "single", "world_size": 2, "max": 1},
        ("strategy.kind",),
    ),
    Rule(
        "strategy.single_group",
        ("strategy=hsdp",),
        4,
        {"kind": "hsdp", "world_size": 4},
        ("strategy.shard_size", "strategy.kind"),
    ),
    Rule(
        "ranks.uneven_nodes",
        ("strategy=ddp",),
        4,
        {"kind": "ddp", "world_size": 4, "num_nodes": 3},
        ("strategy.kind",),
        num_nodes=3,
        surfaces=frozenset({"start"}),
    ),
    Rule(
        "batch.too_large",
        ("strategy=ddp", "batch.global=100000000000"),
        2,
        {"global_batch_size": 10**11, "max": 2**24},
        ("batch.global",),
    ),
    Rule(
        "batch.uneven_share",
        ("strategy=ddp",),
        3,
        {"global_batch_size": 8, "data_world_size": 3, "nearest": [6, 9]},
        ("batch.global",),
    ),
    Rule(
        "batch.micro_batch_not_divisor",
        ("strategy=ddp", "batch.micro_batch_size=3"),
        2,
        {"global_batch_size": 8, "data_world_size": 2, "micro_batch_size": 3, "share": 4, "nearest": [2, 4]},
        ("batch.micro_batch_size", "batch.global"),
    ),
    Rule(
        "batch.group",
        ("strategy=ddp", "task=embedding", "task.group_size=8", "data.columns={text: a, text_pair: b, label: null}"),
        2,
        {"group_size": 8, "global_batch_size": 8, "data_world_size": 2, "nearest": [16]},
        ("batch.global", "task.group_size"),
    ),
    Rule(
        "batch.too_few_micro_batches",
        (PIPELINE, "batch.micro_batch_size=8"),
        2,
        {"num_micro_batches": 1, "min": 2, "limit": 4},
        ("batch.micro_batch_size",),
    ),
    Rule(
        "batch.micro_batches_not_multiple",
        (INTERLEAVED, "batch={per_device: 1, grad_accum_steps: 3, global: null}"),
        2,
        {"num_micro_batches": 3, "multiple": 2, "share": 3, "nearest": [2, 4]},
        ("batch.grad_accum_steps",),
    ),
    Rule(
        "strategy.too_many_stages",
        ("strategy={kind: pipeline, stages: 8}",),
        8,
        {"stages": 8, "chunks": 1, "num_blocks": 4},
        ("strategy.stages", "strategy.kind"),
    ),
    Rule(
        "strategy.cannot_cut",
        ("strategy={kind: pipeline, stages: 2, balance: [3, 2]}",),
        2,
        {"balance": [3, 2], "num_blocks": 4},
        ("strategy.balance", "strategy.stages"),
    ),
    Rule(
        "dependency.missing",
        ("strategy=deepspeed",),
        2,
        {"value": "deepspeed", "extra": "deepspeed"},
        ("strategy.kind",),
        missing_package="deepspeed",
        surfaces=frozenset({"sweep", "doctor"}),
    ),
    Rule("device.no_gpu", ("device=cuda",), 1, {}, ("device",), target=CPU, surfaces=frozenset({"sweep", "doctor"})),
    Rule("device.is_gpu", ("device=cpu",), 1, {}, ("device",), target=A100, surfaces=frozenset()),  # plan alone
    Rule(
        "device.too_few_gpus",
        ("strategy=ddp",),
        4,
        {"num_processes": 4, "num_devices": 2},
        ("device",),
        target=A100,
        surfaces=frozenset({"sweep", "doctor"}),
    ),
    Rule(
        "strategy.needs_accelerator",
        ("strategy={kind: zero3, cpu_offload: true}",),
        2,
        {"given": {"strategy.cpu_offload": True}},
        ("strategy.cpu_offload", "strategy.kind"),
        target=CPU,
        surfaces=frozenset({"sweep", "doctor"}),
    ),
    Rule(
        "train.order_of_sums_on_cpu",
        ("train.deterministic=false",),
        1,
        {},
        ("train.deterministic",),
        target=CPU,
        surfaces=frozenset({"sweep", "doctor"}),
    ),
    *(
        Rule(
            "precision.needs_gpu",
            (f"precision={name}",),
            1,
            {"precision": name},
            ("precision",),
            target=CPU,
            surfaces=frozenset({"sweep", "doctor"}),
        )
        for name in ("fp16", "tf32")
    ),
    *(
        Rule(
            "precision.needs_newer_gpu",
            (f"precision={name}",),
            1,
            {"precision": name},
            ("precision",),
            target=T4,
            surfaces=frozenset({"sweep", "doctor"}),
        )
        for name in ("bf16", "tf32")
    ),
    Rule(
        "precision.tf32_disabled",
        ("precision=tf32",),
        1,
        {"precision": "tf32"},
        ("precision",),
        target=replace(A100, is_tf32_disabled=True),
        surfaces=frozenset({"sweep", "doctor"}),
    ),
    Rule(
        "data.too_few_rows",
        ("strategy=ddp",),
        4,
        {"num_samples": 3, "world_size": 4, "most": 3},
        ("data.train",),
        num_samples=3,
        surfaces=frozenset({"doctor"}),
    ),
]
IDS = [f"{rule.code}-{number}" for number, rule in enumerate(RULES)]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that loads a configuration whose model has four layers."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps({"num_hidden_layers": NUM_LAYERS}))
    Path("c.yaml").write_text(
        "task: {kind: classification, labels: [a, b]}\nmodel: {name: model}\ntrain: {max_steps: 3}\n"
        "data: {train: data.csv, columns: {text: text, label: label}}\nbatch: {global: 8}\n"
    )
    return lambda *overrides: load_config(Path("c.yaml"), overrides)


def traits_under(loaded: LoadedConfig, rule: Rule) -> Traits:
    strategy = loaded.config.strategy
    traits = strategy_traits(strategy.kind, strategy_options(strategy))
    assert traits is not None
    return replace(traits, excludes=rule.excludes) if rule.excludes else traits


def test_every_reason_has_a_row():
    assert {rule.code for rule in RULES} == feasibility_codes()


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_rule_gives_its_reason_and_no_other(rule: Rule, load):
    loaded = load(*rule.overrides)
    reasons = reasons_against(
        loaded.config,
        traits_under(loaded, rule),
        rule.target,
        Ranks(rule.world_size, rule.num_nodes),
        num_blocks=NUM_LAYERS,
        num_samples=rule.num_samples,
        is_installed=lambda package: package != rule.missing_package,
    )
    assert [reason.code for reason in reasons] == [rule.code]
    assert reasons[0].keys == rule.keys
    facts = {name: value for name, value in reasons[0].facts.items() if name != "description"}
    assert facts == rule.facts


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_message_has_the_values(rule: Rule, load):
    loaded = load(*rule.overrides)
    ranks = Ranks(rule.world_size, rule.num_nodes)
    (reason,) = reasons_against(
        loaded.config,
        traits_under(loaded, rule),
        rule.target,
        ranks,
        num_blocks=NUM_LAYERS,
        num_samples=rule.num_samples,
        is_installed=lambda package: package != rule.missing_package,
    )
    for name in ("kind", "world_size", "precision", "extra", "global_batch_size", "num_blocks", "num_samples"):
        if name in rule.facts and (name, rule.code) not in (
            ("world_size", "strategy.single_group"),
            ("kind", "ranks.uneven_nodes"),
        ):
            assert str(rule.facts[name]) in reason.message
    # A matrix has `nproc:`, and a plan starts no process.
    assert "--nproc" not in reason.message


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_train_and_launch_refuse_before_processes_start(rule: Rule, load):
    config = load(*rule.overrides).config
    if "start" not in rule.surfaces:
        global_batch_size(config, rule.world_size, rule.num_nodes)
        return
    with pytest.raises(ParatuneError) as caught:
        global_batch_size(config, rule.world_size, rule.num_nodes)
    assert str(caught.value) == reason_of(rule, config).message


def reason_of(rule: Rule, config: Any):
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    return reasons_against(config, traits, None, Ranks(rule.world_size, rule.num_nodes), num_blocks=NUM_LAYERS)[0]


def environment_of(rule: Rule) -> dict[str, str | None]:
    return {"NVIDIA_TF32_OVERRIDE": "0"} if rule.target and rule.target.is_tf32_disabled else {}


def gpu_of(rule: Rule) -> str:
    return "T4" if rule.target is not None and rule.target.missing_precisions else "A100"


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_matrix_leaves_the_run_out(rule: Rule, load, monkeypatch: pytest.MonkeyPatch):
    if "sweep" not in rule.surfaces:
        return
    monkeypatch.setattr("paratune.sweeps.cells.is_installed", lambda package: package != rule.missing_package)
    config = load(*rule.overrides).config
    is_cpu = rule.target is not None and rule.target.is_cpu
    machine = None if rule.target is None else () if is_cpu else (CAPABILITIES[gpu_of(rule)],) * 2
    reason = why_impossible(config, rule.world_size, environment=environment_of(rule), here=True, gpus=machine)
    assert reason is not None
    assert any(str(value) in reason for value in (*rule.keys, *rule.facts.values()))
    assert "--nproc" not in reason


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_doctor_has_a_finding_with_a_line(rule: Rule, load):
    if "doctor" not in rule.surfaces:
        return
    loaded = load(*rule.overrides)
    gpus = []
    if rule.target is not None and not rule.target.is_cpu:
        capability = ".".join(map(str, CAPABILITIES[gpu_of(rule)]))
        gpus = [{"name": gpu_of(rule), "memory_bytes": None, "capability": capability, "link": None}] * 2
    elif rule.target is None:
        gpus = [{"name": "A100", "memory_bytes": None, "capability": "8.0", "link": None}] * 8
    machine = DoctorMachine({"gpus": gpus}, {}, Path(), Path(), environ=environment_of(rule))
    probes = Probes(is_installed=lambda package: package != rule.missing_package)
    data = None
    if rule.num_samples is not None:
        data = SimpleNamespace(split=lambda name: SimpleNamespace(num_rows=rule.num_samples))
    model = ModelFacts("model", num_layers=NUM_LAYERS)
    start = Start(1, rule.world_size)
    setup = QueuedRun(machine, Path("c.yaml"), (), loaded, data, model, start, probes)  # type: ignore[arg-type]
    assert [reason.code for reason in feasible.reasons(setup)] == [rule.code]
    (finding,) = feasible.check_feasible(setup)
    assert finding.code == feasible.FINDINGS.get(rule.code, (rule.code, ""))[0]
    assert finding.line or rule.code in ("strategy.cannot_cut", "batch.too_large")
    key, _, value = finding.line.partition(": ")
    if value:  # the line that it gives takes the reason away
        repaired = replace(setup, loaded=load(*without(rule.overrides, key), f"{key}={value}"))
        assert rule.code not in [reason.code for reason in feasible.reasons(repaired)]


def without(overrides: tuple[str, ...], key: str) -> list[str]:
    """Return the overrides that a line for `strategy.kind` does not replace."""
    return [item for item in overrides if not (key == "strategy.kind" and item.startswith("strategy="))]


def test_classes_of_errors_are_those_of_their_exit_codes(load):
    config = load("strategy=ddp", "trackers={mlflow: {}}").config
    traits, absent = TRAITS["ddp"], lambda package: False
    (missing,) = reasons_against(config, traits, None, None, is_installed=absent)
    with pytest.raises(MissingDependency):
        refuse([missing])
    (few,) = reasons_against(config, traits, None, Ranks(4), num_samples=1)
    with pytest.raises(DataError):
        refuse([few])
    (gpus,) = reasons_against(config, traits, A100, Ranks(4))
    with pytest.raises(LaunchError):
        refuse([gpus])
    (share,) = reasons_against(config, traits, None, Ranks(3))
    with pytest.raises(ConfigError) as caught:
        refuse([share, few], source="c.yaml")
    assert str(caught.value).splitlines() == ["c.yaml: 2 problems", f"  {share.message}", f"  {few.message}"]
    refuse([])


def test_of_a_class_from_outside_only_the_device_is_known(load):
    config = load("strategy={kind: 'own:Strategy'}", "precision=fp16").config
    assert [reason.code for reason in reasons_against(config, None, CPU, Ranks(3), num_blocks=1)] == [
        "precision.needs_gpu"
    ]


def test_an_adapter_needs_its_extra(load) -> None:
    config = load("model.adapter={kind: lora}").config
    (reason,) = reasons_against(config, None, is_installed=lambda package: package != "peft")
    assert (reason.code, reason.keys, reason.facts["extra"]) == ("dependency.missing", ("model.adapter",), "hub")


def test_a_quantized_base_needs_its_extra(load) -> None:
    config = load("model.adapter={kind: lora}", "model.quantize_base=nf4").config
    (reason,) = reasons_against(config, None, is_installed=lambda package: package != "bitsandbytes")
    assert (reason.code, reason.keys, reason.facts["extra"]) == ("dependency.missing", ("model.quantize_base",), "gpu")

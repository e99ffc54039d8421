"""The schema has every option that a finding recommends, also for the strategy of the configuration."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from broken_setups import data, machine, model, options, start
from set_ups import GPU, with_gpus

from paratune.config.options import kinds, section_options
from paratune.config.section import Section
from paratune.config.sections import Config
from paratune.config.traits import TRAITS
from paratune.doctor.facts import Finding

CASES = [*options.CASES, *data.CASES, *model.CASES, *start.CASES, *machine.CASES]
SECTIONS = "|".join(key for key, option in section_options(Config).items() if option.sections)
OPTION = re.compile(rf"\b((?:{SECTIONS})\.[a-z0-9_]+(?:\.[a-z0-9_]+)*)")
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "hsdp": [{"shard_size": 2}, {}],
    "pipeline": [{"stages": 2}],
    "deepspeed": [{"stage": stage} for stage in (0, 1, 2, 3)]
    + [{"stage": 3, "offload_optimizer": True}, {"stage": 2, "cpu_adam": True, "offload_optimizer": True}],
}


def unknown_options(finding: Finding, values: Mapping[str, Any]) -> list[str]:
    """Return the options that the finding advises and that the configuration cannot have."""
    line = finding.line if re.match(r"[\w.]+: ", finding.line) else ""  # else a command, with names of files
    text = f"{line} {finding.remedy}"
    named = re.findall(r"strategy\.kind: (\w+)", text)
    strategy = named[-1] if named else dict(values.get("strategy", {})).get("kind", "single")
    return [key for key in OPTION.findall(text) if not _exists(key, strategy, dict(values.get("task", {}))["kind"])]


def _exists(key: str, strategy: str, task: str) -> bool:
    section: type[Section] = Config
    names = key.split(".")
    for number, name in enumerate(names):
        known = section_options(section)
        if name not in known:
            return False
        option = known[name]
        if not option.sections:
            return True  # the keys of a user's mapping are not listed
        chosen = {"strategy": strategy, "task": task}.get(name) if number == 0 else None
        section = kinds(option)[chosen] if chosen else option.sections[0]
    return True


@pytest.mark.parametrize("case", CASES, ids=[f"{case.code}: {case.source}" for case in CASES])
def test_advised_options_exist(set_up, case):
    case.break_it(set_up)
    for finding in set_up.alarms():
        if finding.code != "config":  # wrong keys are named as in the file
            assert unknown_options(finding, set_up.config) == [], finding


@pytest.mark.parametrize(
    ("kind", "given"), [(kind, given) for kind in TRAITS for given in OPTIONS.get(kind, [{}])], ids=str
)
@pytest.mark.parametrize("memory_bytes", [10_000, 2**40])
def test_advised_options_exist_under_every_strategy(set_up, kind, given, memory_bytes):
    """Too little memory, or plenty."""
    with_gpus(set_up, 4, {**GPU, "memory_bytes": memory_bytes})
    set_up.config["strategy"] = {"kind": kind, **given}
    findings = set_up.findings()
    codes = {finding.code for finding in findings}
    assert "check" not in codes
    if kind not in ("single", "pipeline") and memory_bytes == 10_000:
        offloads = given.get("offload_optimizer", False)
        assert ("states_too_large" in codes) is not offloads
    for finding in findings:
        assert unknown_options(finding, set_up.config) == [], finding
        if finding.line.startswith("strategy.") and "kind" not in finding.line:
            set_up.apply(finding.line)
            assert "config" not in {entry.code for entry in set_up.alarms()}
            set_up.config["strategy"] = {"kind": kind, **given}


def test_options_of_other_strategies_are_detected():
    finding = Finding("states_too_large", "problem", "", remedy="offload (strategy.cpu_offload: true)")
    task = {"task": {"kind": "classification"}}
    assert unknown_options(finding, {**task, "strategy": {"kind": "ddp"}}) == ["strategy.cpu_offload"]
    assert unknown_options(finding, {**task, "strategy": {"kind": "zero3"}}) == []

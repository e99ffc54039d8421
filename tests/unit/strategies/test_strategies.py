import inspect
import types
from dataclasses import fields

import pytest

from paratune.config.options import kinds, section_options
from paratune.config.sections import Config
from paratune.config.traits import TRAITS
from paratune.errors import ConfigError
from paratune.strategies import STRATEGIES, deepspeed_setup, protocol, strategy_class
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.fsdp import FSDPKind, FSDPStrategy

SECTIONS = kinds(section_options(Config)["strategy"])
METHODS = [name for name, member in vars(protocol.Strategy).items() if isinstance(member, types.FunctionType)]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_each_kind_has_all_methods_traits_and_options(kind: str):
    strategy = strategy_class(kind)
    assert strategy.traits is TRAITS[kind]
    assert strategy.traits.kind == kind
    is_fsdp = isinstance(strategy, FSDPKind)
    implementation = FSDPStrategy if is_fsdp else DDPStrategy if kind == "zero1" else strategy
    for method in METHODS:
        if not method.startswith("_"):
            expected = inspect.signature(getattr(protocol.Strategy, method)).parameters
            assert list(inspect.signature(getattr(implementation, method)).parameters) == list(expected), method
    signature = inspect.signature(strategy if kind == "zero1" else implementation)
    options = set(signature.parameters) - {"kind", "device", "precision", "rank", "world_size"}
    options -= {"shards_states"}
    if kind == "deepspeed":  # passes its options on
        options = (options - {"options"}) | {field.name for field in fields(deepspeed_setup.Options)}
    if is_fsdp and not strategy.has_groups:
        options -= {"shard_size"}
    assert options == set(SECTIONS[kind].model_fields) - {"kind"}


def test_all_tables_of_strategies_have_the_same_kinds():
    assert list(STRATEGIES) == list(TRAITS) == list(SECTIONS)


def test_a_class_outside_the_package_is_found_by_its_full_name(any_code):
    assert strategy_class("collections:OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dpp", f"dpp is not one of {', '.join(TRAITS)}, nor package.module:Class; did you mean ddp?"),
        ("absent_package:Thing", "No module named 'absent_package'"),
        ("collections:Absent", "has no Absent"),
    ],
)
def test_an_unknown_kind_is_refused(any_code, kind: str, expected: str):
    with pytest.raises(ConfigError) as caught:
        strategy_class(kind)
    assert kind in str(caught.value)
    assert expected in str(caught.value)

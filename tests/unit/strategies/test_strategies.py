import inspect
import types
from dataclasses import fields

import pytest

from paratune.config.options import kinds, options_of
from paratune.config.sections import Config
from paratune.config.traits import TRAITS
from paratune.errors import ConfigError
from paratune.strategies import STRATEGIES, deepspeed_setup, protocol, strategy_class

SECTIONS = kinds(options_of(Config)["strategy"])
VERBS = [name for name, member in vars(protocol.Strategy).items() if isinstance(member, types.FunctionType)]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_each_kind_has_its_verbs_traits_and_options(kind: str):
    strategy = strategy_class(kind)
    assert strategy.traits is TRAITS[kind]
    assert strategy.traits.kind == kind
    for verb in VERBS:
        if not verb.startswith("_"):
            expected = inspect.signature(getattr(protocol.Strategy, verb)).parameters
            assert list(inspect.signature(getattr(strategy, verb)).parameters) == list(expected), verb
    taken = set(inspect.signature(strategy).parameters) - {"device", "precision", "rank", "world_size"}
    if kind == "deepspeed":  # hands on what it is given
        taken = (taken - {"options"}) | {field.name for field in fields(deepspeed_setup.Options)}
    assert taken == set(SECTIONS[kind].model_fields) - {"kind"}


def test_the_tables_of_kinds_are_the_same():
    assert list(STRATEGIES) == list(TRAITS) == list(SECTIONS)


def test_an_outside_strategy_is_named_in_full():
    assert strategy_class("collections:OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dpp", f"dpp is not one of {', '.join(TRAITS)}, nor package.module:Class; did you mean ddp?"),
        ("absent_package:Thing", "No module named 'absent_package'"),
        ("collections:Absent", "collections:Absent cannot be imported"),
    ],
)
def test_a_kind_that_there_is_not_is_refused(kind: str, said: str):
    with pytest.raises(ConfigError) as caught:
        strategy_class(kind)
    assert kind in str(caught.value)
    assert said in str(caught.value)

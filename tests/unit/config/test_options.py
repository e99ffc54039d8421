from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from paratune.config.metric_names import METRICS
from paratune.config.options import allowed_kinds, describe, find_key, kinds, outside_kind, section_options
from paratune.config.section import Section
from paratune.config.sections import Config, ModelOptions, Train
from paratune.config.strategy_sections import DDPOptions, OutsideStrategy, SingleOptions
from paratune.config.traits import TRAITS


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "true or false"),
        (str | None, "text, or null"),
        (Annotated[int, Field(ge=1)] | None, "a whole number at least 1, or null"),
        (Annotated[float, Field(gt=0, le=1)], "a number above 0 and at most 1"),
        (Literal["a"], "a"),
        (Literal["a", "b", "c"], "a, b or c"),
        (list[str | int] | dict[str | int, str], "a list of texts or whole numbers, or a mapping of texts or whole "
         "numbers to texts"),
        (Annotated[list[float], Field(min_length=2, max_length=2)], "a list of 2 numbers"),
        (dict[str, Any], "a mapping"),
        (list[dict[str, Any]], "a list of mappings"),
        (list[Literal["x", "y"]], "a list of x or y"),
    ],
)  # fmt: skip
def test_describe_returns_the_allowed_values_in_words(annotation, words):
    assert describe(annotation) == words


def test_options_have_their_help_default_and_words():
    option = section_options(Train)["learning_rate"]
    assert (option.help, option.default, option.required) == ("Peak learning rate.", 5e-5, False)
    assert section_options(ModelOptions)["name"].required
    assert section_options(Train)["betas"].default == [0.9, 0.999]


def test_options_are_called_as_in_the_file():
    assert "global" in section_options(section_options(Config)["batch"].sections[0])


def test_kinds_are_those_that_have_sections():
    strategy = section_options(Config)["strategy"]
    assert list(kinds(strategy)) == list(TRAITS)
    assert (kinds(strategy)["single"], kinds(strategy)["ddp"]) == (SingleOptions, DDPOptions)
    assert outside_kind(strategy) is OutsideStrategy
    assert outside_kind(section_options(Config)["task"]) is None
    *others, last = kinds(section_options(Config)["task"])
    assert {*others, last} == set(METRICS)
    assert allowed_kinds(section_options(Config)["task"]) == f"{', '.join(others)} or {last}"


def test_find_key_looks_into_sections():
    assert find_key("label", Config) == "data.columns.label"
    assert find_key("precision", Config) == "precision"
    assert find_key("bucket_cap_mb", Config) == "strategy.bucket_cap_mb"
    assert find_key("kind", Config) is None
    assert find_key(3, Config) is None


def test_every_option_has_a_help_line_that_is_a_sentence():
    def look(section: type[Section]) -> None:
        assert (section.__doc__ or "").strip().endswith(".")
        for option in section_options(section).values():
            assert option.help.endswith("."), f"{section.__name__}.{option.key}"
            for inner in option.sections:
                look(inner)

    look(Config)

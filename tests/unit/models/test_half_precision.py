"""Which models are warned of in fp16."""

import pytest
from transformers import AutoConfig, BertConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from paratune.models.half_precision import REPORTED, overflow_warning


@pytest.mark.parametrize("name", REPORTED)
def test_reported_types_are_warned_of_with_the_report(name: str):
    assert name in CONFIG_MAPPING, "transformers knows no such model type"
    warning = overflow_warning(AutoConfig.for_model(name))
    assert warning is not None
    assert f"models of the type {name} have been reported to overflow in fp16 ({REPORTED[name]})" in warning
    assert REPORTED[name].startswith("https://github.com/")


def test_others_are_not():
    assert overflow_warning(BertConfig()) is None

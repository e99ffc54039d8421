"""Models with a warning for fp16."""

import pytest
from transformers import AutoConfig, BertConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from paratune.models.half_precision import REPORTED, overflow_warning


@pytest.mark.parametrize("name", REPORTED)
def test_reported_model_types_have_a_warning_with_the_report(name: str):
    assert name in CONFIG_MAPPING, "transformers has no such model type"
    warning = overflow_warning(AutoConfig.for_model(name))
    assert warning is not None
    assert f"models of the type {name} have been reported to overflow in fp16 ({REPORTED[name]})" in warning
    assert REPORTED[name].startswith("https://github.com/")


def test_other_model_types_have_no_warning():
    assert overflow_warning(BertConfig()) is None

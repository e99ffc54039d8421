"""Comparisons and certificates from Python."""

import re

import pytest
from raised import raises_code

import paratune
from paratune.config.metric_names import HEADLINES, parse_target
from paratune.console.notebook import html_table
from paratune.errors import ConfigError
from paratune.verdicts import read_margins


def test_bad_arguments_have_the_codes_of_the_commands(tmp_path):
    with raises_code("cli.invalid_value", "everything"):
        paratune.compare("runs/a", "runs/b", allow=["everything"])
    with raises_code("cli.invalid_value", "everything"):
        paratune.compare("runs/a", "runs/b", allow="everything")
    with raises_code("run.not_found", "nowhere"):
        paratune.Run(tmp_path / "nowhere")


@pytest.mark.parametrize("function", [paratune.report, paratune.compare])
def test_examples_of_the_help_are_of_a_classification(function):
    (margin,) = re.findall(r'margin: .*"([^"]+)", "speed=3%"', function.__doc__)
    assert {*read_margins([margin])} < {*HEADLINES["classification"]}
    targets = re.findall(r'target: [^"]*"([^"]+)"', function.__doc__)
    assert {parse_target(target).metric for target in targets} <= {*HEADLINES["classification"]}


def test_a_command_in_another_process_raises_its_error(tmp_path):
    with pytest.raises(ConfigError) as caught:
        paratune.certify(tmp_path / "nowhere.yaml", ["ddp"])
    assert caught.value.code == "config.file_unreadable"


def test_html_is_escaped():
    shown = html_table("<a>", [("<b>", "<c>"), ("x", 0.5)])
    assert "<a>" not in shown
    assert "<b>" not in shown
    assert "&lt;c&gt;" in shown

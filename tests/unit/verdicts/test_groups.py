import pytest
from raised import raises_code

from paratune.verdicts import Margin, default_margin, read_margins


def test_margins_are_amounts_or_shares_of_the_baseline():
    found = read_margins(["f1=0.01, rmse = 2%", "speed=3%"])
    assert found == {"f1": Margin(0.01), "rmse": Margin(0.02, is_share=True), "speed": Margin(0.03, is_share=True)}


def test_measures_may_have_their_titles():
    found = read_margins(["Accuracy=0.02,F1, macro=0.01, speed=3%", "mean reciprocal rank=1%"])
    assert [*found] == ["accuracy", "f1_macro", "speed", "mrr"]
    assert found["f1_macro"] == Margin(0.01)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("f1", "'f1'"),
        ("f2=0.1", "'f2'"),
        ("foo", "speed, accuracy, f1, f1_macro, "),
        ("acuracy=0.1", "did you mean accuracy?"),
        *((f"f1={text}", f"'f1={text}'") for text in ("", "0", "-1", "nan", "inf", "1%x")),
        ("speed=0.03", "'speed=0.03'"),
        ("", "''"),
        ("f1=0.1,", "''"),
    ],
)
def test_what_is_no_margin_is_named(word, said):
    with raises_code("cli.invalid_value", "--margin", "1") as caught:
        read_margins([word])
    assert said in str(caught.value)


def test_all_problems_are_named_at_once():
    with raises_code("cli.invalid_value", "--margin", "2"):
        read_margins(["f1=x,speed=1"])


@pytest.mark.parametrize(
    ("measure", "task", "expected"),
    [
        ("f1", "classification", Margin(0.005)),
        ("f1", "qa", Margin(0.5)),
        ("rmse", "regression", Margin(0.01, is_share=True)),
        ("mae", "regression", Margin(0.01, is_share=True)),
        ("mae", "ordinal", Margin(0.005)),
        ("perplexity", "mlm", Margin(0.01, is_share=True)),
        ("speed", "qa", Margin(0.02, is_share=True)),
    ],
)
def test_defaults(measure, task, expected):
    assert default_margin(measure, task) == expected

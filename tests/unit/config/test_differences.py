from paratune.config.plain import differences, flatten


def test_flatten_gives_leaves_by_dotted_key():
    values = {"a": {"b": 1, "c": {"d": [1, {"x": 2}], "e": {}}}, "task": {"labels": {"0": "n"}}, "f": None}
    assert flatten(values) == {
        "a.b": 1,
        "a.c.d": [1, {"x": 2}],
        "a.c.e": {},
        "task.labels": {"0": "n"},
        "f": None,
    }


def test_differences_are_in_the_order_of_the_keys():
    a = {"train": {"epochs": 1, "betas": [0.9, 0.99]}, "run": {"seed": 1}, "same": 3}
    b = {"train": {"epochs": 2, "betas": [0.9, 0.999]}, "same": 3, "new": {"x": 1, "y": None}}
    assert differences(a, b) == [
        ("train.epochs", 1, 2),
        ("train.betas", [0.9, 0.99], [0.9, 0.999]),
        ("run.seed", 1, None),
        ("new.x", None, 1),
    ]


def test_a_configuration_equals_its_record():
    # JSON has text keys only, and a tuple becomes a list.
    assert differences({"task": {"labels": {0: "a"}}, "b": (1, 2)}, {"task": {"labels": {"0": "a"}}, "b": [1, 2]}) == []

"""Objects of JSON with a key twice."""

import json

import pytest

from paratune.base.unique_keys import RepeatedKeyError, unique_keys


def test_a_key_twice_is_an_error_in_every_object():
    assert json.loads('{"a": {"a": 1}, "b": [{"a": 2}]}', object_pairs_hook=unique_keys) == {
        "a": {"a": 1},
        "b": [{"a": 2}],
    }
    for text in ('{"a": 1, "a": 1}', '{"b": [{"a": 1, "c": 2, "\\u0061": 3}]}'):
        with pytest.raises(RepeatedKeyError, match="a"):
            json.loads(text, object_pairs_hook=unique_keys)

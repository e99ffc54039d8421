import math

import pytest

from paratune.base.units import (
    NOT_AVAILABLE,
    counted,
    format_bytes,
    format_duration,
    format_number,
    format_share,
    parse_count,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (999.4 * 2**10, "999 KiB"),
        (999.6 * 2**10, "1000 KiB"),  # and not 1e+03
        (1023.4 * 2**20, "1023 MiB"),
        (1023.6 * 2**20, "1 GiB"),
        (2**40 * 5000, "5000 TiB"),
        (-1536, "-1.5 KiB"),
        (-5000 * 2**40, "-5000 TiB"),
    ],
)
def test_format_bytes(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.4249, "0.42 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185.4, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (2 * 3600 + 7 * 60 + 20, "2 h 07 min"),
        (2 * 3600 - 1, "2 h 00 min"),
        (-185, "-3 min 05 s"),
    ],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1234567, "1,234,567"),
        (3.0, "3"),
        (0.123456, "0.1235"),
        (0.00012345, "0.0001234"),
        (5e-5, "5e-05"),
        (12.3456, "12.35"),
        (999.96, "1000"),
        (1234.56, "1,235"),
        (123456.7, "123,457"),
        (1e14 + 0.5, "100,000,000,000,000"),
        (True, "1"),
    ],
)
def test_format_number(value, text):
    assert format_number(value) == text


def test_format_number_with_other_digits():
    assert format_number(0.9876, 2) == "0.99"
    assert format_number(98.76, 2) == "99"


def test_format_share():
    assert [format_share(value) for value in (0, 0.1234, 1, 1.5)] == ["0.0%", "12.3%", "100.0%", "150.0%"]


@pytest.mark.parametrize("form", [format_bytes, format_duration, format_number, format_share])
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_unknown_is_not_available(form, value):
    assert form(value) == NOT_AVAILABLE


def test_parse_count():
    assert [parse_count(text) for text in ("0", " 12\n", "9999999999")] == [0, 12, 9_999_999_999]
    wrong = [None, "", "-1", "+1", "1.0", "1e3", "1_000", "²", "٣", "nan", "inf", "10000000000", "9" * 5000]
    assert [parse_count(text) for text in wrong] == [None] * len(wrong)


def test_counted():
    assert [counted(count, "run") for count in (0, 1, 2, 1000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert [counted(count, "matrix", "matrices") for count in (1, 2)] == ["1 matrix", "2 matrices"]

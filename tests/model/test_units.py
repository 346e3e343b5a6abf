import math
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.model import units

SCALES = {"": 1, "B": 1, "k": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
PREFIXES = {"n": -9, "µ": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}


@given(st.integers(0, 2**70), st.sampled_from(sorted(SCALES | BINARY)))
def test_whole_numbers_of_bytes_are_exact(number, unit):
    assert units.parse_bytes(f"{number}{unit}") == number * (SCALES | BINARY)[unit]


@given(st.integers(0, 10**9), st.sampled_from(["kB", "MB", "GB", "TB"]))
def test_decimal_fractions_of_bytes_are_exact(thousandths, unit):
    text = f"{Decimal(thousandths) / 1000:f} {unit}"
    assert units.parse_bytes(text) == thousandths * SCALES[unit] // 1000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20 ms", 0.02), ("0.1us", 1e-7), ("3µs", 3e-6), ("7ns", 7e-9), ("1.5 min", 90), ("2h", 7200)],
)
def test_durations_are_the_nearest_float(text, seconds):
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("parse", [units.parse_bytes, units.parse_seconds])
@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "+1", "nan", "inf", "1e400", "1e999999999", "1_000", "１", "0x10", "1,5", "1e",
     "1 e3", "1 2", "1 parsec", "9" * 5000, "1\n2", "MB"],
)  # fmt: skip
def test_invalid_quantities_are_refused_with_the_known_units(parse, text):
    with pytest.raises(UsageError, match=re.escape(repr(text)) + r".*for example.*units: .*\w"):
        parse(text)


@pytest.mark.parametrize("text", ["0.5", "1.5B", "0.0001kB", "1e-1"])
def test_part_of_a_byte_is_refused(text):
    with pytest.raises(UsageError, match="whole number of bytes"):
        units.parse_bytes(text)


def value_of(text, unit):
    """Return the value that a reader takes from `text`, and the number of its digits."""
    match = re.fullmatch(rf"(-?)([0-9.]+) ([nµmkMGTP]?){re.escape(unit)}", text)
    assert match, text
    return (
        float(match[1] + match[2]) * 10.0 ** PREFIXES[match[3]],
        len(re.sub(r"[.]|^0[.]?0*", "", match[2])),
    )


@pytest.mark.parametrize(
    ("show", "unit", "values"),
    [
        (units.format_seconds, "s", st.floats(1e-9, 999e3)),
        (units.format_bandwidth, "B/s", st.floats(1.0, 1e17)),
        (units.format_bytes, "B", st.integers(0, 10**18)),
    ],
)
@given(data=st.data())
def test_printed_quantities_are_right_to_three_digits(show, unit, values, data):
    exact = data.draw(values)
    value, n_digits = value_of(show(exact), unit)
    assert math.isclose(value, exact, rel_tol=0.5e-2, abs_tol=0)
    assert n_digits >= 3 or isinstance(exact, int)


@given(st.lists(st.floats(1e-9, 1e6), min_size=2, max_size=2))
def test_printed_durations_keep_their_order(pair):
    low, high = sorted(pair)
    printed = [value_of(units.format_seconds(seconds), "s")[0] for seconds in (low, high)]
    assert printed[0] <= printed[1] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0009996, "1.00 ms"), (0.9996, "1.00 s"), (999.6, "1000 s"), (12345.6, "12346 s"),
     (-0.5, "-500 ms"), (0.0, "0 s"), (math.nan, "—")],
)  # fmt: skip
def test_durations_at_the_edges_of_their_units(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(999, "999 B"), (999_499, "999 kB"), (999_500, "1.00 MB"), (0, "0 B"), (0.5, "0.50 B")],
)
def test_sizes_at_the_edges_of_their_units(nbytes, text):
    assert units.format_bytes(nbytes) == text


@given(st.integers(1, 2**40))
def test_message_sizes_are_binary_only_where_exact(nbytes):
    label = units.format_message_size(nbytes)
    if "i" in label:
        assert units.parse_bytes(label) == nbytes
    else:
        assert nbytes % 1024 or units.parse_bytes(label) == nbytes

"""Quantities read as Kubernetes reads them."""

import contextlib
import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api.resources import quantity


@pytest.mark.parametrize(
    ("text", "units", "milli"),
    [
        pytest.param("0", 0, 0, id="zero"),
        pytest.param("100", 100, 100_000, id="plain"),
        pytest.param(7, 7, 7_000, id="a number"),
        pytest.param("+3", 3, 3_000, id="plus"),
        pytest.param("-3", -3, -3_000, id="minus"),
        pytest.param("1.", 1, 1_000, id="nothing after the point"),
        pytest.param(".5", 1, 500, id="nothing before the point"),
        pytest.param("1.5", 2, 1_500, id="a fraction is rounded up"),
        pytest.param("-1.5", -1, -1_500, id="a negative fraction is rounded up"),
        pytest.param("500m", 1, 500, id="thousandths"),
        pytest.param("1500m", 2, 1_500, id="thousandths over one"),
        pytest.param("1u", 1, 1, id="millionths"),
        pytest.param("1n", 1, 1, id="billionths"),
        pytest.param("2k", 2_000, 2_000_000, id="thousands"),
        pytest.param("2M", 2 * 10**6, 2 * 10**9, id="millions"),
        pytest.param("2G", 2 * 10**9, 2 * 10**12, id="billions"),
        pytest.param("2T", 2 * 10**12, 2 * 10**15, id="trillions"),
        pytest.param("1Ki", 1024, 1_024_000, id="kibi"),
        pytest.param("1.5Ki", 1536, 1_536_000, id="one and a half kibi"),
        pytest.param("16Mi", 16 * 2**20, 16_000 * 2**20, id="mebi"),
        pytest.param("16Gi", 16 * 2**30, 16_000 * 2**30, id="gibi"),
        pytest.param("1Ti", 2**40, 1_000 * 2**40, id="tebi"),
        pytest.param("1e3", 1_000, 1_000_000, id="exponent"),
        pytest.param("1E3", 1_000, 1_000_000, id="large E with digits is an exponent"),
        pytest.param("15e-1", 2, 1_500, id="negative exponent"),
        pytest.param("1e-999", 1, 1, id="almost nothing is rounded up"),
        pytest.param("0e999", 0, 0, id="nothing times anything"),
        pytest.param("1e-3000", 1, 1, id="nothing measurable is rounded up"),
        pytest.param("-1e-3000", 0, 0, id="and so is a debt of it"),
        pytest.param("0e3000", 0, 0, id="nothing times more"),
        pytest.param("0" * 70 + "7", 7, 7_000, id="leading zeros"),
        pytest.param("7." + "0" * 5000, 7, 7_000, id="zeros at the end"),
        pytest.param("7." + "0" * 5000 + "1", 8, 7_001, id="a digit after all of them"),
        pytest.param("0." + "0" * 5000 + "1e5001", 1, 1_000, id="digits and exponent cancel"),
        pytest.param("1" + "0" * 5000 + "e-5000", 1, 1_000, id="exponent and digits cancel"),
        pytest.param("1e" + "0" * 5000 + "3", 1_000, 1_000_000, id="exponent with leading zeros"),
        pytest.param("1e4294967299", 1_000, 1_000_000, id="32 bits of an exponent"),
        pytest.param("1e-4294967293", 1_000, 1_000_000, id="32 bits of a negative exponent"),
    ],
)
def test_a_quantity_is_read(text: str | int, units: int, milli: int) -> None:
    assert (quantity.parse(text), quantity.parse_milli(text)) == (units, milli)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("8E", id="a large E alone is a suffix"),
        pytest.param("10Pi", id="beyond what a node has"),
        pytest.param("1e999", id="absurd"),
        pytest.param("9" * 63, id="long"),
        pytest.param("1" * 70, id="70 digits, which Kubernetes serves"),
        pytest.param("1e3000", id="an exponent that Kubernetes serves"),
        pytest.param("1e2147483647", id="the largest exponent"),
        pytest.param("9" * 5000 + "Ei", id="longer than Python reads at once"),
    ],
)
def test_an_absurd_amount_is_cut_off(text: str) -> None:
    assert quantity.parse(text) == quantity.MAX
    assert quantity.parse("-" + text) == -quantity.MAX


def test_a_thousand_of_the_largest_amount_stay_within_64_bits() -> None:
    assert 1000 * quantity.MAX < 2**63
    # A hundredfold of memory is computed when it is compared with hundredths of a card.
    assert 100 * quantity.MAX < 2**63


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(" 1", id="space before"),
        pytest.param("1 ", id="space after"),
        pytest.param("1\n", id="end of line"),
        pytest.param("abc", id="letters"),
        pytest.param("1x", id="no such suffix"),
        pytest.param("1K", id="large K"),
        pytest.param("1GB", id="bytes spelled out"),
        pytest.param("1ki", id="small kibi"),
        pytest.param("1Gi5", id="suffix in the middle"),
        pytest.param("1e", id="exponent without digits"),
        pytest.param("1e" + "1" * 20, id="exponent of more than 64 bits"),
        pytest.param("1e3k", id="exponent and suffix"),
        pytest.param("--1", id="two signs"),
        pytest.param(".", id="only a point"),
        pytest.param("+", id="only a sign"),
        pytest.param(".Gi", id="no digit"),
        pytest.param("1.2.3", id="two points"),
        pytest.param("0x10", id="hexadecimal"),
        pytest.param("nan", id="not a number"),
        pytest.param("inf", id="infinite"),
        pytest.param("1_000", id="underscore"),
        pytest.param("\u0661\u0662", id="digits of another script"),
        pytest.param("1" * 5000 + "x", id="many digits and a letter"),
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(quantity.QuantityError, match="is not a quantity such as 1, 500m or 16Gi"):
        quantity.parse(text)


def test_a_refusal_shows_only_the_beginning_of_a_long_text() -> None:
    with pytest.raises(quantity.QuantityError) as caught:
        quantity.parse("x" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(0, "0", id="zero"),
        pytest.param(10**10, "10G", id="decimal"),
        pytest.param(20 * 2**30, "20Gi", id="binary"),
        pytest.param(1_024_000, "1000Ki", id="equally short"),
        pytest.param(1_500_000, "1500k", id="thousands"),
        pytest.param(10**10 + 1, "10000000001", id="neither"),
    ],
)
def test_bytes_for_people_are_in_the_shortest_unit(value: int, text: str) -> None:
    assert quantity.shortest_bytes(value) == text


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        pytest.param("100P", "100000000000000000", id="larger than is counted"),
        pytest.param("1k", "1000", id="a suffix"),
        pytest.param(7, "7", id="a number"),
        pytest.param("1500m", "1500m", id="no whole number"),
        pytest.param("1e900", "1e900", id="too many digits"),
        pytest.param("1e3000", "1e3000", id="too large"),
        pytest.param("1e-3000", "1e-3000", id="too small"),
        pytest.param("0" * 70 + "7", "7", id="leading zeros"),
    ],
)
def test_the_digits_of_a_quantity(stored: str | int, text: str) -> None:
    assert quantity.exact_text(stored) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(0, "0", id="zero"),
        pytest.param(1, "1", id="one"),
        pytest.param(1023, "1023", id="less than a unit"),
        pytest.param(1024, "1Ki", id="a unit"),
        pytest.param(1025, "1025", id="a unit and one"),
        pytest.param(16 * 2**30, "16Gi", id="sixteen"),
        pytest.param(1536 * 2**20, "1536Mi", id="not whole in the next unit"),
        pytest.param(85198045184, "83201216Ki", id="an A100"),
        pytest.param(2**40, "1Ti", id="tebi"),
    ],
)
def test_bytes_are_rendered_in_the_largest_exact_unit(value: int, text: str) -> None:
    assert quantity.format_bytes(value) == text


@given(st.integers(0, quantity.MAX))
def test_rendered_bytes_are_read_back_exactly(value: int) -> None:
    assert quantity.parse(quantity.format_bytes(value)) == value


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "m", "u", "k", "M", "Ki", "Mi"]))
def test_rounding_is_up_and_by_less_than_one(number: int, suffix: str) -> None:
    thousandth, whole = Fraction(1, 1000), Fraction(1)
    factors = {"m": thousandth, "u": thousandth**2, "k": 1000 * whole, "M": 10**6 * whole, "Ki": 2**10 * whole}
    exact = number * factors.get(suffix, 2**20 * whole if suffix else whole)
    rounded = quantity.parse(f"{number}{suffix}")
    if abs(exact) < quantity.MAX:
        assert 0 <= rounded - exact < 1
    else:
        assert abs(rounded) == quantity.MAX


_DIGITS = st.text("0123456789", max_size=90)
_FACTORS = {
    **{suffix: Fraction(10) ** power for suffix, power in {"": 0, "n": -9, "m": -3, "k": 3, "E": 18}.items()},
    **{suffix: Fraction(2) ** power for suffix, power in {"Ki": 10, "Ei": 60}.items()},
    **{f"e{power}": Fraction(10) ** power for power in range(-400, 400, 7)},
}


@given(st.sampled_from(("", "+", "-")), _DIGITS, _DIGITS, st.sampled_from(tuple(_FACTORS)))
def test_any_moderate_amount_is_rounded_up_and_cut_off(sign: str, whole: str, fraction: str, suffix: str) -> None:
    text = f"{sign}0{whole}.{fraction}{suffix}"
    amount = Fraction(f"{sign}0{whole}.{fraction}0") * _FACTORS[suffix]
    for parse, scale in ((quantity.parse, 1), (quantity.parse_milli, 1000)):
        assert parse(text) == max(-quantity.MAX, min(math.ceil(amount * scale), quantity.MAX))
    nanos = math.ceil(abs(amount) * 10**9)
    nanos = min(nanos, (2**63 - 1) * 10**9) if text.endswith("i") else nanos
    assert (
        quantity.exact(text).as_integer_ratio() == Fraction(nanos if amount > 0 else -nanos, 10**9).as_integer_ratio()
    )


@given(
    st.sampled_from(("", "-")),
    st.integers(0, 5000),
    _DIGITS,
    st.integers(0, 5000),
    st.sampled_from(("", "m", "Gi", "e3", "e-3000", "e3000", "e2147483647", "e-2147483648", "e999999999999999999")),
)
def test_an_amount_of_any_length_is_read(sign: str, before: int, digits: str, after: int, suffix: str) -> None:
    amount = quantity.parse(f"{sign}{'0' * before}{digits}1{'0' * after}{suffix}")
    assert -quantity.MAX <= amount <= 0 if sign else 0 < amount <= quantity.MAX


@given(st.one_of(st.text(max_size=80), st.text("+-.0123456789eEkKiGmn", max_size=300)))
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    with contextlib.suppress(quantity.QuantityError):
        assert abs(quantity.parse(text)) <= quantity.MAX
        assert abs(quantity.exact(text)) <= 10**1000 * 2**60
        quantity.exact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1" * 1_000_000, id="digits"),
        pytest.param("1" * 1_000_000 + "x", id="digits and a letter"),
        pytest.param("." + "0" * 1_000_000 + "x", id="zeros and a letter"),
        pytest.param("1e" + "0" * 1_000_000 + "x", id="an exponent and a letter"),
        pytest.param("1e2147483647", id="a large exponent"),
        pytest.param("1e-2147483648", id="a large negative exponent"),
    ],
)
def test_the_work_is_bounded(text: str) -> None:
    began = time.process_time()
    for read in (quantity.parse, quantity.parse_milli, quantity.exact, quantity.exact_text):
        with contextlib.suppress(quantity.QuantityError):
            read(text)
    # It takes 20 ms. Time that grows with the square of the length would be minutes.
    assert time.process_time() - began < 20.0


def test_long_texts_are_not_cached() -> None:
    before = quantity._scaled.cache_info().currsize
    quantity.parse("0" * 1_000_000)
    assert quantity._scaled.cache_info().currsize == before


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("80Gi", "85899345920"),
        ("1500m", "1.5"),
        ("-0.5", "-0.5"),
        ("0.1n", "0.000000001"),
        ("-0.1n", "-0.000000001"),
        ("16Ei", str(2**63 - 1)),
        ("16E", str(16 * 10**18)),
        ("1e20", "1e20"),
        ("1e-3000", "1e-9"),
        ("-1e-3000", "-1e-9"),
        ("1e3000", "1e1000"),
        ("-" + "9" * 2000, "-1e1000"),
        ("0" * 70 + "7m", "0.007"),
    ],
)
def test_exact_amounts_are_rounded_away_from_zero_to_nanos(text: str, amount: str) -> None:
    assert quantity.exact(text) == Decimal(amount)


def test_exact_amounts_are_not_rounded_otherwise() -> None:
    assert str(quantity.exact("9" * 40)).startswith("9" * 40)

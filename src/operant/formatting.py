"""Format numbers for people: percentages, upper bounds, p-values and durations.

This module imports nothing heavy, because the pytest plug-in loads it in every session.
"""

import math
from collections.abc import Sequence


def percent(share: float, digits: int = 3) -> str:
    """A share as a percentage with this many significant digits.

    >>> percent(0.1234), percent(0.06), percent(0.00123), percent(1.0, 2), percent(float("nan"))
    ('12.3 %', '6 %', '0.123 %', '100 %', '–')
    """
    if math.isnan(share):
        return "\u2013"
    text = f"{100 * share:.{digits}g}"
    return f"{100 * share:.0f} %" if "e+" in text else f"{text} %"


def percent_beside(share: float, *limits: float, digits: int = 2) -> str:
    """A percentage with as many digits as it takes to see on which side of each limit it lies.

    >>> percent_beside(0.4983, 0.5), percent_beside(0.69, 0.5, 0.8), percent_beside(0.5, 0.5)
    ('49.8 %', '69 %', '50 %')
    """
    while digits < 9 and any((float(f"{share:.{digits}g}") < limit) != (share < limit) for limit in limits):
        digits += 1
    return percent(share, digits)


def accuracy(share: float) -> str:
    """An accuracy as a percentage, with enough digits to see a few lost inputs.

    >>> accuracy(0.921739), accuracy(0.84)
    ('92.17 %', '84 %')
    """
    return percent(share, 4)


def points(share: float) -> str:
    """A difference of two percentages.

    >>> points(0.02), points(0.01), points(0.005)
    ('2 points', '1 point', '0.5 points')
    """
    text = f"{100 * share:.4g}"
    return f"{text} point{'s' * (text != '1')}"


def at_most(share: float, digits: int = 3) -> str:
    """An upper bound as a percentage, rounded up.

    >>> at_most(0.0200001), at_most(0.02), at_most(1.0)
    ('2.01 %', '2 %', '100 %')
    """
    return percent(rounded_up(share, digits), digits + 1)


def at_least(share: float, digits: int = 4) -> str:
    """A confidence as a percentage, rounded down.

    >>> at_least(0.95), at_least(0.9917), at_least(0.999996), at_least(1.0)
    ('95 %', '99.17 %', '99.99 %', '100 %')
    """
    unit = 10.0**-digits  # for shares from a tenth on, as confidences are
    return percent(unit * math.floor(round(share / unit, 6)), digits + 1)


def p_text(p: float, digits: int = 2) -> str:
    """A p-value; what is smaller than a millionth says no more than that.

    >>> p_text(0.0312), p_text(8e-247)
    ('p = 0.031', 'p < 1e-6')
    """
    return "p < 1e-6" if p < 1e-6 else f"p = {p:.{digits}g}"


def rounded_up(value: float, digits: int = 3) -> float:
    """The value rounded up to this many significant digits.

    >>> rounded_up(0.0123401), rounded_up(1.91e-8, 2)
    (0.0124, 2e-08)
    """
    if not value > 1e-300:  # digits of smaller numbers cannot be represented
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{unit * math.ceil(round(value / unit, 6)):.{digits + 1}g}")


def first_few(words: Sequence[object], most: int = 8) -> str:
    """The first words of a list, and how many more there are.

    >>> first_few([3, 1, 4, 1, 5], most=3)
    '3, 1, 4 and 2 more'
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(map(str, words[:most])) + more


def duration(seconds: float) -> str:
    """A duration, rounded to seconds, minutes or hours.

    >>> duration(7.26), duration(150), duration(8000)
    ('7 s', '2 min', '2.2 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

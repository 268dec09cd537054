"""Numbers as people read them: as many digits as they deserve, units beside them."""

from __future__ import annotations

import math

from isoloss.laws import Interval

MISSING = "–"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def digits(value: float | None, significant: int = 3) -> str:
    """`value` with so many significant digits: plain between 0.001 and 1e6, else m × 10ⁿ."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return _plain(value, significant)
    return power_of_ten(value, significant)


def _plain(value: float, significant: int) -> str:
    decimals = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}" if abs(value) >= 1e4 else f"{value:.{decimals}f}"


def power_of_ten(value: float | None, significant: int = 3) -> str:
    """m × 10ⁿ, for compute and learning rates."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    mantissa, _, exponent = f"{value:.{significant - 1}e}".partition("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def learning_rate(value: float | None) -> str:
    """Two digits: no sweep tells more."""
    return power_of_ten(value, 2)


def flops(value: float | None) -> str:
    """FLOPs with three digits."""
    return power_of_ten(value, 3)


def loss(value: float | None) -> str:
    """Nats per token to the third decimal: evaluation noise is about there."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.3f}"


def count(value: float | None) -> str:
    """Parameters or tokens: 537 M, 20.0 B."""
    if value is None or not math.isfinite(value):
        return MISSING
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * size:
            return f"{float(f'{value / size:.3g}'):g}{suffix}"
    return f"{value:.0f}"


def whole(value: float | None) -> str:
    """A batch size in sequences: whole above 10."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def percent(value: float | None) -> str:
    """A share as per cent with one decimal."""
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def scientific(value: float) -> str:
    """Short e-notation for axis ticks: 2e-4, 1.25e-3; two digits where three do not say it exactly."""
    exact = math.isclose(value, float(f"{value:.2e}"), rel_tol=1e-9)
    mantissa, _, exponent = (f"{value:.2e}" if exact else f"{value:.1e}").partition("e")
    return f"{mantissa.rstrip('0').removesuffix('.')}e{int(exponent)}"


def with_interval(value: Interval | None, form: str = "digits") -> str:
    """'value [low, high]' in one of this module's forms."""
    if value is None:
        return MISSING
    write = _FORMS[form]
    return f"{write(value.value)} [{write(value.low)}, {write(value.high)}]"


_FORMS = {
    "digits": digits,
    "learning_rate": learning_rate,
    "flops": flops,
    "loss": loss,
    "count": count,
    "whole": whole,
}

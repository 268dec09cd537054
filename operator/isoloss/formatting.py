"""Numbers and formulas as text: the one formatter of status fields, command line and report.

Plain ASCII, so that every number can be pasted into a manifest, a script or a spreadsheet. Absent
values (None, NaN) become the empty string, which a status field needs; tables print `ABSENT` for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the engine takes half a second to import, and only its types are needed here
    from isoloss.laws import HyperparameterLaw, Interval, LossComputeLaw, RunNoise, SurfaceLaw

ABSENT = "–"
"""What a table shows when there is no value."""
FORMULA_DIGITS = 4
"""At C = 1e22, three digits of gamma would put the reducible loss off by 2.5 %."""

# ------------------------------------------------------------------------------------- numbers


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits: 0.0123, 768, 2.34e-4, 2.1e21."""
    text = _special(value)
    if value is None or text is not None:
        return text or ""
    if not 1e-3 <= abs(value) < 1e6:
        return exponential(value, digits)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return _without_trailing_zeros(f"{value:.{places}f}")


def exponential(value: float | None, digits: int = 3) -> str:
    """A number that always has an exponent: 2e-4, 2.1e21."""
    text = _special(value)
    if value is None or text is not None:
        return text or ""
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{_without_trailing_zeros(mantissa)}e{int(exponent)}"


def learning_rate(value: float | None) -> str:
    """A learning rate, always with an exponent: 2e-4. Empty unless positive."""
    return "" if value is not None and value <= 0 else exponential(value)


def flops(value: float | None) -> str:
    """Compute in FLOPs, always with an exponent: 2.1e21."""
    return exponential(value)


def loss(value: float | None) -> str:
    """A loss in nats per token with four decimals: evaluations differ in the third or fourth."""
    text = _special(value)
    return f"{value:.4f}" if text is None else text


def batch_size(value: float | None) -> str:
    """Sequences or tokens per step: whole and in full; below 10, one decimal if there is one."""
    text = _special(value)
    if value is None or text is not None:
        return text or ""
    if abs(value) >= 1e15:
        return exponential(value)
    return _without_trailing_zeros(f"{value:.1f}") if abs(value) < 9.95 else f"{value:.0f}"


def count(value: float | None) -> str:
    """Parameters or tokens, for people: 537M, 20B. Status fields use `number`, which parses."""
    text = _special(value)
    if value is None or text is not None:
        return text or ""
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{float(f'{value / size:.3g}'):g}{suffix}"
    return f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share (0.92) with one decimal: 92.0%."""
    text = _special(share)
    return f"{share:.1%}" if text is None else text


def interval(value: Interval | None, write: Callable[[float | None], str] = number) -> str:
    """'value [low, high]', each number in the format `write`."""
    if value is None:
        return ""
    return f"{write(value.value)} [{write(value.low)}, {write(value.high)}]"


def given(text: str) -> str:
    """A value that the question states, where others are predicted and have an interval."""
    return f"{text} (given)"


def _special(value: float | None) -> str | None:
    """The text of a value that has no digits; None for every other value."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "unbounded"
    return "0" if value == 0 else None


def _without_trailing_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


# ------------------------------------------------------------------------------------ formulas


def hyperparameter_formula(law: HyperparameterLaw) -> str:
    """LR or B over the loss L or the compute C; empty if the law was refused."""
    if law.intercept is None or law.slope is None:
        return ""
    symbol = "LR" if law.quantity == "learning_rate" else "B"
    if law.form == "PowerLawOfLoss":
        return power_law(symbol, law.intercept, {"L": law.slope})
    # ln C on the left, as in the paper's appendix: there B itself, not ln B, is linear in it.
    variable = "ln LR" if symbol == "LR" else "B"
    sign = "-" if law.intercept < 0 else "+"
    # Six digits: an error in ln C is a relative error in C.
    return f"ln C = {_digits(law.slope)} {variable} {sign} {number(abs(law.intercept), 6)}"


def loss_compute_formula(law: LossComputeLaw) -> str:
    """L = L0 + alpha * C^-gamma; empty if the law was refused."""
    if law.irreducible_loss is None or law.log_alpha is None or law.gamma is None:
        return ""
    reducible = power_law("", law.log_alpha, {"C": -law.gamma})
    return f"L = {loss(law.irreducible_loss)} + {reducible}"


def surface_formula(surface: SurfaceLaw) -> str:
    """LR and B over parameters N and tokens D; empty if the surface was refused."""
    planes = surface.planes
    if planes is None:
        return ""
    n, d = planes.log_params_centre, planes.log_tokens_centre
    return "; ".join(
        power_law(
            symbol,
            float(plane.at(-n, -d)),
            {"N": float(plane.of_params), "D": float(plane.of_tokens)},
        )
        for symbol, plane in (("LR", planes.learning_rate), ("B", planes.batch_size))
    )


def power_law(symbol: str, log_coefficient: float, exponents: Mapping[str, float]) -> str:
    """'symbol = coefficient * x^exponent * ...'; the right-hand side alone without a symbol.

    A coefficient beyond what a float or a reader can take is written as exp(...).
    """
    readable = abs(log_coefficient) < 200
    coefficient = (
        _digits(math.exp(log_coefficient)) if readable else f"exp({number(log_coefficient, 6)})"
    )
    factors = [f"{name}^{_digits(exponent)}" for name, exponent in exponents.items() if exponent]
    right = " * ".join([coefficient, *factors])
    return f"{symbol} = {right}" if symbol else right


def _digits(value: float) -> str:
    return number(value, FORMULA_DIGITS)


# ------------------------------------------------------------------------------ quality of fit


def hyperparameter_quality(law: HyperparameterLaw) -> str:
    """How much a law of LR or B rests on: '12 optima, exponent 2.4 to 2.6'. R^2 is left
    out: optima of neighbouring levels share their runs, so it is close to 1 whatever the truth."""
    name = "exponent" if law.form == "PowerLawOfLoss" else "slope"
    return _joined(f"{law.points} optima", _between(name, law.slope_interval))


def loss_compute_quality(law: LossComputeLaw) -> str:
    """How much L(C) rests on, losses with the least compute that reached each, and whether the data determine L0."""
    known = ""
    if law.irreducible_loss_fixed:
        known = "L0 fixed"
    elif not law.irreducible_loss_identified:
        known = "L0 not identified by the data"
    return _joined(
        f"{law.points} losses",
        f"residual {number(law.rmse, 2)} nats" if law.rmse is not None else "",
        "" if law.irreducible_loss_fixed else _between("L0", law.irreducible_loss_interval),
        _between("gamma", law.gamma_interval),
        known,
    )


def surface_quality(surface: SurfaceLaw) -> str:
    """How much the joint surface rests on."""
    residual = surface.residual_rms
    return _joined(
        f"{surface.cells} (N, D) cells",
        f"residual {number(residual, 2)} nats" if residual is not None else "",
    )


def run_noise(noise: RunNoise) -> str:
    """How much losses differ from seed to seed: '0.0031 nats between seeds (4 degrees of freedom)'."""
    degrees = "1 degree" if noise.freedom == 1 else f"{noise.freedom} degrees"
    return f"{number(noise.deviation, 2)} nats between seeds ({degrees} of freedom)"


def _between(name: str, value: Interval | None) -> str:
    return "" if value is None else f"{name} {number(value.low)} to {number(value.high)}"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


# --------------------------------------------------------------------------------------- words


def counted(count: int, noun: str) -> str:
    """A number of things whose plural ends in s: 1 Job, 3 Jobs."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def are(count: int) -> str:
    """The verb that goes with a number of things: 1 is, 3 are."""
    return "is" if count == 1 else "are"


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` characters; a longer word, such as a path, stays whole."""
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)

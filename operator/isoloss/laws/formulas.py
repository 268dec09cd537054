"""Laws as formulas, and what each rests on, in words."""

import math
from collections.abc import Mapping

from isoloss.formatting import loss, number
from isoloss.laws.arrays import ROUNDING
from isoloss.laws.model import Interval
from isoloss.laws.results import HyperparameterLaw, LossComputeLaw, SurfaceLaw
from isoloss.laws.run_noise import RunNoise

FORMULA_DIGITS = 4
"""At C = 1e22, three digits of gamma would put the reducible loss off by 2.5%."""
CENTRE_DIGITS, SQUARE_DIGITS = 3, 2
"""Of what sizes and tokens are counted from, and of the coefficient of ln n in an exponent."""


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
    """LR and B over parameters N and tokens D, from the middle of the sweep's own; empty if the surface was refused."""
    optimum = surface.optimum
    if optimum is None:
        return ""
    middle = [
        number(math.exp(centre), CENTRE_DIGITS)
        for centre in (optimum.log_params_centre, optimum.log_tokens_centre)
    ]
    place = [math.log(float(each)) for each in middle]
    values, exponents = optimum.at(*place), optimum.exponents(*place)
    trends = (optimum.learning_rate, optimum.batch_size)
    laws = [
        f"{symbol} = {_digits(math.exp(float(value)))}"
        + _factor("n", of_params, float(trend.of_params_squared))
        + _factor("d", of_tokens, float(trend.of_tokens_squared))
        for symbol, value, (of_params, of_tokens), trend in zip(
            ("LR", "B"), values, exponents, trends, strict=True
        )
    ]
    return "; ".join([*laws, f"n = N / {middle[0]}, d = D / {middle[1]}"])


def _factor(name: str, exponent: float, squared: float) -> str:
    """' * n^0.5', or ' * n^(0.5 - 0.01 ln n)'."""
    # Two sizes, say, show no curvature over sizes.
    if abs(squared) < ROUNDING:
        return f" * {name}^{_digits(exponent)}" if exponent else ""
    sign = "-" if squared < 0.0 else "+"
    return (
        f" * {name}^({_digits(exponent)} {sign} {number(abs(squared), SQUARE_DIGITS)} ln {name})"
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


def hyperparameter_quality(law: HyperparameterLaw) -> str:
    """How much a law of LR or B rests on: '12 optima, exponent 2.4 to 2.6'. There is no
    R^2: optima of neighbouring levels share their runs, so it is close to 1 whatever the truth."""
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


def noise_in_words(noise: RunNoise) -> str:
    """How much losses differ from seed to seed: '0.0031 nats between seeds (4 degrees of freedom)'."""
    degrees = "1 degree" if noise.freedom == 1 else f"{noise.freedom} degrees"
    return f"{number(noise.deviation, 2)} nats between seeds ({degrees} of freedom)"


def _between(name: str, value: Interval | None) -> str:
    return "" if value is None else f"{name} {number(value.low)} to {number(value.high)}"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)

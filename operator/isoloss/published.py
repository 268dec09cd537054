"""Published laws of the optimal learning rate and batch size, by name.

They are second opinions next to fitted laws, and a first guess without a sweep. Each was published as
a bare formula without a covariance, so none gives an interval.

Units differ between sources (sequences or tokens, compute or parameters). `evaluate` takes FLOPs and
active parameters and gives the batch size in tokens, which converts to sequences of any length.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from isoloss.errors import BadInput

PREFIX = "published:"
USABLE_LEARNING_RATES = (1e-7, 1e-1)
"""Outside this range a formula has left the regime of AdamW training, whatever it was fitted to."""
LARGEST_FLOPS = 1e30
"""Thousands of times the largest training run."""


class UnknownLaw(BadInput):
    """No published law has that name; the message lists the known ones."""


class NotApplicable(ValueError):
    """The law does not apply to these inputs; the message says why and what would help."""


class MissingParams(NotApplicable):
    """The law depends on the model's size, which was not given."""


@dataclass(frozen=True)
class Setting:
    """The inputs of a law: total compute and, if known, active parameters."""

    total_flops: float
    params: float | None = None

    @property
    def tokens(self) -> float:
        """D = C / (6 N). Raises MissingParams if the parameters are unknown."""
        if self.params is None:
            raise MissingParams("this law depends on the model's size: give its active parameters")
        return self.total_flops / (6.0 * self.params)


@dataclass(frozen=True)
class PublishedOptimum:
    """The optimum of one law. Divide `batch_size_tokens` by a sequence length for sequences."""

    name: str
    learning_rate: float
    batch_size_tokens: float
    warnings: tuple[str, ...] = ()

    def batch_size(self, sequence_length: int) -> float:
        """Batch size in sequences of `sequence_length` tokens."""
        return self.batch_size_tokens / sequence_length


def _no_caveats(setting: Setting, learning_rate: float, sequences: float) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True)
class PublishedLaw:
    """A formula with its source. `sequence_length` is that of the runs it was fitted to."""

    name: str
    title: str
    source: str
    learning_rate_formula: str
    batch_size_formula: str
    units: str
    sequence_length: int
    needs_params: bool
    caveats: tuple[str, ...]
    optimum: Callable[[Setting], tuple[float, float]] = field(repr=False)
    """Learning rate and batch size in tokens, by the formula, whether or not a run could use them."""
    setting_caveats: Callable[[Setting, float, float], Iterator[str]] = field(
        default=_no_caveats, repr=False
    )
    """What speaks against an optimum: of a setting, its learning rate, and its batch size in sequences."""

    def evaluate(self, *, total_flops: float, params: float | None = None) -> PublishedOptimum:
        """The law's optimum at `total_flops` (FLOPs) for a model of `params` active parameters.

        Raises NotApplicable if the formula needs a quantity that is not given, or gives values that
        no training run could use.
        """
        if not (math.isfinite(total_flops) and total_flops > 0):
            raise NotApplicable(f"total compute must be positive and finite, not {total_flops:g}")
        if params is not None and not (math.isfinite(params) and params > 0):
            raise NotApplicable(f"parameters must be positive and finite, not {params:g}")
        setting = Setting(total_flops, params)
        learning_rate, batch_tokens = self.optimum(setting)
        self._refuse_unusable(setting, learning_rate, batch_tokens)
        setting_caveats = self.setting_caveats(
            setting, learning_rate, batch_tokens / self.sequence_length
        )
        warnings = tuple(f"{self.name}: {each}" for each in setting_caveats)
        return PublishedOptimum(self.name, learning_rate, batch_tokens, warnings)

    def _refuse_unusable(
        self, setting: Setting, learning_rate: float, batch_tokens: float
    ) -> None:
        low, high = USABLE_LEARNING_RATES
        sequences = batch_tokens / self.sequence_length
        is_run = setting.params is None or batch_tokens <= setting.tokens
        is_possible = is_run and setting.total_flops <= LARGEST_FLOPS
        if is_possible and low <= learning_rate <= high and sequences >= 1:
            return
        raise NotApplicable(
            f"{self.name} gives learning rate {learning_rate:.3g} and batch size {sequences:.3g} sequences "
            f"of {self.sequence_length} tokens at {setting.total_flops:.3g} FLOPs, which no run could use: "
            "the compute is outside the range in which the formula is meaningful"
        )


# ---------------------------------------------------------------------------------------- formulas


def _regression(
    of_learning_rate: tuple[float, float], of_batch_size: tuple[float, float]
) -> Callable[[Setting], tuple[float, float]]:
    """ln C = slope ln LR + intercept and ln C = slope B + intercept, B in sequences of 8192."""

    def optimum(setting: Setting) -> tuple[float, float]:
        log_rate, sequences = (
            (math.log(setting.total_flops) - intercept) / slope
            for slope, intercept in (of_learning_rate, of_batch_size)
        )
        return math.exp(min(log_rate, 700.0)), sequences * 8192

    return optimum


def _beyond_the_proxies(setting: Setting, learning_rate: float, sequences: float) -> Iterator[str]:
    for what, value, low, high in (
        ("learning rate", learning_rate, 1e-4, 5e-4),
        ("batch size in sequences of 8192:", sequences, 64, 256),
    ):
        if not low <= value <= high:
            yield (
                f"{what} {value:.4g} is an extrapolation: the proxies behind the law were "
                f"trained with {low:g} to {high:g}"
            )


def _step_law(setting: Setting) -> tuple[float, float]:
    tokens = setting.tokens
    assert setting.params is not None  # setting.tokens has refused its absence
    return 1.797 * setting.params**-0.713 * tokens**0.307, 0.581 * tokens**0.571


def _porian(setting: Setting) -> tuple[float, float]:
    ratio = (setting.params or _ladder_params(setting)) / 108e6
    return 0.0047 * ratio ** (-1 / 3), 160 * ratio ** (2 / 3) * 2048


def _ladder_params(setting: Setting) -> float:
    """N with C = 6 N * 20 N."""
    return math.sqrt(setting.total_flops / (6.0 * 20))


def _off_the_ladder(setting: Setting, learning_rate: float, sequences: float) -> Iterator[str]:
    if setting.params is None:
        size = _ladder_params(setting)
        yield f"no parameters given; evaluated for {size:.3g}, at 20 tokens per parameter"
    elif not 10 <= (per_param := setting.tokens / setting.params) <= 40:
        yield f"the law holds at 20 tokens per parameter; this compute gives {per_param:.3g}"


_CPT_SOURCE = (
    "Zhou et al., Predictable Scaling Laws of Optimal Hyperparameters for LLM Continued Pre-training, "
    "appendix, linear regression parameters"
)
_CPT_UNITS = (
    "C total effective FLOPs (equivalent pre-training plus planned); B sequences of 8192 tokens"
)
_CPT_CAVEATS = (
    "the irreducible loss, alpha and gamma of L(C) are not published: an initial loss cannot be placed on the curve",
    "B is linear in ln C here; the paper's method section gives a power law of the loss",
)

_LAWS: tuple[PublishedLaw, ...] = (
    PublishedLaw(
        name="cpt-dense",
        title="Continued pre-training, dense proxies of 100M and 500M",
        source=_CPT_SOURCE,
        learning_rate_formula="ln C = -0.7476 ln LR + 42.1357",
        batch_size_formula="ln C = 0.0093 B + 42.2100",
        units=_CPT_UNITS,
        sequence_length=8192,
        needs_params=False,
        caveats=_CPT_CAVEATS,
        optimum=_regression((-0.7476, 42.1357), (0.0093, 42.2100)),
        setting_caveats=_beyond_the_proxies,
    ),
    PublishedLaw(
        name="cpt-moe",
        title="Continued pre-training, mixture-of-experts proxies of 100M and 500M active",
        source=_CPT_SOURCE,
        learning_rate_formula="ln C = -2.0137 ln LR + 29.9737",
        batch_size_formula="ln C = 0.0042 B + 43.1900",
        units=_CPT_UNITS,
        sequence_length=8192,
        needs_params=False,
        caveats=(
            *_CPT_CAVEATS,
            "inconsistent with the paper's own table: at 1.87e21 FLOPs this gives B = 1378, the table 1600 [1495, 1929]",
        ),
        optimum=_regression((-2.0137, 29.9737), (0.0042, 43.1900)),
        setting_caveats=_beyond_the_proxies,
    ),
    PublishedLaw(
        name="step-law",
        title="Step Law, pre-training from scratch, dense and mixture of experts",
        source="Li et al., arXiv 2503.04715; means of the 1,000 published bootstrap rows (step-law/steplaw)",
        learning_rate_formula="LR = 1.797 N^-0.713 D^0.307",
        batch_size_formula="B = 0.581 D^0.571",
        units="N parameters without embeddings; D tokens, here C / (6 N); B tokens",
        sequence_length=2048,
        needs_params=True,
        caveats=(
            "learning rate decayed to 1e-5: a constant learning rate has a lower optimum",
            "the exponent of D in LR does not reproduce from the authors' own table (0.17 to 0.29); the loss at the predicted optimum does",
        ),
        optimum=_step_law,
    ),
    PublishedLaw(
        name="deepseek",
        title="DeepSeek LLM, pre-training from scratch",
        source="DeepSeek-AI, arXiv 2401.02954, section 3.1",
        learning_rate_formula="LR = 0.3118 C^-0.1250",
        batch_size_formula="B = 0.2920 C^0.3271",
        units="C FLOPs without embeddings; B tokens",
        sequence_length=4096,
        needs_params=False,
        caveats=("multi-step learning rate schedule",),
        optimum=lambda setting: (
            0.3118 * setting.total_flops**-0.1250,
            0.2920 * setting.total_flops**0.3271,
        ),
    ),
    PublishedLaw(
        name="porian",
        title="Porian et al., pre-training from scratch at 20 tokens per parameter",
        source="Porian et al., arXiv 2406.19146; rounded as in formll/resolving-scaling-law-discrepancies",
        learning_rate_formula="LR = 0.0047 (N / 108e6)^(-1/3)",
        batch_size_formula="B = 160 (N / 108e6)^(2/3)",
        units="N parameters; B sequences of 2048 tokens",
        sequence_length=2048,
        needs_params=False,
        caveats=("holds along 20 tokens per parameter only",),
        optimum=_porian,
        setting_caveats=_off_the_ladder,
    ),
)

PUBLISHED: Mapping[str, PublishedLaw] = {law.name: law for law in _LAWS}


def is_published(name: str) -> bool:
    """Whether a LAWS argument names a published law."""
    return name.startswith(PREFIX)


def published_law(name: str) -> PublishedLaw:
    """The law called `name`, with or without the prefix. Raises UnknownLaw."""
    law = PUBLISHED.get(name.removeprefix(PREFIX))
    if law is None:
        known = ", ".join(PREFIX + known for known in PUBLISHED)
        raise UnknownLaw(f"no published law is called {name!r}; known laws: {known}")
    return law


def published_opinions(
    *, total_flops: float | None, params: float | None
) -> tuple[tuple[PublishedOptimum, ...], tuple[str, ...]]:
    """The optimum of every published law that applies, and a sentence for each that does not.

    `total_flops` is counted as 6 N D; None: it is known only with attention, and no law applies.
    """
    if total_flops is None:
        return (), ("published laws: the total is counted with attention, they count without",)
    opinions: list[PublishedOptimum] = []
    silent: list[str] = []
    for law in PUBLISHED.values():
        try:
            opinions.append(law.evaluate(total_flops=total_flops, params=params))
        except NotApplicable as reason:
            silent.append(f"{law.name}: {reason}")
    return tuple(opinions), tuple(silent)

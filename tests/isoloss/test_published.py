"""The published laws: the sources' own numbers come out, units converted, nothing invented."""

import math

import pytest

from isoloss.published import (
    PUBLISHED,
    NotApplicable,
    UnknownLaw,
    published_law,
    published_opinions,
)


@pytest.mark.parametrize(
    ("name", "flops", "learning_rate", "sequences"),
    [("cpt-dense", 2.8e21, 6.2e-5, 771), ("cpt-moe", 1.87e21, 7.95e-5, 1378)],
)
def test_the_papers_regressions_give_the_papers_predictions(
    name: str, flops: float, learning_rate: float, sequences: int
) -> None:
    optimum = published_law(f"published:{name}").evaluate(total_flops=flops)
    assert optimum.learning_rate == pytest.approx(learning_rate, rel=0.01)
    assert math.floor(optimum.batch_size(8192)) == sequences


def test_the_papers_predictions_lie_outside_its_own_grid_and_the_law_says_so() -> None:
    warnings = published_law("cpt-dense").evaluate(total_flops=2.8e21).warnings
    assert len(warnings) == 2
    assert all("is an extrapolation" in warning for warning in warnings)


def test_step_law_takes_tokens_from_compute_and_answers_in_tokens() -> None:
    """N = 1e9 and D = 1e11 are 6e20 FLOPs."""
    optimum = published_law("step-law").evaluate(total_flops=6e20, params=1e9)
    assert optimum.learning_rate == pytest.approx(1.797 * 1e9**-0.713 * 1e11**0.307)
    assert optimum.batch_size_tokens == pytest.approx(0.581 * 1e11**0.571)
    assert optimum.batch_size(2048) == pytest.approx(optimum.batch_size_tokens / 2048)


def test_porian_at_its_reference_size_gives_160_sequences_of_2048() -> None:
    """108M parameters at 20 tokens each are 6 * 20 * 108e6**2 FLOPs, known or not."""
    flops = 120 * 108e6**2
    for params in (108e6, None):
        optimum = published_law("porian").evaluate(total_flops=flops, params=params)
        assert optimum.learning_rate == pytest.approx(0.0047)
        assert optimum.batch_size(2048) == pytest.approx(160)
    off_ladder = published_law("porian").evaluate(total_flops=flops * 10, params=108e6)
    assert "20 tokens per parameter" in off_ladder.warnings[0]


def test_deepseek_answers_in_tokens_from_compute_alone() -> None:
    optimum = published_law("deepseek").evaluate(total_flops=1e21)
    assert optimum.learning_rate == pytest.approx(0.3118 * 1e21**-0.125)
    assert optimum.batch_size_tokens == pytest.approx(0.2920 * 1e21**0.3271)


@pytest.mark.parametrize(
    ("name", "flops", "params", "says"),
    [
        ("step-law", 1e21, None, "active parameters"),
        ("cpt-dense", 1e18, None, "no run could use"),
        ("cpt-moe", 1e18, None, "no run could use"),
        ("deepseek", 1e31, 1e9, "no run could use"),
        ("porian", 1e60, 1e9, "no run could use"),
        ("porian", 1e9, 1e9, "no run could use"),  # its step would be longer than the run
        ("deepseek", 0.0, None, "positive and finite"),
        ("deepseek", math.inf, None, "positive and finite"),
        ("step-law", 1e21, math.nan, "positive and finite"),
    ],
)
def test_a_law_refuses_what_it_can_not_answer(
    name: str, flops: float, params: float | None, says: str
) -> None:
    with pytest.raises(NotApplicable, match=says):
        published_law(name).evaluate(total_flops=flops, params=params)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownLaw, match="published:step-law"):
        published_law("published:chinchilla")


def test_opinions_say_which_laws_are_silent_and_why() -> None:
    opinions, silent = published_opinions(total_flops=2.8e21, params=None)
    assert {opinion.name for opinion in opinions} == set(PUBLISHED) - {"step-law"}
    assert len(silent) == 1
    assert silent[0].startswith("step-law: ")


def test_every_law_cites_its_source_and_its_units() -> None:
    for law in PUBLISHED.values():
        assert law.source
        assert "B " in law.units
        assert law.sequence_length > 0

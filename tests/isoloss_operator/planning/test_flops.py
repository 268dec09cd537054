"""FLOPs per token under every convention, against the figures of the trainer's notes."""

import pytest

from isoloss_operator.planning.flops import Convention, elapsed, six_nd, token_flops
from isoloss_operator.planning.models import parameter_counts
from tests.support.models import example_model


@pytest.mark.parametrize(
    ("name", "six", "exact", "palm"),
    [("dense-100m", 1.11e9, 1.57e9, 2.02e9), ("dense-500m", 3.86e9, 5.37e9, 6.88e9)],
)
def test_conventions_agree_with_the_published_table(
    name: str, six: float, exact: float, palm: float
) -> None:
    """Vocabulary 131,072, sequence length 8192. Theirs are of models that group no queries: 1% off."""
    flops = token_flops(example_model(name), 8192)
    assert flops.total() == pytest.approx(six, rel=1e-2)
    assert flops.total(Convention.EXACT) == pytest.approx(exact, rel=1e-2)
    assert flops.total(Convention.PALM) == pytest.approx(palm, rel=1e-2)


def test_latent_attention_counts_heads_as_they_are() -> None:
    """moe-100m: 12 layers, 6 heads, queries of 192, values of 128, which kernels widen to 192."""
    flops = token_flops(example_model("moe-100m"), 8192)
    attention = flops.total(Convention.PALM) - flops.total(Convention.SIX_ND)
    assert attention == 6 * 12 * 6 * (192 + 128) * 8192


def test_the_causal_mask_halves_attention_and_the_diagonal_adds_a_half_token() -> None:
    """A query sees (S + 1) / 2 tokens on average."""
    flops = token_flops(example_model("dense-tiny"), 128)
    assert flops.attention_causal / flops.attention_full == pytest.approx(129 / 256)


def test_a_sliding_window_bounds_what_a_query_sees() -> None:
    """Window 2, length 4: 1 + 2 + 2 + 2 tokens over 4 queries."""
    config = {**example_model("dense-tiny"), "model_type": "mistral", "sliding_window": 2}
    flops = token_flops(config, 4)
    assert flops.attention_causal / flops.attention_full == pytest.approx(7 / 16)


def test_six_nd_counts_the_head_and_not_the_look_up() -> None:
    """6 * (body + head) * tokens."""
    counts = parameter_counts(example_model("dense-100m"))
    assert six_nd(counts, 10) == 60.0 * (86_114_304 + 100_663_296)


@pytest.mark.parametrize(
    ("parallelism", "hours"),
    [
        pytest.param(1, 10.0, id="one after the other"),
        pytest.param(2, 6.0, id="the dearest starts last"),
        pytest.param(4, 4.0, id="as long as the longest"),
        pytest.param(9, 4.0, id="more slots than Jobs"),
    ],
)
def test_the_cheapest_start_first(parallelism: int, hours: float) -> None:
    assert elapsed([4.0, 1.0, 3.0, 2.0], parallelism) == hours


def test_no_jobs_take_no_time() -> None:
    assert elapsed([], 4) == 0.0

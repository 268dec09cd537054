"""FLOPs per token, against the figures of the trainer's notes."""

import pytest

from isoloss_operator.planning.flops import elapsed, executed_flops, six_nd
from isoloss_operator.planning.models import attention_shapes, parameter_counts
from tests.support.models import example_model


@pytest.mark.parametrize(
    ("name", "six", "exact"),
    [("dense-100m", 1.11e9, 1.57e9), ("dense-500m", 3.86e9, 5.37e9)],
)
def test_flops_agree_with_the_published_table(name: str, six: float, exact: float) -> None:
    """Vocabulary 131,072, sequence length 8192. Theirs are of models that group no queries: 1% off."""
    config = example_model(name)
    assert six_nd(parameter_counts(config), 1) == pytest.approx(six, rel=1e-2)
    assert executed_flops(config, 8192) == pytest.approx(exact, rel=1e-2)


def test_latent_attention_counts_heads_as_they_are() -> None:
    """moe-100m: 12 layers, 6 heads, queries of 192, values of 128, which kernels widen to 192."""
    (shape,) = attention_shapes(example_model("moe-100m"))
    assert shape.pair_flops == 6 * 12 * 6 * (192 + 128)


@pytest.mark.parametrize(
    ("changes", "length", "seen"),
    [
        pytest.param({}, 128, 129 / 2, id="the causal mask, and half a token of the diagonal"),
        pytest.param(
            {"model_type": "mistral", "sliding_window": 2}, 4, 7 / 4, id="a window: 1 + 2 + 2 + 2"
        ),
    ],
)
def test_attention_counts_what_a_query_sees(
    changes: dict[str, object], length: int, seen: float
) -> None:
    """So many tokens on average."""
    config = {**example_model("dense-tiny"), **changes}
    (shape,) = attention_shapes(config)
    scores = executed_flops(config, length) - six_nd(parameter_counts(config), 1)
    assert scores == pytest.approx(seen * shape.pair_flops)


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

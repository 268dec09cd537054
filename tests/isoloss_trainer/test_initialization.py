"""QK-norm."""

from __future__ import annotations

import pytest
from isoloss_operator.planning.qk_norm import with_qk_norm

from isoloss_operator.planning.parameters import parameter_counts
from isoloss_trainer.model import build_network, count_parameters
from tests.isoloss_trainer.builders import LLAMA


@pytest.mark.parametrize("biased", [False, True])
def test_qk_norm_is_all_that_the_qwen3_of_a_llama_adds(biased: bool) -> None:
    """The Llama's weights fit into it, and the counts of the operator are those of the model."""
    config = {**LLAMA, "attention_bias": biased}
    network = build_network(with_qk_norm(config), seed=0)
    assert count_parameters(network) == parameter_counts(with_qk_norm(config))
    missing, unexpected = network.load_state_dict(
        build_network(config, seed=0).state_dict(), strict=False
    )
    assert not unexpected
    assert {name.split(".")[-2] for name in missing} == {"q_norm", "k_norm"}

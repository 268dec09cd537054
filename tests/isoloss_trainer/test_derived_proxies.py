"""Proxies derived from published checkpoints, as transformers builds them."""

from __future__ import annotations

import pytest
import torch

from isoloss_operator.commands.derived_proxies import derive_proxy
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_trainer.model import build_network, check_fits, count_parameters, model_config
from tests.support.published_configs import PUBLISHED


@pytest.mark.parametrize("parameters", [100_000_000, 500_000_000])
@pytest.mark.parametrize("name", PUBLISHED)
def test_derived_proxies_have_the_counted_parameters(name: str, parameters: int) -> None:
    config = derive_proxy(PUBLISHED[name], parameters)
    with torch.device("meta"):
        network = build_network(config)
    assert count_parameters(network) == parameter_counts(config)
    check_fits(network.config, vocabulary=config["vocab_size"], sequence_length=8192)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_derived_proxy_computes_as_its_checkpoint_would(name: str) -> None:
    """Positions, windows and norms come from the checkpoint's own settings."""
    published = {key: value for key, value in PUBLISHED[name].items() if key != "auto_map"}
    small = model_config(derive_proxy(published, 100_000_000))
    large = model_config(published)
    for key in ("rope_parameters", "rms_norm_eps", "hidden_act", "sliding_window", "vocab_size"):
        assert getattr(small, key, None) == getattr(large, key, None), key

"""The trainer's fields become those of the manifest."""

from __future__ import annotations

import pytest

from isoloss_operator.decide.blame import spec_field


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("", ""),
        ("tokenizer", "spec.data.tokenizer"),
        ("domains.math.text_field", "spec.data.domains[1].textField"),
        ("domains.math", "spec.data.domains[1]"),
        ("mixture.general", "spec.data.domains[0]"),
        ("domains.unknown.uri", "domains.unknown.uri"),
        ("model.vocab_size", "spec.proxies[2].model.config.vocab_size"),
        ("model", "spec.proxies[2].model"),
        ("validation.sequences_per_domain", "spec.data.validation.sequencesPerDomain"),
        ("checkpoint.uri", "spec.checkpoint.uri"),
        ("something.else", "something.else"),
    ],
)
def test_field(field: str, expected: str) -> None:
    """What has no counterpart is passed on as it is."""
    assert spec_field(field, domains=["general", "math"], proxy=2) == expected


@pytest.mark.parametrize("given", ["preset", "like"])
def test_only_a_config_has_the_keys_of_a_model(given: str) -> None:
    """Nobody can mend a key that they did not write."""
    found = spec_field("model.vocab_size", proxy=2, model=given)
    assert found == f"spec.proxies[2].model.{given}"

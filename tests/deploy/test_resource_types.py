"""The types refuse what the API server refuses, in words that help."""

from typing import Any

import pytest
from pydantic import ValidationError

from isoloss_operator.api import (
    SWEEP_KIND,
    HyperparamPredictionSpec,
    ScalingSweepSpec,
    ScalingSweepStatus,
)
from tests.support.refused_manifests import ACCEPTED, REFUSED, Refused


def parse(manifest: dict[str, Any]) -> ScalingSweepSpec | HyperparamPredictionSpec:
    kind = ScalingSweepSpec if manifest["kind"] == SWEEP_KIND else HyperparamPredictionSpec
    return kind.model_validate(manifest["spec"])


@pytest.mark.parametrize("row", [row for row in REFUSED if row.types_say], ids=str)
def test_the_types_refuse(row: Refused) -> None:
    with pytest.raises(ValidationError) as refusal:
        parse(row.manifest)
    assert row.types_say is not None
    assert row.types_say in str(refusal.value)


@pytest.mark.parametrize("manifest", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_the_types_accept(manifest: dict[str, Any]) -> None:
    parse(manifest)


def test_an_unquoted_number_is_shown_as_it_should_be_written() -> None:
    manifest = ACCEPTED["an initial loss without a checkpoint"]
    with pytest.raises(ValidationError, match=r'write the number in quotes: "2.08"'):
        HyperparamPredictionSpec.model_validate(manifest["spec"] | {"initialLoss": 2.08})


def test_a_sweep_counts_its_points_over_all_proxies_and_their_own_grids() -> None:
    spec = parse(ACCEPTED["10,000 points"])
    assert isinstance(spec, ScalingSweepSpec)
    assert spec.points == 10_000


def test_a_status_of_another_version_is_read_without_its_unknown_fields() -> None:
    status = ScalingSweepStatus.model_validate({"observedGeneration": 3, "fromTheFuture": {}})
    assert status.observed_generation == 3

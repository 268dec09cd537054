"""What a sweep's Ready says when only some of its laws stand."""

from dataclasses import replace

from isoloss.laws import Refusal, RefusalReason
from isoloss_operator.decide.law_status import laws_finding
from tests.support.synthetic_runs import fitted_laws, one_batch_size_laws

VAGUE = Refusal(RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE, "It may rise or fall.")


def test_whole_laws_are_said_to_be_fitted_and_nothing_else() -> None:
    finding = laws_finding(fitted_laws(), 18, final=True)
    assert (finding.status, finding.message) == ("True", "The laws are fitted to 18 points.")


def test_a_refused_law_is_named_with_its_reason_although_the_surface_answers() -> None:
    laws = fitted_laws()
    partly = replace(
        laws, learning_rate=replace(laws.learning_rate, status="refused", refusal=VAGUE)
    )
    finding = laws_finding(partly, 18, final=True)
    assert finding.status == "True"
    assert "those of learning rate are refused: It may rise or fall." in finding.message
    assert "the joint surface alone" in finding.message


def test_laws_of_one_batch_size_are_ready_for_it_alone() -> None:
    laws = one_batch_size_laws()
    finding = laws_finding(laws, 15, final=True)
    assert (finding.status, finding.reason) == ("True", "Fitted")
    assert finding.message.startswith(
        "The best learning rate at 128 sequences is fitted to 15 points"
    )
    assert "none, are refused" in finding.message
    provisional = laws_finding(laws, 12, final=False)
    assert (provisional.status, provisional.reason) == ("True", "Provisional")


def test_one_batch_size_without_a_best_learning_rate_is_refused() -> None:
    laws = one_batch_size_laws()
    unknown = replace(laws, rate_at_batch=replace(laws.rate_at_batch, curve=None))
    assert laws_finding(unknown, 15, final=True).status == "False"

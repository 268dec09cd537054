"""`isoloss validate`: probes planned with their cost, judged from a table, and what is refused."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isoloss.laws import Run
from isoloss_contract.store import Store
from tests.support.command_line import Isoloss
from tests.support.stored_sweep import write_sweep
from tests.support.tables import write_probes

TOKENS = 1.2e10
QUESTION = ("--initial-loss", "2.75", "--cpt-tokens", f"{TOKENS:g}", "--params", "3e8")


@pytest.fixture
def validate(isoloss: Isoloss, synthetic_laws: Path) -> Isoloss:
    """Validates an answer of the true laws."""
    return partial(isoloss, "validate", synthetic_laws)


def planned(validate: Isoloss, *options: str) -> dict[str, Any]:
    ended = validate(*QUESTION, *options, "--json")
    assert ended.code == 0, ended.err
    return ended.document


def test_without_probes_the_command_says_what_to_train_and_what_it_costs(
    validate: Isoloss, isoloss: Isoloss, synthetic_laws: Path
) -> None:
    plan = planned(validate, "--share", "0.2", "--seeds", "2")
    answer = isoloss("predict", synthetic_laws, *QUESTION, "--json").document
    assert len(plan["probes"]) == 5
    assert plan["probes"][0]["learning_rate"] == answer["learning_rate"]["value"]
    assert plan["probes"][0]["batch_size"] == answer["batch_size"]["value"]
    assert plan["tokens"] == round(0.2 * TOKENS)
    assert plan["flops"] == pytest.approx(0.2 * answer["cpt_flops"])
    assert plan["total_flops"] == pytest.approx(10 * plan["flops"])
    assert plan["share_of_budget"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("best", "validated", "reason"),
    [(1.0, True, "AnswerHolds"), (3.0, False, "BetterAnswerNearby")],
)
def test_probes_confirm_or_reject_the_answer(
    validate: Isoloss, tmp_path: Path, best: float, validated: bool, reason: str
) -> None:
    plan = planned(validate)
    runs = write_probes(tmp_path / "probes.csv", plan["probes"], best)
    ended = validate(runs, *QUESTION, "--noise", "0.002", "--json")
    document = ended.document
    assert ended.code == 0
    assert (document["validated"], document["reason"]) == (validated, reason)
    assert document["beats_neighbours"] is validated
    assert len(document["comparisons"]) == 4
    assert document["regret"]["low"] <= document["regret"]["value"] <= document["regret"]["high"]
    assert document["direction"]["learning_rate"] == (None if validated else "higher")
    refined = document["refined"]["learning_rate"]
    assert refined["low"] < refined["value"] < refined["high"]
    assert (refined["value"] > 1.3 * plan["probes"][0]["learning_rate"]) is not validated


def test_the_verdict_in_words_shows_losses_regret_and_the_refined_answer_beside_the_laws(
    validate: Isoloss, tmp_path: Path
) -> None:
    runs = write_probes(tmp_path / "probes.csv", planned(validate)["probes"], 3.0)
    ended = validate(runs, *QUESTION)
    assert "BetterAnswerNearby: The answer does not hold: it loses 0." in ended.out
    assert "at a higher learning rate" in ended.out
    assert "next to the laws' own answer" in ended.out


def test_probes_that_tell_nothing_end_with_the_code_of_a_refusal(
    validate: Isoloss, tmp_path: Path
) -> None:
    runs = write_probes(tmp_path / "probes.csv", planned(validate)["probes"], 1.0)
    ended = validate(runs, *QUESTION, "--noise", "0.2", "--json")
    assert ended.code == 3
    assert (ended.document["validated"], ended.document["reason"]) == (None, "WithinNoise")


BRIEF = ("--initial-loss", "2.75", "--cpt-flops", "1.5e17", "--params", "1e9")


def test_probes_too_short_to_be_judged_are_not_planned_and_a_share_that_works_is_named(
    validate: Isoloss,
) -> None:
    refused = validate(*BRIEF, "--share", "0.1", "--json")
    assert refused.code == 2
    message = refused.document["error"]["message"]
    assert message.startswith("--share 0.1: Probes of 2.5e+06 tokens are ")
    assert "at least 30 are needed" in message
    enough = float(message.rpartition("Give --share ")[2].removesuffix(" or more."))
    assert validate(*BRIEF, "--share", enough).code == 0
    assert validate(*BRIEF, "--share", 0.95 * enough).code == 2


def test_probes_that_were_too_short_are_refused_in_words_about_probes(
    validate: Isoloss, isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    places = planned(validate)["probes"]
    answer = isoloss("predict", synthetic_laws, *BRIEF, "--json").document
    middle = {key: answer[key]["value"] for key in ("learning_rate", "batch_size")}
    factors = [{key: place[key] / places[0][key] for key in middle} for place in places]
    moved = [{key: middle[key] * round(by[key], 1) for key in middle} for by in factors]
    moved = [{**place, "batch_size": round(place["batch_size"])} for place in moved]
    runs = write_probes(tmp_path / "probes.csv", moved, 1.0, tokens=2.5e6, params=1e9, length=64)
    ended = validate(runs, *BRIEF, "--json")
    assert ended.code == 3
    assert ended.document["refused"][0]["message"].startswith("Probes of 2.5e+06 tokens are ")


@pytest.mark.parametrize("stable", [0, 2])
def test_training_that_diverges_at_the_answer_rejects_it(
    validate: Isoloss, tmp_path: Path, stable: int
) -> None:
    runs = write_probes(tmp_path / "probes.csv", planned(validate)["probes"], 1.0)
    header, *rows = runs.read_text().splitlines()
    lost = len(rows) - stable
    marked = [f"{row},{str(index < lost).lower()}" for index, row in enumerate(rows)]
    runs.write_text("\n".join([f"{header},diverged", *marked]))
    ended = validate(runs, *QUESTION, "--json")
    assert ended.code == 0, ended.err
    assert (ended.document["validated"], ended.document["reason"]) == (False, "AnswerDiverged")
    words = validate(runs, *QUESTION).out
    assert "within noise" not in words
    assert "nan" not in words


@pytest.mark.parametrize("budgets", [(), ("--cpt-flops", "1e20", "--cpt-tokens", "1e10")])
def test_probes_without_a_budget_have_no_length_and_no_option_is_advised_that_is_none(
    validate: Isoloss, budgets: tuple[str, ...]
) -> None:
    ended = validate("--initial-loss", "2.75", *budgets)
    assert "give --cpt-flops or --cpt-tokens" in ended.error
    assert "--total-flops" not in ended.error


def test_at_a_batch_size_that_is_given_learning_rates_alone_are_planned_and_judged(
    validate: Isoloss, isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    given = ("--batch-size", "200")
    plan = planned(validate, *given)
    answer = isoloss("predict", synthetic_laws, *QUESTION, *given, "--json").document
    rate = answer["learning_rate"]["value"]
    places = [(place["learning_rate"], place["batch_size"]) for place in plan["probes"]]
    assert places == [(rate, 200), (rate / 2, 200), (rate * 2, 200)]
    runs = write_probes(tmp_path / "probes.csv", plan["probes"], 1.0)
    asked = (*QUESTION, *given, "--noise", "0.002")
    ended = validate(runs, *asked)
    assert ended.code == 0, ended.err
    assert "AnswerHolds" in ended.out
    refined = ended.out.partition("Laws and probes together")[2]
    assert "learning rate" in refined
    assert "batch size" not in refined


def test_probes_of_a_smaller_proxy_count_by_their_share_of_the_tokens(
    validate: Isoloss, tmp_path: Path
) -> None:
    places = planned(validate)["probes"]
    document = {}
    for params in (3e8, 1e8):
        runs = write_probes(tmp_path / "probes.csv", places, 1.0, 0.3 * TOKENS, params)
        ended = validate(runs, *QUESTION, "--json")
        document[params] = ended.document
    assert document[1e8]["refined"] == document[3e8]["refined"]


def test_probes_of_another_sequence_length_are_judged_at_equal_tokens(
    validate: Isoloss, tmp_path: Path
) -> None:
    """The laws are of 2048 tokens per sequence."""
    plan = planned(validate, "--round-to", "4")
    assert plan["sequence_length"] == 2048
    asked = (*QUESTION, "--round-to", "4", "--noise", "0.002")
    long = [{**place, "batch_size": place["batch_size"] / 4} for place in plan["probes"]]
    documents = []
    for places, length in ((plan["probes"], 2048), (long, 8192)):
        runs = write_probes(tmp_path / f"{length}.csv", places, 1.0, length=length)
        documents.append(validate(runs, *asked, "--json").document)
    own, other = documents
    assert other["refined"] == own["refined"]
    assert any("The probes' sequence length, 8192" in warning for warning in other["warnings"])
    as_many = write_probes(tmp_path / "as_many.csv", plan["probes"], 1.0, length=8192)
    assert f"{as_many}: no probe is at the answer" in validate(as_many, *asked).error


def test_the_warnings_of_the_answer_are_told_with_its_plan_and_with_its_verdict(
    validate: Isoloss, isoloss: Isoloss, synthetic_laws: Path, tmp_path: Path
) -> None:
    warnings = isoloss("predict", synthetic_laws, *QUESTION, "--json").document["warnings"]
    assert warnings
    plan = planned(validate)
    runs = write_probes(tmp_path / "probes.csv", plan["probes"], 1.0)
    verdict = validate(runs, *QUESTION, "--json").document
    for document in (plan, verdict):
        assert set(document["warnings"]) <= set(warnings)
        assert document["warnings"]
    for asked in ((), (runs,)):
        words = validate(*asked, *QUESTION).err
        for warning in plan["warnings"]:
            assert f"warning: {warning}" in words


def test_doubts_about_the_probes_are_told_with_the_verdict(
    validate: Isoloss, tmp_path: Path
) -> None:
    """Their losses are in bits."""
    runs = write_probes(tmp_path / "probes.csv", planned(validate)["probes"], 1.0)
    text = runs.read_text()
    for nats in [row.rpartition(",")[2] for row in text.splitlines()[1:]]:
        text = text.replace(f",{nats}\n", f",{float(nats) / math.log(2.0)}\n")
    runs.write_text(text)
    document = validate(runs, *QUESTION, "--json").document
    (doubt,) = [each for each in document["warnings"] if "look like bits per token" in each]
    assert f"warning: {doubt}" in validate(runs, *QUESTION).err


def continued_runs(places: list[dict[str, Any]], best: float) -> list[Run]:
    """Runs of a checkpoint at these places, with the lowest loss at `best` times the first one's learning rate."""
    middle, tokens = places[0], np.geomspace(TOKENS / 50, TOKENS, 8)

    def loss(place: dict[str, Any]) -> float:
        rate = math.log(place["learning_rate"] / middle["learning_rate"] / best)
        return (
            2.6 + 0.08 * rate**2 + 0.04 * math.log(place["batch_size"] / middle["batch_size"]) ** 2
        )

    return [
        Run(
            name=f"near-{number}",
            params=3e8,
            batch_size=place["batch_size"],
            sequence_length=2048,
            learning_rate=place["learning_rate"],
            tokens=tokens,
            losses=loss(place) + 0.1 * (TOKENS / tokens) ** 0.1 - 0.1,
            started_from="Checkpoints",
        )
        for number, place in enumerate(places)
    ]


@pytest.mark.parametrize(("best", "reason"), [(1.0, "AnswerHolds"), (4.0, "BetterAnswerNearby")])
def test_a_sweep_in_the_store_that_continues_the_checkpoint_judges_as_a_table_does(
    validate: Isoloss, tmp_path: Path, best: float, reason: str
) -> None:
    store = Store(f"file://{tmp_path / 'store'}")
    write_sweep(store, runs=continued_runs(planned(validate)["probes"], best))
    ended = validate(store.uri, *QUESTION, "--json")
    assert ended.code == 0, ended.err
    assert ended.document["reason"] == reason


def test_a_sweep_of_runs_from_scratch_judges_nothing(validate: Isoloss, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path / 'store'}")
    write_sweep(store)
    ended = validate(store.uri, *QUESTION)
    assert ended.code == 2
    assert "runs from scratch show nothing of a checkpoint" in ended.err

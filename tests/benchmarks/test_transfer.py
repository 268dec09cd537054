"""The benchmark of continued runs: its judgements on a synthetic world, and its command for real, once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.transfer.design import (
    FULL,
    LARGE,
    SMALL,
    Checkpoint,
    Design,
    Grid,
    Place,
    Size,
)
from benchmarks.transfer.judging import optimum
from benchmarks.transfer.measuring import Continued, Measured
from benchmarks.transfer.rules import RULES
from benchmarks.transfer.scores import (
    by_checkpoint,
    cases,
    fit,
    folds,
    is_new,
    score_engine,
    score_rule,
)
from benchmarks.transfer.table import tables
from isoloss.laws import Run
from tests.support.synthetic import Synthetic


def bowl(rate: float, batch: float) -> Mapping[Place, float]:
    """Losses on a 5 x 4 grid around an optimum, with the ridge of small batches."""
    found = {}
    for place in Grid((-10, -6), (1, 4)).places():
        x, y = np.log(place.rate / rate), np.log(place.batch / batch)
        found[place] = 3.0 + 0.03 * x**2 + 0.02 * y**2 - 0.02 * x * y
    return found


def test_the_measured_optimum_is_the_synthetic_one_and_its_regret_the_synthetic_loss() -> None:
    found = optimum(bowl(3e-3, 5.0))
    assert found.inside
    assert np.exp(found.vertex) == pytest.approx([3e-3, 5.0], rel=1e-6)
    assert found.regret(np.log(6e-3), np.log(5.0)) == pytest.approx(0.03 * np.log(2) ** 2)


def run(params: float, place: Place, tokens: np.ndarray, losses: np.ndarray) -> Run:
    return Run(f"{params}-{place}", params, place.batch, 64, place.rate, tokens, losses)


TWO = (
    replace(SMALL, scratch_grid=Grid((-12, -8), (5, 9))),
    replace(LARGE, scratch_grid=Grid((-12, -8), (5, 9))),
)
PARAMS = {"small": 1e8, "large": 3e8}
SURFACE = Synthetic(size_coefficient=800.0, token_coefficient=900.0)
RAW_OVER_EQUIVALENT = 8.0
"""Of these worlds' checkpoints: they were trained on text that helps little."""


@dataclass(frozen=True)
class World:
    """Continued runs want what a run from scratch of the same total wants."""

    def trained(self, size: Size, place: Place, before: float, tokens: float) -> Run:
        """Losses at up to `tokens` after `before`; from scratch where that is 0."""
        n, at = PARAMS[size.name], np.geomspace(tokens / 60, tokens, 12)
        losses = [SURFACE.loss(n, before + d, place.batch, place.rate) for d in at]
        return run(n, place, at, np.array(losses))

    def measured(self) -> Measured:
        """Two sizes, four checkpoints of each, two budgets."""
        design = replace(
            FULL,
            sizes=TWO,
            scratch_tokens=30_000_000_000,
            texts=("other", "same"),
            pretraining_tokens=(8 * 10**9, 40 * 10**9),
            budgets=(3_000_000_000, 8_000_000_000),
        )
        scratch = {
            size.name: {
                place: self.trained(size, place, 0.0, design.scratch_tokens)
                for place in size.scratch_grid.places()
            }
            for size in TWO
        }
        return Measured(design, scratch, tuple(map(self._continued, design.checkpoints)))

    def _continued(self, checkpoint: Checkpoint) -> Continued:
        size, before = checkpoint.size, checkpoint.tokens / RAW_OVER_EQUIVALENT
        # The loss that the frontier reaches with as much compute: what the paper's inversion assumes.
        best, tokens = SURFACE.best_size(6.0 * PARAMS[size.name] * before)
        rate, batch = SURFACE.rate(best, tokens), SURFACE.batch(best, tokens)
        loss = SURFACE.loss(best, tokens, batch, rate)
        runs = {
            place: self.trained(size, place, before, 8e9)
            for place in Grid((-12, -7), (5, 9)).places()
        }
        return Continued(checkpoint, loss, 0.001, runs)


@pytest.fixture(scope="module")
def exact() -> Measured:
    return World().measured()


def regrets(scores: list) -> float:
    return float(np.mean([score.regret for score in scores]))


def test_where_the_papers_composition_is_exact_it_does_best(exact: Measured) -> None:
    laws, found = fit(exact), cases(exact)
    assert len(found) == 16
    cost = {
        name: regrets(score_rule(laws, found, rule, "surface")) for name, rule in RULES.items()
    }
    assert cost["paper"] < 0.5 * cost["A"]
    assert cost["paper"] < 0.5 * cost["B"]
    assert cost["paper"] < 0.0005
    scores = score_engine(laws, found, "surface")
    assert len(scores) >= 12  # the others are too far from the sweep
    assert max(abs(e) for s in scores for e in s.log_errors) < 0.3


def test_the_registered_rule_is_judged_on_no_case_it_was_found_on(exact: Measured) -> None:
    case = cases(exact)[0]
    known = replace(case, tokens=53_349.0)
    assert is_new(case)
    assert not is_new(known)
    assert is_new(replace(known, checkpoint=replace(known.checkpoint, ending="decayed")))


def test_folds_never_learn_from_what_they_judge(exact: Measured) -> None:
    found = cases(exact)
    parts = list(folds(found, by_checkpoint))
    assert len(parts) == 8
    for others, inside in parts:
        assert len(others) + len(inside) == len(found)
        assert not {by_checkpoint(c) for c in others} & {by_checkpoint(c) for c in inside}


@pytest.mark.whole
def test_the_table_has_a_row_for_every_case_and_rule(exact: Measured) -> None:
    text = "\n".join(tables(exact))
    assert text.count("| small | other |") == text.count("| large | same |") == 4 + 2
    for name in (*RULES, "control: from scratch", "shifted, checkpoint left out"):
        assert text.count(f"\n| {name} |") == 2
    assert "0 of 16 cases are left out" in text


@pytest.mark.slow
def test_a_second_call_of_the_command_trains_nothing_and_measures_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from benchmarks.transfer import __main__ as command
    from benchmarks.transfer.texts import HELD_OUT_PER_THOUSAND
    from isoloss_contract.records import DomainSource, PrepareConfig, PrepareTask
    from isoloss_trainer.termination import Interruption
    from tests.isoloss_trainer.builders import documents, make_tokenizer, write_json_lines

    texts = documents(600)
    domains = ("target", "before", "other")
    for k, name in enumerate(domains):
        write_json_lines(tmp_path / f"{name}.jsonl", texts[k::3])
    make_tokenizer(tmp_path / "tokenizer", texts[:60])
    corpus = PrepareTask(
        config=PrepareConfig(
            tokenizer=f"file://{tmp_path}/tokenizer",
            sequence_length=64,
            domains=tuple(
                DomainSource(name=n, uri=f"file://{tmp_path}/{n}.jsonl", text_field="text")
                for n in domains
            ),
            validation_documents_per_thousand=2 * HELD_OUT_PER_THOUSAND,
        ),
        store_uri=f"file://{tmp_path}/store",
    )
    tiny = Size("tiny", 16, 2, Grid((-9, -8), (4, 5)), Grid((-9, -9), (4, 4)))
    design = Design(
        sizes=(tiny,),
        scratch_tokens=17_000,
        lines=(2, 2),
        texts=("half",),
        pretraining_tokens=(2_048, 4_096),
        pretraining=Place(-8, 4),
        budgets=(9_487,),
        per_decade=4,
        validation_sequences=4,
        longer=(Checkpoint(tiny, "half", 8_192),),
    )
    measured: list[Measured] = []
    monkeypatch.setattr(command, "BRIEF", design)
    monkeypatch.setattr(Interruption, "listen", lambda self: self)
    monkeypatch.setattr(command, "provide_texts", lambda _: corpus)
    # So few runs have no laws: the tables are those of the synthetic world, above.
    monkeypatch.setattr(command, "tables", lambda found: measured.append(found) or [])
    monkeypatch.setattr(sys, "argv", ["transfer", "--brief", "--folder", str(tmp_path)])
    assert command.main() == 0
    (first,) = measured
    endings = [(c.checkpoint.tokens, c.checkpoint.ending) for c in first.continued]
    assert endings == [
        (2_048, "averaged"),
        (4_096, "averaged"),
        (4_096, "decayed"),
        (8_192, "averaged"),
    ]
    assert first.continued[0].initial_loss > first.continued[1].initial_loss
    results = sorted((tmp_path / "store" / "points").glob("*/result.json"))
    written = [os.stat(path).st_mtime_ns for path in results]
    assert command.main() == 0
    again = measured[1]
    assert [os.stat(path).st_mtime_ns for path in results] == written
    # From scratch, pre-training once, continued from three checkpoints, and from one's decayed and raw weights.
    assert len(results) == 4 + 1 + 3 * 4 + 2 * 4
    for one, other in zip(first.continued, again.continued, strict=True):
        assert one.initial_loss == other.initial_loss
        for place, found in one.runs.items():
            assert np.array_equal(found.losses, other.runs[place].losses)

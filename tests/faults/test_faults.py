"""A part of the fault matrix that takes minutes; `make faults` plays all of it."""

from collections.abc import Iterator

import pytest

from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from tests.faults.fixture import SEARCHED, WIDE
from tests.faults.harness import Harness
from tests.faults.judging_fixture import JUDGED
from tests.faults.kills import EXHAUSTIVE, JUDGE_KILLED, SEARCH, Killed, play_kills
from tests.faults.matrix import all_rows
from tests.faults.preemptions import preemption_row
from tests.faults.rows import play_row, undisturbed
from tests.faults.search_rows import FIRST_ROUND
from tests.faults.verdict import Reference

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.xdist_group("faults"),
]

ROWS = (
    "api/create/unanswered",
    "api/patch/409",
    "api/watch/410",
    "store/all/503",
    "store/half-written/ledger",
    "job/deleted-background",
    "version/ledger-newer",
)
PREEMPTIONS = 12
FEWEST_DECISIONS = 10
"""Records of steps and ledgers that follow them: the search takes at least five steps that decide something."""


@pytest.fixture(scope="module")
def harness(
    control_plane: ControlPlane,
    object_storage: ObjectStorage,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Harness]:
    made = Harness(tmp_path_factory.mktemp("harness"), control_plane, object_storage)
    yield made
    made.end()


@pytest.fixture(scope="module")
def reference(harness: Harness) -> Reference:
    """What a sweep without a fault leaves."""
    return undisturbed(harness)


@pytest.mark.whole
def test_killed_at_every_decision_a_search_ends_as_an_undisturbed_one(harness: Harness) -> None:
    """Intents with their reasons, trajectories and laws are compared."""
    (row,) = [row for row in all_rows() if row.name == "search/every-decision"]
    reference = undisturbed(harness, spec=SEARCHED)
    verdict = play_row(harness, row, reference)
    assert verdict.problems == ()
    decided = {point["intent"]["reason"] for point in reference.points.values()}
    assert decided == {"LowersRegret"}, "laws of one size are never completed"
    assert len(reference.points) > FIRST_ROUND, "some were added"
    (note,) = verdict.notes
    assert int(note.split()[0]) >= FEWEST_DECISIONS


@pytest.mark.parametrize("name", ROWS)
def test_a_fault_loses_repeats_and_charges_nothing(
    harness: Harness, reference: Reference, name: str
) -> None:
    (row,) = [row for row in all_rows() if row.name == name]
    assert play_row(harness, row, reference).problems == ()


@pytest.mark.whole
@pytest.mark.parametrize("killed", [EXHAUSTIVE, SEARCH, JUDGE_KILLED], ids=lambda each: each.rows)
def test_killed_after_its_nth_write_an_operator_is_continued_by_the_next(
    harness: Harness, killed: Killed
) -> None:
    """Of an answer, the verdict and what is published are compared, too."""
    reference = undisturbed(harness, **killed.options)
    writes = reference.writes
    verdicts = play_kills(harness, [2, 7, writes // 3, writes // 2, writes - 3], reference, killed)
    assert {verdict.row: verdict.problems for verdict in verdicts} == {
        verdict.row: () for verdict in verdicts
    }
    if killed is JUDGE_KILLED:
        assert reference.answer["conditions"]["Validated"] == ["True", "AnswerHolds"]


@pytest.mark.whole
def test_laws_that_move_the_answer_meanwhile_lose_no_point_around_it(harness: Harness) -> None:
    (row,) = [row for row in all_rows() if row.name == "judge/laws-trained-again"]
    assert play_row(harness, row, undisturbed(harness, **JUDGED)).problems == ()


@pytest.mark.whole
def test_preempted_pods_are_not_charged_and_change_no_trajectory(harness: Harness) -> None:
    reference = undisturbed(harness, spec=WIDE)
    verdict = play_row(harness, preemption_row(PREEMPTIONS), reference)
    assert verdict.problems == ()
    (note,) = verdict.notes
    assert int(note.split()[0]) >= PREEMPTIONS

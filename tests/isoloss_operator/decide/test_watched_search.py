"""What `isoloss watch` shows of a sweep in the middle of a search, and at its end."""

from __future__ import annotations

import random

from isoloss.progress.picture import document, picture
from isoloss.progress.sweep_state import SweepState, sweep_state
from isoloss.stages import Stage
from isoloss_contract.records import PointProgress
from tests.support.builders import progress
from tests.support.searched_world import SearchedWorld, searched_spec

PASSES = 400
WIDTH = 80


def watched(world: SearchedWorld) -> SweepState:
    """What the store would show of the world: running pods report that they are half way."""
    assert world.ledger is not None
    running = {j.key for j in world.jobs.values() if not j.is_finished}
    reports: dict[str, PointProgress] = {
        key: progress(world.points[key], round(0.15 * world.points[key].tokens))
        for key in running & world.points.keys()
    }
    return sweep_state(world.ledger, reports)


def test_every_stage_of_a_search_is_seen_and_the_picture_keeps_its_width() -> None:
    """The states of one search from its first pass to its last."""
    world = SearchedWorld(random.Random(1), spec=searched_spec(), kills=0.0, trouble=0.1)
    seen: set[Stage] = set()
    for _ in range(PASSES):
        plan = world.run_operator()
        assert plan is not None
        state = watched(world)
        seen |= set(state.stages)
        text = picture(state, WIDTH)
        assert max(len(line) for line in text.splitlines()) <= WIDTH
        assert len(document(state)["points"]) == len(state.ledger.points)
        if plan.status.search is not None and plan.status.search.ended:
            break
        world.let_time_pass(400.0)
    assert {Stage.NOT_CHOSEN, Stage.TRAINING, Stage.WAITING, Stage.PRUNED, Stage.FINISHED} <= seen
    over = watched(world)
    assert not over.under_way
    assert over.spent_flops < over.planned_flops

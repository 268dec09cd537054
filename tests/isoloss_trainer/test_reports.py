"""What a trainer reports while it trains."""

from pathlib import Path
from types import SimpleNamespace

from isoloss_contract import layout
from isoloss_contract.records import Claimant, PointProgress
from isoloss_contract.store import Store
from isoloss_trainer.attempt import Fence, Reporter

KEY = "a" * 32


def reported(store: Store, claimant: Claimant, began: int, tokens: int) -> PointProgress:
    """What stands in the store after a round of a pod that began and came so far."""
    fence = Fence(store, KEY, claimant)
    fence.acquire()
    task = SimpleNamespace(point=SimpleNamespace(key=KEY), claimant=claimant, tokens=1000)
    world = SimpleNamespace(is_first=True)
    attempt = SimpleNamespace(store=store, task=task, fence=fence, log=None, world=world)
    reporter = Reporter(attempt)  # type: ignore[arg-type]
    reporter.begin(began, ())
    reporter.note(tokens)
    reporter._round()
    fence.release()
    return store.read_record(layout.point_progress(KEY), PointProgress)


def test_reports_say_where_the_attempt_began_whichever_of_its_pods_writes_them(
    tmp_path: Path,
) -> None:
    """Kueue evicts a Job and admits it again as the same attempt: the cost of its first pod must not be forgotten."""
    store, first = Store(f"file://{tmp_path}"), Claimant(sweep_uid="sweep", attempt=1)
    assert reported(store, first, 0, 400).began_tokens == 0
    assert reported(store, first, 300, 700).began_tokens == 0
    second = Claimant(sweep_uid="sweep", attempt=2)
    assert reported(store, second, 600, 800).began_tokens == 600
    store.write(layout.point_progress(KEY), b"{")
    assert reported(store, second, 700, 900).began_tokens == 700

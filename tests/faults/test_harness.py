"""The harness sees what it is to see: else rows that hold would prove nothing."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, web
from yarl import URL

from tests.faults import __main__ as command
from tests.faults import injection
from tests.faults.harness import Trainings
from tests.faults.injection import Fault
from tests.faults.journal import Entry, is_final, is_trouble, most_at_once
from tests.faults.matrix import all_rows
from tests.faults.rows import REFERENCES, Row
from tests.faults.servers import writers
from tests.faults.table import Results, page
from tests.faults.verdict import Reference, Verdict
from tests.faults.writes import Writes
from tests.support.proxy import Loop, Proxy, wait_for

Json = dict[str, Any]
JOBS = "/apis/batch/v1/namespaces/team/jobs"


class Upstream:
    """A server that remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.port = 0

    async def start(self) -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(self._answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = int(site.name.rpartition(":")[2])
        return runner

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.reached.append(f"{request.method} {request.raw_path} {body.decode()}")
        return web.json_response({"body": body.decode()})


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.stop()


@pytest.fixture
def upstream(loop: Loop) -> Iterator[Upstream]:
    made = Upstream()
    runner: Any = loop.run(made.start())
    yield made
    loop.run(runner.cleanup())


@pytest.fixture
def proxy(loop: Loop, upstream: Upstream) -> Iterator[Proxy]:
    made = Proxy(f"http://127.0.0.1:{upstream.port}", loop=loop).start()
    yield made
    made.stop()


def ask(proxy: Proxy, method: str, path: str, body: str = "", seconds: float = 5) -> Any:
    """Status and JSON of an answer; None where there was none."""

    url = URL(proxy.url + path, encoded=True)

    async def call() -> Any:
        async with ClientSession() as session:
            try:
                async with asyncio.timeout(seconds):
                    async with session.request(method, url, data=body) as answer:
                        return answer.status, json.loads(await answer.read() or b"null")
            except (ClientError, TimeoutError, ValueError):
                return None

    return asyncio.run(call())


# -------------------------------------------------------------------------------------- the proxy


def test_a_fault_hits_what_it_matches_as_often_as_it_says(
    proxy: Proxy, upstream: Upstream
) -> None:
    fault = Fault(injection.of_verb("create"), injection.status(409), every=2, times=2)
    proxy.handler = fault
    got = [ask(proxy, "POST", JOBS)[0] for _ in range(6)]
    assert got == [409, 200, 409, 200, 200, 200]
    assert ask(proxy, "GET", JOBS)[0] == 200
    assert fault.hits == 2
    assert len(upstream.reached) == 5, "a call that was hit never reaches the server"


def test_an_unanswered_call_is_carried_out(proxy: Proxy, upstream: Upstream) -> None:
    proxy.handler = Fault(lambda _: True, injection.unanswered(proxy))
    assert ask(proxy, "DELETE", f"{JOBS}/a") is None
    assert set(upstream.reached) == {f"DELETE {JOBS}/a "}


@pytest.mark.parametrize("act", [injection.reset, injection.hang])
def test_a_reset_or_hanging_call_is_neither_carried_out_nor_answered(
    proxy: Proxy, upstream: Upstream, act: Any
) -> None:
    proxy.handler = Fault(lambda _: True, act)
    assert ask(proxy, "POST", JOBS, seconds=0.5) is None
    assert not upstream.reached


def test_a_truncated_answer_names_the_whole_length_and_breaks_off(proxy: Proxy) -> None:
    proxy.handler = Fault(lambda _: True, injection.truncated(proxy))
    assert ask(proxy, "GET", "/bucket/x") is None


def test_half_of_an_object_lies_on_the_disk(proxy: Proxy, tmp_path: Path) -> None:
    proxy.handler = Fault(lambda _: True, injection.half_written(tmp_path / "bucket"))
    assert ask(proxy, "PUT", "/bucket/points/a/result.json", "12345678") is None
    assert (tmp_path / "bucket/points/a/result.json").read_text() == "1234"


# ------------------------------------------------------------------------------- stopping writes


def test_writes_after_the_nth_are_held_and_dropped(proxy: Proxy, upstream: Upstream) -> None:
    writes = Writes()
    proxy.handler = writes
    writes.stop_after({"team": 2})
    assert ask(proxy, "POST", JOBS)[0] == 200
    assert writes.have_stopped() == set()
    assert ask(proxy, "PUT", "/bucket/team/sweeps/x")[0] == 200
    # It is counted once its answer is out.
    assert wait_for(lambda: writes.have_stopped() == {"team"}, 5)
    assert ask(proxy, "POST", JOBS, seconds=0.5) is None
    assert ask(proxy, "GET", JOBS)[0] == 200, "reads go on"
    assert ask(proxy, "PUT", "/apis/x/v1/namespaces/team/leases/l")[0] == 200, "so does the lease"
    assert ask(proxy, "POST", JOBS.replace("team", "other"))[0] == 200, "so do other sweeps"
    writes.drop_held()
    time.sleep(0.2)
    assert len([each for each in upstream.reached if "namespaces/team/jobs" in each]) == 2
    assert ask(proxy, "POST", JOBS)[0] == 200


def test_a_fit_that_is_no_descendant_of_its_operator_is_found_by_the_log(tmp_path: Path) -> None:
    own, other = tmp_path / "own.log", tmp_path / "other.log"
    command = [sys.executable, "-c", "input()"]
    with own.open("w") as log, subprocess.Popen(command, stdin=PIPE, stdout=log) as process:
        assert writers(own) == [process.pid]
        assert writers(other) == []
        process.kill()


# ----------------------------------------------------------------------------- what is concluded


def trained(key: str, begun: int, until: int) -> Json:
    return {"what": "end", "key": key, "from": begun, "until": until}


def test_a_point_that_goes_on_from_where_it_stopped_is_not_trained_twice() -> None:
    harnesses = (trained("a", 0, 30), trained("b", 0, 30), trained("a", 30, 100))
    assert Trainings(harnesses).repeated() == 0
    assert Trainings((*harnesses, trained("a", 30, 100))).repeated() == 1
    assert Trainings((*harnesses, trained("b", 0, 100))).repeated() == 1


def entry(version: int, kind: str, uid: str, job: str, holds: bool) -> Entry:
    return Entry(version, kind, uid, job, holds, train=True, at=0.0)


def test_a_job_holds_its_slot_until_it_and_its_pods_have_ended() -> None:
    first = [entry(1, "Job", "a", "a", True), entry(2, "Pod", "p", "a", True)]
    gone = entry(3, "Job", "a", "a", False)
    second = entry(4, "Job", "b", "b", True)
    assert most_at_once([*first, gone, second]) == 2, "a pod of the first is left"
    assert most_at_once([*first, gone, entry(3, "Pod", "p", "a", False), second]) == 1


def test_what_an_undisturbed_sweep_says_is_no_trouble() -> None:
    assert not is_trouble({"reason": "Training"})
    assert not is_trouble({"reason": "TooFewSizes"})
    assert is_trouble({"reason": "StorageUnreachable"})


def test_a_sweep_is_final_only_by_conditions_of_its_present_spec() -> None:
    reasons = {"Progressing": "Finished", "FitReady": "Fitted", "Reconciling": "UpToDate"}
    listed = [{"type": t, "reason": r, "observedGeneration": 2} for t, r in reasons.items()]
    status = {"conditions": listed}
    assert is_final({"metadata": {"generation": 2}, "status": status})
    assert not is_final({"metadata": {"generation": 3}, "status": status})


def test_the_table_names_what_failed_and_what_was_not_played(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.keep(Verdict("store/away", said=("StorageUnreachable",)))
    results.keep(Verdict("api/away", lost=1, problems=("1 points lost",)))
    results.skip("clock/ahead", "no library")
    rows = [Row("store/away", "it is away", lambda _: None)]
    text = page(Results(tmp_path / "results.json"), rows)
    assert "2 rows: 1 held, 1 failed." in text
    assert "|`store/away`|it is away|0/0/0|yes|`StorageUnreachable`|" in text
    assert "**no**: 1 points lost" in text
    assert "not played: no library" in text


def test_a_table_of_a_part_keeps_the_lines_of_all_other_rows(tmp_path: Path) -> None:
    """With when each was played; kills count as many as they are."""
    rows = [Row("store/away", "it is away", lambda _: None), Row("api/away", "", lambda _: None)]
    first = Results(tmp_path / "first.json")
    first.keep(Verdict("store/away", played="2026-01-01 10:00"))
    first.keep(Verdict("api/away", lost=1, problems=("1 points lost",), played="2026-01-01 10:05"))
    for number in (1, 2, 3):
        first.keep(Verdict(f"kill/after-00{number}", played="2026-01-01 11:00"))
    former = page(first, rows)
    assert "5 rows: 4 held, 1 failed." in former
    assert "for every N to 3|0/0/0|3 of 3|–|2026-01-01|" in former
    second = Results(tmp_path / "second.json")
    second.keep(Verdict("api/away", played="2026-02-02 10:00"))
    text = page(second, rows, former)
    assert "5 rows: 5 held, 0 failed." in text
    assert "|`api/away`||0/0/0|yes|–|2026-02-02|" in text
    kept = {line for line in former.splitlines() if "store/away" in line or "after-N" in line}
    assert len(kept) == 2
    assert kept < set(text.splitlines())


def test_a_sweep_that_ended_before_its_kill_is_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "results.json")
    results.keep_reference("kills", Reference({}, {}, writes=2))

    def played(_harness: Any, numbers: Any, _reference: Any, killed: Any) -> list[Verdict]:
        notes = {n: "after POST jobs" if n <= 2 else "ended before" for n in numbers}
        return [Verdict(killed.row(n), notes=(note,)) for n, note in notes.items()]

    monkeypatch.setattr(command, "play_kills", played)
    harness: Any = None
    command.play_every_kill(harness, command.EXHAUSTIVE, "", results, again=True)
    assert results.verdicts.keys() == {"kill/after-001", "kill/after-002"}


def test_kills_with_gaps_do_not_claim_every_number(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    for number in (1, 2, 9):
        results.keep(Verdict(f"kill/after-00{number}", played="2026-01-01 11:00"))
    assert "for 3 N to 9|0/0/0|3 of 3|" in page(results, [])


def test_the_command_has_an_undisturbed_scene_for_every_row_that_it_plays() -> None:
    """Nothing else imports the command."""
    compared = {row.reference for row in all_rows()}
    compared |= {killed.reference for killed in command.KILLED}
    assert compared == REFERENCES.keys()

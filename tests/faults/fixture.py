"""One row's fixture: an operator between two proxies, its sweep, and what became of it."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from isoloss.stored_sweeps import open_sweep
from isoloss_contract import layout
from isoloss_operator.api import SWEEP_PLURAL
from tests.faults.harness import BUCKET, FakeKubelet, Harness
from tests.faults.injection import Fault
from tests.faults.journal import is_final
from tests.faults.servers import Server, hasten_fits, kill_all, new_operator, new_server
from tests.support import operator_process
from tests.support.models import example_model
from tests.support.proxy import Handler

Json = dict[str, Any]
SWEEP = "dense"
PARALLELISM = 4
GRID = {"batchSizes": [4, 8, 16], "learningRates": ["2e-3", "4e-3"]}
POINTS = 12
"""Of the grid, for two proxies."""
WIDE_PARALLELISM = 6
WIDE_GRID = {**GRID, "learningRates": ["1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2"]}
"""30 points, whose laws can be fitted."""
WIDE: Json = {"grid": WIDE_GRID, "parallelism": WIDE_PARALLELISM}
SQUARE: Json = {
    "grid": {**GRID, "learningRates": ["2e-3", "4e-3", "8e-3"]},
    "parallelism": WIDE_PARALLELISM,
}
"""The 18 points of a sweep with the optimum inside the grid."""
SQUARE_POINTS = 18
SEARCHED: Json = {
    "proxies": [
        {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 4_000_000}
    ],
    "grid": {"batchSizes": [6, 18, 54], "learningRates": ["1.2e-3", "2.4e-3"]},
    "search": {"strategy": "Sequential", "extendGrid": {"maxPoints": 4}},
}
"""Six points of one size, which gives no laws: the search adds four, resumes points and ends where none is worth its cost."""
SHORT_SEARCH: Json = {
    **SEARCHED,
    "grid": {**SEARCHED["grid"], "batchSizes": [6, 18]},
    "search": {"strategy": "Sequential", "extendGrid": {"maxPoints": 2}},
    "parallelism": 3,
}
"""The same with four points, of which one waits for a slot, and two more: half of its writes, of every kind of each step."""


RUN_ENDED = threading.Event()
"""Set where the whole run was asked to end: what waits gives up."""


class RunEnded(Exception):
    """The run was asked to end while a fixture was played."""


class Failed(Exception):
    """A fixture could not be played to its end; the message says what was seen instead."""


@dataclass
class FaultFixture:
    """A sweep of 12 points in a namespace of its own, not applied yet."""

    names: ClassVar[tuple[str, ...]] = (SWEEP,)
    """Of the resources whose events a person looks at."""

    harness: Harness
    name: str
    server: Server
    operator: operator_process.OperatorProcess
    user: operator_process.User
    uri: str = ""
    seconds: float = 0.0
    """How long each point trains."""
    spec: Json = field(default_factory=dict)
    kubelet: FakeKubelet | None = None
    """Of this fixture alone, where it is not the harness's."""
    own_folder: Path | None = None
    restarts: int = 0
    notes: list[str] = field(default_factory=list)
    """What the row wants to tell beside the verdict."""
    more: list[Callable[[], object]] = field(default_factory=list)
    """To do at the end."""

    @property
    def namespace(self) -> str:
        return self.user.namespace

    @property
    def folder(self) -> Path:
        """The sweep's storage, as the folder behind the bucket, or itself."""
        return self.own_folder or self.harness.bucket / self.namespace

    def use_folder(self, folder: Path) -> None:
        """Keep the sweep in a folder of this machine instead of the bucket."""
        folder.mkdir(parents=True, exist_ok=True)
        self.own_folder, self.uri = folder, f"file://{folder}"

    @property
    def trainings(self) -> Any:
        return (self.kubelet or self.harness.kubelet).trainings(self.namespace)

    # ------------------------------------------------------------------------------ what is done

    def inject_api(self, fault: Fault) -> Fault:
        """Put a fault before the API server."""
        self.server.api_chain.handlers.append(fault)
        return fault

    def inject_store(self, fault: Fault) -> Fault:
        """Put a fault before the store."""
        self.server.store_chain.handlers.append(fault)
        return fault

    def inject_writes(self, writes: Handler) -> None:
        """Put a counter of writes before both."""
        self.server.api_chain.handlers.append(writes)
        self.server.store_chain.handlers.append(writes)

    def apply(self, **changes: Any) -> Json:
        """Apply the sweep, with changes of its spec."""
        template = operator_process.env_template(SYNTHETIC_SECONDS=str(self.seconds))
        values = {
            "grid": GRID,
            "parallelism": PARALLELISM,
            "podTemplate": template,
            "storage": {"uri": self.uri},
            **self.spec,
            **changes,
        }
        return self.user.apply_sweep(operator_process.sweep_manifest(SWEEP, self.uri, **values))

    def touch(self) -> None:
        """Change nothing that matters, so that the operator looks at the sweep."""
        self.user.touch(SWEEP_PLURAL, SWEEP)

    def start(self) -> None:
        """Start the operator and apply what the row is about, once all that it needs is there."""
        self.start_prepared()
        self.begin()

    def start_prepared(self) -> None:
        """Start the operator and wait for what must be there before the row begins."""
        self.operator.start()
        self.prepare()
        self.wait(self.is_prepared, "what the row begins with", 240)

    def prepare(self) -> None:
        """Apply what must be there before the row begins: nothing."""

    def is_prepared(self) -> bool:
        """Whether that is there."""
        return True

    def begin(self) -> None:
        """Apply what the row is about."""
        self.apply()

    def sweep(self) -> Json:
        """The sweep as the API server has it."""
        return self.user.sweep(SWEEP)

    def sweep_folder(self) -> Path:
        """Where the operator keeps the sweep's files."""
        return self.folder / "sweeps" / f"{SWEEP}-{self.sweep()['metadata']['uid']}"

    def supervise(self) -> None:
        """Start the operator again where it has ended, as Kubernetes does."""
        hasten_fits(self.operator)
        process = self.operator.process
        if process is not None and process.poll() is not None:
            self.restarts += 1
            self.operator.start()

    def wait(self, holds: Callable[[], object], what: str, seconds: float = 60) -> None:
        """Wait under supervision, on a busy machine longer by `patience`. Raises Failed."""
        seconds *= self.harness.patience
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise Failed(f"waited {seconds:.0f} s for {what}; {self.seen()}")
            self.supervise()
            _pause(0.1)

    def wait_trained(self, points: int, seconds: float = 60) -> None:
        """Wait until so many points have been trained."""
        self.wait(
            lambda: len(self.trainings.counted("end")) >= points, f"{points} points", seconds
        )

    def rest(self, seconds: float) -> None:
        """Let time pass under supervision."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.supervise()
            _pause(0.2)

    def finish(self, seconds: float = 90) -> None:
        """Wait until the sweep says that it is done and its laws are final. Raises Failed."""
        self.wait(self.is_finished, "the sweep to be finished", seconds)

    def is_finished(self) -> bool:
        """Whether all points have their outcome and the laws, or their refusal, are final."""
        return is_final(self.sweep())

    def seen(self) -> str:
        """The sweep's conditions now, for a message."""
        try:
            body = self.sweep()
        except Exception as error:  # noqa: BLE001 (whatever the API server says is the message)
            return f"no sweep: {error}"[:200]
        found = operator_process.conditions(body)
        shown = {kind: found.get(kind, {}).get("reason", "-") for kind in ("Ready", "Progressing")}
        points = body.get("status", {}).get("points", {})
        counts = {name: value for name, value in points.items() if value}
        message = found.get("Ready", {}).get("message", "")
        return f"conditions {shown}, points {counts}, Ready says {message!r}"[:600]

    def ledger_file(self) -> Path:
        """The ledger that the row is about."""
        return Path(layout.ledger_in(f"{self.sweep_folder()}"))

    def most_allowed(self, _owner: str) -> int:
        """Most training Jobs at a time of an owner, by its uid."""
        return int(self.spec.get("parallelism", PARALLELISM))

    def answer(self) -> Json:
        """What must not depend on the way beside ledger and laws: nothing."""
        return {}

    def ledger_points(self) -> dict[str, Any]:
        """The stored ledger's records, by name: keys differ between fixtures, which have a corpus each."""
        stored = open_sweep(f"file://{self.sweep_folder()}")
        return {record.name: record for record in stored.ledger.points}

    def laws(self) -> Json:
        """The stored laws."""
        found: Json = json.loads((self.sweep_folder() / "laws.json").read_text())
        return found

    def end(self) -> None:
        """Stop the row's processes; what they left in the servers stays."""
        for each in reversed(self.more):
            with suppress(Exception):
                each()
        if self.operator.is_running():
            kill_all(self.operator)
        if self.kubelet is not None:
            self.kubelet.end()
        with suppress(Exception):
            self.server.end()


def _pause(seconds: float) -> None:
    if RUN_ENDED.wait(seconds):
        raise RunEnded


def make_fixture(
    *parts: Any, kind: type[FaultFixture] | None = None, **options: Any
) -> FaultFixture:
    """A fixture of a kind: of a sweep where nothing else is said."""
    return (kind or FaultFixture)(*parts, **options)


def new_fixture(
    harness: Harness,
    name: str,
    *,
    environment: Mapping[str, str] | None = None,
    own_kubelet: bool = False,
    own_home: bool = False,
    **options: Any,
) -> FaultFixture:
    """A fixture whose operator has not started and whose sweep is not applied.

    With a home of its own, the operator does not live in the sweep's namespace.
    """
    namespace = harness.new_namespace(name, played=not own_kubelet)
    served = [namespace]
    if own_home:
        served = [harness.new_namespace("home"), namespace]
    operator_process.apply_account(harness.api_client, served[0], served)
    server = new_server(harness)
    folder = harness.directory / "operators" / namespace
    operator = new_operator(harness, server, served, folder, environment)
    user = operator_process.User(harness.api_client, namespace)
    uri = f"s3://{BUCKET}/{namespace}"
    fixture = make_fixture(harness, name, server, operator, user, uri, **options)
    if own_kubelet:
        fixture.kubelet = FakeKubelet(harness, namespace, namespace)
    return fixture

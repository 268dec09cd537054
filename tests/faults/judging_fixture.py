"""The fixture of an answer and the sweep around it that judges it: the sweep of the laws is ready before it begins."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kubernetes import client

from isoloss_contract import layout
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.store import Store
from isoloss_operator.api import PREDICTION_PLURAL, SWEEP_PLURAL
from tests.faults.fixture import SQUARE, SQUARE_POINTS, SWEEP, FaultFixture, Json
from tests.faults.journal import has_finished, is_judged
from tests.support.operator_process import (
    conditions,
    env_template,
    prediction_manifest,
    sweep_manifest,
)
from tests.support.published_configs import TOY_CHECKPOINT

PREDICTION, JUDGE, CONFIG_MAP = "target", "judging", "answer"
AROUND, AT_ONCE = 5, 2
TOKENS = 4_000_000
ANSWER = (
    "initialLoss",
    "targetLoss",
    "totalFlops",
    "learningRate",
    "batchSize",
    "batchSizeTokens",
    "extrapolation",
    "secondOpinions",
    "warnings",
    "refined",
)
VERDICT = ("places", "beatsNeighbours", "regret", "direction")
"""Fields of the status that must not depend on the way."""


@dataclass
class JudgingFixture(FaultFixture):
    """A prediction, the sweep of 18 points that it asks, and one of five points around its answer, two at a time."""

    names: ClassVar[tuple[str, ...]] = (SWEEP, PREDICTION, JUDGE)
    sweep_seconds: float = 0.0
    """How long each point of the laws' sweep trains; `seconds` is for those around the answer."""
    uid: str = ""
    """Of the sweep around the answer, once it is applied."""

    def prepare(self) -> None:
        """Put the checkpoint into the store and apply the sweep of the laws."""
        checkpoint = self.folder / "models" / "loss-2.6"
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.json").write_text(json.dumps(TOY_CHECKPOINT))
        (checkpoint / "model.safetensors").write_text("weights")
        self.apply()

    def is_prepared(self) -> bool:
        """Whether that sweep has its final laws."""
        return super().is_finished()

    def begin(self) -> None:
        """Apply the sweep that judges and the prediction, which it waits for."""
        self.apply_judge()
        self.apply_prediction()

    def apply(self, **changes: Any) -> Json:
        """Apply the sweep of the laws, with changes of its spec."""
        template = env_template(SYNTHETIC_SECONDS=str(self.sweep_seconds))
        return super().apply(**{"podTemplate": template, **changes})

    def apply_judge(self, **changes: Any) -> None:
        """Apply the sweep around the answer, with changes of its spec."""
        near = {
            "name": "near",
            "checkpoint": {"uri": f"{self.uri}/models/loss-2.6"},
            "tokens": TOKENS,
            "grid": {"around": {"prediction": PREDICTION, "factor": "2"}},
        }
        values = {
            "proxies": [near],
            "parallelism": AT_ONCE,
            "podTemplate": env_template(SYNTHETIC_SECONDS=str(self.seconds)),
            "storage": {"uri": self.uri},
            **changes,
        }
        manifest = sweep_manifest(JUDGE, self.uri, **values)
        del manifest["spec"]["grid"], manifest["spec"]["design"]
        self.uid = self.user.apply_sweep(manifest)["metadata"]["uid"]

    def apply_prediction(self, **changes: Any) -> None:
        """Apply the prediction, with changes of its spec; what is None there is left out."""
        spec = {
            "checkpoint": {"uri": f"{self.uri}/models/loss-2.6"},
            "publish": {"configMapName": CONFIG_MAP},
            "validation": {"sweepRef": {"name": JUDGE}},
            **changes,
        }
        asked = {name: value for name, value in spec.items() if value is not None}
        self.user.apply_prediction(prediction_manifest(PREDICTION, SWEEP, **asked))

    def prediction(self) -> Json:
        """The prediction as the API server has it."""
        return self.user.prediction(PREDICTION)

    def reason(self, body: Json, condition: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = conditions(body).get(condition, {})
        return found.get("status", ""), found.get("reason", "")

    def touch(self) -> None:
        """Change nothing that matters, so that the operator looks at all three."""
        super().touch()
        self.user.touch(PREDICTION_PLURAL, PREDICTION)
        self.user.touch(SWEEP_PLURAL, JUDGE)

    def is_training(self) -> bool:
        """Whether a point around the answer has a pod."""
        labels = f"isoloss.dev/owner-uid={self.uid},isoloss.dev/task=train"
        jobs = client.BatchV1Api(self.harness.api_client).list_namespaced_job(
            self.namespace, label_selector=labels
        )
        return any(job.status.active for job in jobs.items)

    def around_trained(self) -> int:
        """How many points around the answer have been trained to their end."""
        return len(self.trainings.counted("end")) - SQUARE_POINTS

    def wait_trained(self, points: int, seconds: float = 60) -> None:
        """Wait until so many points around the answer have been trained."""
        self.wait(lambda: self.around_trained() >= points, f"{points} points", seconds)

    def is_finished(self) -> bool:
        """Whether both sweeps are, and the answer of the present laws is judged."""
        judge = self.user.sweep(JUDGE)
        return super().is_finished() and has_finished(judge) and is_judged(self.prediction())

    def seen(self) -> str:
        """The conditions now, for a message."""
        try:
            found, judge = conditions(self.prediction()), conditions(self.user.sweep(JUDGE))
        except Exception as error:  # noqa: BLE001 (whatever the API server says is the message)
            return f"no prediction: {error}; {super().seen()}"[:600]
        shown = {kind: each["reason"] for kind, each in found.items()}
        ready = judge.get("Ready", {})
        words = f"prediction {shown}; {JUDGE} {ready.get('reason')}: {ready.get('message')!r}"
        return f"{words}; sweep: {super().seen()}"[:900]

    def ledger_file(self) -> Path:
        """That of the points around the answer."""
        return self.folder / layout.ledger_in(layout.sweep_folder(JUDGE, self.uid))

    def ledger_points(self) -> dict[str, Any]:
        """The records of both sweeps, by name."""
        store = Store(f"file://{self.folder}")
        around = read_ledger(store, layout.sweep_folder(JUDGE, self.uid)).points
        return {**super().ledger_points(), **{record.name: record for record in around}}

    def most_allowed(self, owner: str) -> int:
        """Most training Jobs at a time."""
        return AT_ONCE if owner == self.uid else super().most_allowed(owner)

    def answer(self) -> Json:
        """The answer, the verdict with the figures behind it, the conditions, and what is published."""
        body = self.prediction()
        status, found = body["status"], conditions(body)
        published = client.CoreV1Api(self.harness.api_client).read_namespaced_config_map(
            CONFIG_MAP, self.namespace
        )
        return {
            **{name: status.get(name) for name in ANSWER},
            **{name: status["validation"].get(name) for name in VERDICT},
            "conditions": {k: [v["status"], v["reason"]] for k, v in sorted(found.items())},
            CONFIG_MAP: dict(published.data),
        }


JUDGED: Json = {"kind": JudgingFixture, "spec": SQUARE}
"""Options of new_fixture."""

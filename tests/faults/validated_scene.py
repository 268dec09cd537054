"""The scene of a prediction whose answer is validated: its sweep is ready before it begins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kubernetes import client

from isoloss_contract import layout
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.store import Store
from isoloss_operator.api import PREDICTION_PLURAL
from tests.faults.journal import is_judged
from tests.faults.scene import SWEEP, Json, Scene
from tests.support.operator_process import conditions, env_template, prediction_manifest
from tests.support.published_configs import TOY_CHECKPOINT

PREDICTION = "target"
CONFIG_MAP = "answer"
PROBES, PROBES_AT_ONCE = 5, 2
SQUARE: Json = {
    "grid": {"batchSizes": [4, 8, 16], "learningRates": ["2e-3", "4e-3", "8e-3"]},
    "parallelism": 6,
}
"""The 18 points of a sweep with the optimum inside the grid."""
SQUARE_POINTS = 18
ANSWER = (
    "initialLoss",
    "targetLoss",
    "totalFlops",
    "learningRate",
    "batchSize",
    "batchSizeTokens",
    "extrapolation",
    "variants",
    "secondOpinions",
    "warnings",
    "refined",
)
VERDICT = ("places", "tokens", "points", "beatsNeighbours", "regret", "direction")
"""Fields of the status that must not depend on the way."""


@dataclass
class ValidatedScene(Scene):
    """A prediction of five probes, two at a time, and the sweep of 18 points that it asks."""

    names: ClassVar[tuple[str, ...]] = (SWEEP, PREDICTION)
    sweep_seconds: float = 0.0
    """How long each point of the sweep trains; `seconds` is for the probes."""
    uid: str = ""
    """Of the prediction, once it is applied."""

    def prepare(self) -> None:
        """Put the checkpoint into the store and apply the sweep."""
        checkpoint = self.folder / "models" / "loss-2.6"
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.json").write_text(json.dumps(TOY_CHECKPOINT))
        (checkpoint / "model.safetensors").write_text("weights")
        self.apply()

    def is_prepared(self) -> bool:
        """Whether the sweep has its final laws."""
        return super().is_finished()

    def begin(self) -> None:
        """Apply the prediction."""
        self.apply_prediction()

    def apply(self, **changes: Any) -> Json:
        """Apply the sweep, with changes of its spec."""
        template = env_template(PLANTED_SECONDS=str(self.sweep_seconds))
        return super().apply(**{"podTemplate": template, **changes})

    def validation(self, **changes: Any) -> Json:
        """What the prediction asks of its probes."""
        template = env_template(PLANTED_SECONDS=str(self.seconds))
        asked = {"tokensShare": "0.5", "parallelism": PROBES_AT_ONCE, "podTemplate": template}
        return {**asked, **changes}

    def apply_prediction(self, **changes: Any) -> None:
        """Apply the prediction, with changes of its spec; what is None there is left out."""
        spec = {
            "checkpoint": {"uri": f"{self.uri}/models/loss-2.6"},
            "publish": {"configMapName": CONFIG_MAP},
            "validation": self.validation(),
            **changes,
        }
        asked = {name: value for name, value in spec.items() if value is not None}
        manifest = prediction_manifest(PREDICTION, SWEEP, **asked)
        self.uid = self.user.apply_prediction(manifest)["metadata"]["uid"]

    def prediction(self) -> Json:
        """The prediction as the API server has it."""
        return self.user.prediction(PREDICTION)

    def said(self, condition: str) -> tuple[str, str]:
        """Status and reason of a condition of the prediction, of its present spec alone."""
        found = conditions(self.prediction()).get(condition, {})
        return found.get("status", ""), found.get("reason", "")

    def touch(self) -> None:
        """Change nothing that matters, so that the operator looks at both."""
        super().touch()
        self.user.touch(PREDICTION_PLURAL, PREDICTION)

    def is_training(self) -> bool:
        """Whether a probe has a pod."""
        labels = f"isoloss.dev/owner-uid={self.uid},isoloss.dev/task=train"
        jobs = client.BatchV1Api(self.stage.api_client).list_namespaced_job(
            self.namespace, label_selector=labels
        )
        return any(job.status.active for job in jobs.items)

    def probes_trained(self) -> int:
        """How many probes have been trained to their end."""
        return len(self.trainings.counted("end")) - SQUARE_POINTS

    def wait_trained(self, points: int, seconds: float = 60) -> None:
        """Wait until so many probes have been trained."""
        self.wait(lambda: self.probes_trained() >= points, f"{points} probes", seconds)

    def is_finished(self) -> bool:
        """Whether the sweep is, and the answer of its present laws is judged."""
        return super().is_finished() and is_judged(self.prediction())

    def seen(self) -> str:
        """The conditions now, for a message."""
        try:
            found = conditions(self.prediction())
        except Exception as error:  # noqa: BLE001 (whatever the API server says is the message)
            return f"no prediction: {error}; {super().seen()}"[:600]
        shown = {kind: each["reason"] for kind, each in found.items()}
        message = found.get("Validated", {}).get("message", "")
        return f"prediction {shown}, Validated says {message!r}; sweep: {super().seen()}"[:900]

    def ledger_folder(self) -> Path:
        """Where the ledger of the probes is."""
        return self.folder / layout.prediction_folder(PREDICTION, self.uid)

    def ledger_file(self) -> Path:
        """That of the probes."""
        return self.folder / layout.ledger_in(layout.prediction_folder(PREDICTION, self.uid))

    def ledger_points(self) -> dict[str, Any]:
        """The records of points and probes, by name."""
        store = Store(f"file://{self.folder}")
        probes = read_ledger(store, layout.prediction_folder(PREDICTION, self.uid)).points
        return {**super().ledger_points(), **{record.name: record for record in probes}}

    def most_allowed(self, owner: str) -> int:
        """Most training Jobs at a time: of the prediction those of its validation."""
        return PROBES_AT_ONCE if owner == self.uid else super().most_allowed(owner)

    def answer(self) -> Json:
        """The answer, the verdict with the figures behind it, the conditions, and what is published."""
        body = self.prediction()
        status, found = body["status"], conditions(body)
        published = client.CoreV1Api(self.stage.api_client).read_namespaced_config_map(
            CONFIG_MAP, self.namespace
        )
        return {
            **{name: status.get(name) for name in ANSWER},
            **{name: status["validation"].get(name) for name in VERDICT},
            "conditions": {k: [v["status"], v["reason"]] for k, v in sorted(found.items())},
            CONFIG_MAP: dict(published.data),
        }


ANSWERED: Json = {"kind": ValidatedScene, "spec": SQUARE}
"""Options of new_scene."""

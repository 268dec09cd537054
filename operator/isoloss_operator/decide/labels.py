"""What a Job is for, and the labels by which it is found again."""

from __future__ import annotations

from typing import Literal

JobKind = Literal["prepare", "train", "evaluate"]

LABEL_OWNER_UID = "isoloss.dev/owner-uid"
"""UID of the ScalingSweep or HyperparamPrediction: Jobs are listed by it."""
LABEL_KIND = "isoloss.dev/task"
"""prepare, train or evaluate."""
LABEL_KEY = "isoloss.dev/key"
"""Content key of the point, the preparation or the evaluation."""
LABEL_ATTEMPT = "isoloss.dev/attempt"
LABEL_STORE = "isoloss.dev/store"
"""Hash of the store's URI: a Job that writes elsewhere no longer belongs to the sweep."""
LABEL_GENERATION = "isoloss.dev/generation"
"""Generation of the spec that asked for the Job."""
LABEL_RECORDED = "isoloss.dev/recorded"
"""On Jobs whose outcome is recorded: most LISTs leave them out."""
LABEL_SWEEP = "isoloss.dev/sweep"
"""Name of the owner if it fits a label; for people."""

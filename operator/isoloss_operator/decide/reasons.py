"""The types of our conditions, every reason that a condition or event can give, and what a condition says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from isoloss.laws import RefusalReason
from isoloss_operator.api import Condition

ACCEPTED = "Accepted"
DATA_READY = "DataReady"
PROGRESSING = "Progressing"
FIT_READY = "FitReady"
EVALUATED = "Evaluated"
READY = "Ready"
STALE = "Stale"
VALIDATED = "Validated"
SUSPENDED = "Suspended"
STALLED = "Stalled"
RECONCILING = "Reconciling"


class Reason(StrEnum):
    """Why a condition has its status. Refusals of the laws add their own closed list (RefusalReason)."""

    NOT_YET_KNOWN = "NotYetKnown"
    """What it depends on has not been checked yet."""
    NOTHING_WRONG = "NothingWrong"
    """The problem that this condition reports does not exist."""

    # Accepted
    ACCEPTED = "Accepted"
    """The spec is valid and everything it names may be used."""
    INVALID_SPEC = "InvalidSpec"
    """The spec contradicts itself or the corpus; the message names each field."""
    STORAGE_NOT_ALLOWED = "StorageNotAllowed"
    """The operator's configuration does not allow this storage to this namespace."""
    STORAGE_UNREACHABLE = "StorageUnreachable"
    """The store did not answer; retried."""
    STORAGE_NOT_WRITABLE = "StorageNotWritable"
    """The store refuses the ledger, without which nothing starts; retried."""
    LEDGER_NEWER = "LedgerNewer"
    """A newer operator wrote the ledger in an unknown format; nothing is touched."""
    REQUEST_REFUSED = "RequestRefused"
    """The API server refuses a request of the operator (rights, quota, admission); retried."""
    API_SERVER_UNAVAILABLE = "APIServerUnavailable"
    """The API server failed to answer a request several times in a row; retried."""
    INTERNAL_ERROR = "InternalError"
    """A pass failed unexpectedly; the operator's log has the traceback; retried."""
    BAD_CONFIGURATION = "BadConfiguration"
    """A pod refused its configuration; nothing starts until the spec changes."""
    JOB_REFUSED = "JobRefused"
    """The API server refused a Job (pod template, quota, policy); retried."""

    # DataReady
    DATA_PREPARED = "DataPrepared"
    """The tokenized corpus is complete."""
    PREPARING_DATA = "PreparingData"
    """The prepare Job is running or about to start."""
    BAD_DATA = "BadData"
    """Corpus, tokenizer or checkpoint is unusable for a reason not listed below."""
    PREPARATION_FAILED = "PreparationFailed"
    """The prepare Job failed more often than failurePolicy.retriesPerPoint allows."""
    TEXT_FIELD_MISSING = "TextFieldMissing"
    """More than 1% of a domain's documents (any, with data.badDocuments: Refuse), or a table, lack its textField."""
    NO_FILES = "NoFiles"
    """No file matches a domain's uri."""
    UNREADABLE_FILE = "UnreadableFile"
    """A file of the corpus cannot be read or decompressed."""
    BAD_JSON = "BadJson"
    """More than 1% of a domain's documents (any, with data.badDocuments: Refuse), or a list, are not JSON."""
    NOT_UTF8 = "NotUtf8"
    """More than 1% of a domain's documents (any, with data.badDocuments: Refuse) are not UTF-8."""
    DOCUMENT_TOO_LARGE = "DocumentTooLarge"
    """A document is larger than the trainer accepts."""
    TOO_FEW_DOCUMENTS = "TooFewDocuments"
    """A domain leaves too few documents for training or validation."""
    TOKENIZER_NOT_LOADABLE = "TokenizerNotLoadable"
    """The tokenizer cannot be loaded."""
    TOKENIZER_LOSES_TEXT = "TokenizerLosesText"
    """The tokenizer drops, does not know or makes equal to others more than 1% of the bytes of the held-out text."""
    DATA_CHANGED = "DataChanged"
    """The tokenized corpus in the store is not the one that the sweep's points were trained on."""
    CHECKPOINT_CHANGED = "CheckpointChanged"
    """A checkpoint that a size continues was replaced after points were trained from it."""
    MANIFEST_UNREADABLE = "ManifestUnreadable"
    """The manifest of the prepared data is damaged; the corpus is prepared again."""

    # Progressing, and through it Ready
    TRAINING = "Training"
    """Points are training or about to start."""
    SEARCHING = "Searching"
    """The search decides which points train next, and for how many tokens."""
    SEARCH_STEP = "SearchStep"
    """The search chose or added points, or is over; the message says which and why."""
    FITTING = "Fitting"
    """All points are done and the laws are being fitted."""
    FINISHED = "Finished"
    """All points are done, or the search is over; the message says why it ended."""
    WAITING_TO_RETRY = "WaitingToRetry"
    """No Job is running; failed or interrupted attempts are retried after a delay."""
    QUEUED = "Queued"
    """All Jobs are waiting for Kueue to admit them."""
    WORKLOAD_DEACTIVATED = "WorkloadDeactivated"
    """Kueue will never admit the Jobs: their Workloads have spec.active false."""
    SECRET_MISSING = "SecretMissing"
    """Pods are waiting for a Secret or ConfigMap that does not exist."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """Pods are waiting for an image that cannot be pulled."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room for the pods."""
    POD_WAITING = "PodWaiting"
    """Pods cannot start for another reason, such as a quota or a volume."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """spec.budget is spent, or the remaining points do not fit into it; the laws use the points done."""
    TOO_MANY_FAILED_POINTS = "TooManyFailedPoints"
    """More points failed for good than failurePolicy.maxFailedPoints allows; nothing starts."""

    PREDICTION_NOT_FOUND = "PredictionNotFound"
    """grid.around of a size names no HyperparamPrediction in this namespace."""
    PREDICTION_NOT_READY = "PredictionNotReady"
    """The HyperparamPrediction that grid.around of a size names has no answer yet."""

    # FitReady
    NOTHING_TO_FIT = "NothingToFit"
    """No laws are fitted: all points lie around the answers of predictions."""
    FITTED = "Fitted"
    """The laws are fitted to all points."""
    PROVISIONAL = "Provisional"
    """The laws are fitted to the points done so far."""
    NO_RESULTS = "NoResults"
    """No point has produced a result."""
    FIT_FAILED = "FitFailed"
    """The fit could not run; retried."""
    LAWS_REFUSED = "LawsRefused"
    """The data do not support the laws; the message says why."""

    # Suspended
    SUSPENDED = "Suspended"
    """spec.suspend is true and no Job is running."""
    SUSPENDING = "Suspending"
    """spec.suspend is true: Jobs are being stopped."""
    NOT_SUSPENDED = "NotSuspended"
    """spec.suspend is false."""

    # Reconciling
    UP_TO_DATE = "UpToDate"
    """Up to date: no Job is being started or stopped that Ready depends on."""
    CONVERGING = "Converging"
    """Jobs are being started or stopped."""

    # HyperparamPrediction
    PREDICTED = "Predicted"
    """The status holds the prediction."""
    SWEEP_NOT_FOUND = "SweepNotFound"
    """spec.sweepRef or spec.validation.sweepRef names no ScalingSweep in this namespace."""
    SWEEP_NOT_READY = "SweepNotReady"
    """The sweep has no final laws yet."""
    SWEEP_INVALID = "SweepInvalid"
    """The sweep's own spec is refused."""
    DATA_REMOVED = "DataRemoved"
    """The tokenized corpus behind the laws is gone, and a checkpoint is still to be measured on it."""
    LAWS_UNREADABLE = "LawsUnreadable"
    """The sweep's laws could not be read from the store."""
    EVALUATING = "Evaluating"
    """The checkpoint's initial loss is being measured."""
    EVALUATED = "Evaluated"
    """The checkpoint's initial loss is known."""
    INITIAL_LOSS_GIVEN = "InitialLossGiven"
    """spec.initialLoss is used; nothing is measured."""
    NOT_A_CHECKPOINT = "NotACheckpoint"
    """spec.checkpoint.uri holds no model that can be loaded."""
    WEIGHTS_MISSING = "WeightsMissing"
    """The checkpoint lacks weights that its config.json calls for."""
    WEIGHTS_UNEXPECTED = "WeightsUnexpected"
    """The checkpoint has weights that its config.json has no place for."""
    NON_FINITE_WEIGHTS = "NonFiniteWeights"
    """The checkpoint has weights that are not finite."""
    NON_FINITE_LOSS = "NonFiniteLoss"
    """The checkpoint's loss is not finite."""
    REMOTE_CODE_REFUSED = "RemoteCodeRefused"
    """The checkpoint needs code of its own, which is never run."""
    TOKENIZER_DIFFERS = "TokenizerDiffers"
    """The checkpoint's tokenizer cannot be compared with the sweep's."""
    EVALUATION_FAILED = "EvaluationFailed"
    """The evaluate Job failed more often than the sweep's failurePolicy.retriesPerPoint allows."""
    UP_TO_DATE_WITH_SWEEP = "UpToDateWithSweep"
    """The answer is computed from the sweep's current laws."""
    SWEEP_CHANGED = "SweepChanged"
    """The sweep changed; the answer is computed from its former laws."""
    CONFIG_MAP_TAKEN = "ConfigMapTaken"
    """A ConfigMap of the wanted name belongs to another owner; nothing is published."""
    CONFIG_MAP_REFUSED = "ConfigMapRefused"
    """The API server refuses the ConfigMap (name, quota, rights); the answer is not published."""

    # Validated
    ANSWER_AWAITED = "AnswerAwaited"
    """There is no current answer to judge, or the judging sweep has not placed points around it yet."""
    CHECKPOINT_DIFFERS = "CheckpointDiffers"
    """The sweep that spec.validation names continues another checkpoint, or other files of it."""
    CORPUS_DIFFERS = "CorpusDiffers"
    """The sweep that spec.validation names is trained on another corpus than the laws."""
    LOSS_DIFFERS = "LossDiffers"
    """The sweep that spec.validation names and the laws are about different losses."""
    OPTIMIZER_DIFFERS = "OptimizerDiffers"
    """The sweep that spec.validation names trains with another optimizer than the laws'."""
    ANSWER_HOLDS = "AnswerHolds"
    """The answer loses no more than spec.validation.tolerance, with a probability of 80% by these points alone."""
    BETTER_ANSWER_NEARBY = "BetterAnswerNearby"
    """The answer loses more than spec.validation.tolerance, with the same probability, and a better one
    lies on the side that the message names."""
    ANSWER_DIVERGED = "AnswerDiverged"
    """Training at the answer diverged."""
    WITHIN_NOISE = "WithinNoise"
    """The points cannot show whether the answer holds."""
    NO_MINIMUM = "NoMinimum"
    """The neighbours on both sides of the answer have lower losses than the answer."""
    TOO_FEW_PROBES = "TooFewProbes"
    """Fewer than three points have a loss, or none of them is at the answer."""


TRAINER_REASONS: Final = frozenset(
    {
        Reason.TEXT_FIELD_MISSING,
        Reason.NO_FILES,
        Reason.UNREADABLE_FILE,
        Reason.BAD_JSON,
        Reason.NOT_UTF8,
        Reason.DOCUMENT_TOO_LARGE,
        Reason.TOO_FEW_DOCUMENTS,
        Reason.TOKENIZER_NOT_LOADABLE,
        Reason.TOKENIZER_LOSES_TEXT,
        Reason.NOT_A_CHECKPOINT,
        Reason.WEIGHTS_MISSING,
        Reason.WEIGHTS_UNEXPECTED,
        Reason.NON_FINITE_WEIGHTS,
        Reason.NON_FINITE_LOSS,
        Reason.REMOTE_CODE_REFUSED,
        Reason.TOKENIZER_DIFFERS,
    }
)
"""Codes of the trainer that are reasons too. Pods run what a tenant likes: any other code is text."""

AnyReason = Reason | RefusalReason


def known_reason(text: str) -> AnyReason:
    """The reason in an observed condition; NotYetKnown if it is none of ours."""
    for reasons in (Reason, RefusalReason):
        if text in reasons.__members__.values():
            return reasons(text)
    return Reason.NOT_YET_KNOWN


ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Finding:
    """What a condition says, before it is dated: that it does not hold, unless it says otherwise."""

    reason: AnyReason
    message: str
    status: ConditionStatus = "False"
    stalled: bool = False
    """Nothing will happen until a user changes something."""

    @classmethod
    def of(cls, condition: Condition) -> Finding:
        """What an observed condition said."""
        return cls(known_reason(condition.reason), condition.message, condition.status)

    @property
    def holds(self) -> bool:
        """Whether the condition is True."""
        return self.status == "True"


NOT_CHECKED: Final = Finding(Reason.NOT_YET_KNOWN, "Not checked yet.", "Unknown")

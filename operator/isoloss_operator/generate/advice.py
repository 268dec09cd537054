"""What to do about each reason: the written part of the generated reference page."""

from collections.abc import Mapping
from typing import Final

from isoloss.laws import RefusalReason as Refused
from isoloss_operator.decide.jobs import FailureClass as Failed
from isoloss_operator.decide.reasons import Reason

NOTHING: Final = "Nothing."
_TRAINER_MESSAGE: Final = "Correct the named file."

ADVICE: Final[Mapping[Reason, str]] = {
    Reason.NOT_YET_KNOWN: NOTHING,
    Reason.NOTHING_WRONG: NOTHING,
    Reason.ACCEPTED: NOTHING,
    Reason.INVALID_SPEC: "Correct the named fields. Running Jobs continue meanwhile, beyond any budget; `spec.suspend` "
    "stops them.",
    Reason.STORAGE_NOT_ALLOWED: "Use a prefix that the message lists, or have one added to the chart's `storage.allowedPrefixes`.",
    Reason.STORAGE_UNREACHABLE: "Check the store, the bucket's name and the operator's credentials.",
    Reason.STORAGE_NOT_WRITABLE: "The message has the store's words. A store without conditional writes cannot be used; else check the quota "
    "and the operator's write permission under `sweeps/` and `predictions/`.",
    Reason.LEDGER_NEWER: "Upgrade the operator.",
    Reason.REQUEST_REFUSED: "Compare the operator's Role with the chart's; check the namespace's quotas and admission policies. If a status is "
    "refused (422), apply the CRDs of the operator's version.",
    Reason.API_SERVER_UNAVAILABLE: "Check the API server's health and load.",
    Reason.INTERNAL_ERROR: "Report the traceback in the operator's log. Other resources are not affected.",
    Reason.BAD_CONFIGURATION: "Correct the named field.",
    Reason.JOB_REFUSED: "Correct the pod template, or make room in the quota.",
    Reason.DATA_PREPARED: NOTHING,
    Reason.PREPARING_DATA: "Nothing; the prepare pod's log shows the progress.",
    Reason.BAD_DATA: _TRAINER_MESSAGE,
    Reason.PREPARATION_FAILED: "Read the message and the last prepare pod's log. A changed pod template or corpus resets the retries.",
    Reason.TEXT_FIELD_MISSING: "Correct the domain's `textField`, or the documents.",
    Reason.NO_FILES: "Correct the domain's `uri`, or upload the files.",
    Reason.UNREADABLE_FILE: _TRAINER_MESSAGE,
    Reason.BAD_JSON: _TRAINER_MESSAGE,
    Reason.NOT_UTF8: "Convert the named file to UTF-8.",
    Reason.DOCUMENT_TOO_LARGE: "Split the named document.",
    Reason.TOO_FEW_DOCUMENTS: "Add documents to the domain, or raise `validation.documentsPerThousand` if "
    "validation lacks them.",
    Reason.TOKENIZER_NOT_LOADABLE: "Check `data.tokenizer`, or the checkpoint's: a folder with tokenizer.json under an allowed prefix.",
    Reason.TOKENIZER_LOSES_TEXT: "Use a tokenizer made for this text. `len(tokenizer)` is close to `vocab_size`, and "
    "`tokenizer.decode(tokenizer.encode(TEXT))` gives the text back.",
    Reason.DATA_CHANGED: "Put the former corpus back, or create another ScalingSweep for the new one.",
    Reason.CHECKPOINT_CHANGED: "Put the former files back, or create another ScalingSweep for the new ones.",
    Reason.MANIFEST_UNREADABLE: "Check who else writes to the store.",
    Reason.TRAINING: NOTHING,
    Reason.SEARCHING: NOTHING,
    Reason.SEARCH_STEP: NOTHING,
    Reason.FITTING: NOTHING,
    Reason.FINISHED: NOTHING,
    Reason.WAITING_TO_RETRY: "Nothing. If it recurs, the sweep's events say why attempts end.",
    Reason.QUEUED: "Nothing, or look at the LocalQueue that `queue.localQueueName` names.",
    Reason.WORKLOAD_DEACTIVATED: "Set the Workloads' `spec.active` to true.",
    Reason.SECRET_MISSING: "Create it.",
    Reason.IMAGE_PULL_FAILED: "Correct the image or its pull secret in the pod template or the chart.",
    Reason.UNSCHEDULABLE: "Compare the pod template's requests and node selectors with the nodes.",
    Reason.POD_WAITING: "Read the message; `kubectl describe pod` has the details.",
    Reason.BUDGET_EXHAUSTED: "Raise `spec.budget` to go on, or use the laws of the points that are done.",
    Reason.TOO_MANY_FAILED_POINTS: "Read `status.failures` and correct the cause, or raise `failurePolicy.maxFailedPoints`. A changed "
    "`podTemplate` gives failed points a fresh start; after a correction elsewhere, such as in a Secret, change an annotation of it.",
    Reason.PREDICTION_NOT_FOUND: "Create the HyperparamPrediction in the same namespace, or correct `grid.around.prediction`.",
    Reason.PREDICTION_NOT_READY: "Nothing; the points are placed once it is Ready. The message says what it waits for.",
    Reason.NOTHING_TO_FIT: "Nothing; the prediction whose `validation.sweepRef` names the sweep judges its answer by them.",
    Reason.FITTED: NOTHING,
    Reason.PROVISIONAL: "Nothing; wait for Ready before you use the numbers.",
    Reason.NO_RESULTS: "Nothing while points are training; otherwise read `status.failures`.",
    Reason.FIT_FAILED: "Read the message and the traceback in the operator's log. A fit that lacked memory, time or the store is retried "
    "with growing delays, any other one when the points change.",
    Reason.LAWS_REFUSED: "Read the message for what the data lack.",
    Reason.SUSPENDED: "Set `spec.suspend` to false to go on.",
    Reason.SUSPENDING: NOTHING,
    Reason.NOT_SUSPENDED: NOTHING,
    Reason.UP_TO_DATE: NOTHING,
    Reason.CONVERGING: NOTHING,
    Reason.PREDICTED: NOTHING,
    Reason.SWEEP_NOT_FOUND: "Create the ScalingSweep in the same namespace, or correct `sweepRef.name`.",
    Reason.SWEEP_NOT_READY: "Nothing; the prediction follows automatically.",
    Reason.SWEEP_INVALID: "Correct the spec of the sweep that is referred to.",
    Reason.DATA_REMOVED: "Restore the folder that the message names, prepare it with a new ScalingSweep of the same `storage.uri` and `data`, "
    "or give `initialLoss`.",
    Reason.LAWS_UNREADABLE: "Nothing; the laws are fitted again. Check who else writes to the store.",
    Reason.EVALUATING: NOTHING,
    Reason.EVALUATED: NOTHING,
    Reason.INITIAL_LOSS_GIVEN: NOTHING,
    Reason.NOT_A_CHECKPOINT: "Point `checkpoint.uri` to a folder with config.json and safetensors files.",
    Reason.WEIGHTS_MISSING: "Upload the named shards.",
    Reason.WEIGHTS_UNEXPECTED: "Make config.json describe the model that was trained, or remove the tensors that the message names.",
    Reason.NON_FINITE_WEIGHTS: "Use an earlier checkpoint.",
    Reason.NON_FINITE_LOSS: "Check that checkpoint and tokenizer belong together.",
    Reason.REMOTE_CODE_REFUSED: "Convert the checkpoint to a model type of transformers.",
    Reason.TOKENIZER_DIFFERS: "Give `initialLoss` measured on the sweep's validation text, or a checkpoint whose "
    "tokenizer is in the same folder.",
    Reason.EVALUATION_FAILED: "Read the message and the evaluate pod's log. Any change of the spec resets the retries.",
    Reason.UP_TO_DATE_WITH_SWEEP: NOTHING,
    Reason.SWEEP_CHANGED: "Nothing; the answer is recomputed when the sweep is done.",
    Reason.CONFIG_MAP_TAKEN: "Choose another `publish.configMapName`, or delete the ConfigMap.",
    Reason.ANSWER_AWAITED: "Nothing; read `Ready` and `Stale`, which say what the answer waits for.",
    Reason.CHECKPOINT_DIFFERS: "Give a size of that sweep the same `checkpoint.uri`, or name another sweep.",
    Reason.CORPUS_DIFFERS: "Give that sweep the `data` of the laws' sweep, or name another one.",
    Reason.LOSS_DIFFERS: "Give that sweep the `fit.weights` and domain weights of the laws' sweep, or name another one.",
    Reason.OPTIMIZER_DIFFERS: "Give that sweep the `optimizer` of the laws' sweep, or name another one.",
    Reason.ANSWER_HOLDS: "Nothing; `status.refined` has what laws and these points say together.",
    Reason.BETTER_ANSWER_NEARBY: "Consider `status.refined`, or train more around it. The laws of the sweep may not "
    "hold for this checkpoint.",
    Reason.ANSWER_DIVERGED: "Take a lower learning rate, and repeat the validation there.",
    Reason.WITHIN_NOISE: "Add `training.additionalSeeds` to the sweep that judges or raise the tokens of its size, or accept "
    "the answer as it is.",
    Reason.NO_MINIMUM: "Add `training.additionalSeeds` to the sweep that judges, or raise `grid.around.factor`.",
    Reason.TOO_FEW_PROBES: "`status.failures` of the sweep that judges says why points failed. If they diverged, lower "
    "`grid.around.factor`.",
    Reason.CONFIG_MAP_REFUSED: "Correct `publish.configMapName`, or make room in the quota.",
}

REFUSALS: Final[Mapping[Refused, tuple[str, str]]] = {
    Refused.TOO_FEW_SIZES: ("The question needs more sizes than the data have.", "Add a proxy."),
    Refused.TOO_FEW_RUNS: (
        "Too few runs of a size are usable.",
        "Add grid points or repair failed ones.",
    ),
    Refused.TOO_FEW_EVALUATIONS: (
        "The runs have too few evaluations to compare at equal loss.",
        "Lower `evaluation.firstTokens` or raise `perDecade`, or train one size for more tokens per parameter.",
    ),
    Refused.NO_COMMON_LOSS_RANGE: (
        "The sizes have no range of losses in common.",
        "Train the smaller proxies longer, or take sizes closer together.",
    ),
    Refused.OPTIMUM_ON_LEARNING_RATE_EDGE: (
        "The best learning rate lies at the edge of the grid or beyond.",
        "Add learning rates on the named side.",
    ),
    Refused.OPTIMUM_ON_BATCH_SIZE_EDGE: (
        "The best batch size lies at the edge of the grid or beyond.",
        "Add batch sizes on the side that the message names, or give the batch size (`batchSize`, `--batch-size`).",
    ),
    Refused.SURFACE_NOT_CONVEX: (
        "The losses have no single valley over learning rate and batch size.",
        "Look at the report for runs that stand out.",
    ),
    Refused.CURVATURE_NOT_IDENTIFIED: (
        "The points do not show how the loss curves in one direction: too few learning rates or batch sizes, or only a "
        "cross.",
        "Train the named points.",
    ),
    Refused.TREND_INDISTINGUISHABLE_FROM_NOISE: (
        "The answer would be too uncertain to use.",
        "Add sizes, or grid points near the optimum.",
    ),
    Refused.IRREDUCIBLE_LOSS_NOT_IDENTIFIED: (
        "The data do not determine the irreducible loss.",
        "Train longer, or set `fit.irreducibleLoss`.",
    ),
    Refused.INITIAL_LOSS_BELOW_IRREDUCIBLE: (
        "The checkpoint is better than the laws allow any model to be.",
        "Check the tokenizer and validation text of the initial loss. If they are the sweep's, train the proxies to lower "
        "losses, or lower `fit.irreducibleLoss`.",
    ),
    Refused.INITIAL_LOSS_ABOVE_ALL_SEEN: (
        "The checkpoint is worse than anything the sweep has seen. Its compute may matter (above 5% of the total), or its loss is in "
        "another unit (more than 1.44 times the highest loss seen, or above 16 nats).",
        "Check unit, tokenizer and validation text of the initial loss. The message gives the number in each unit that would fit. If they are the sweep's, plan a larger budget, or create a "
        "sweep with a lower `evaluation.firstTokens`.",
    ),
    Refused.INITIAL_LOSS_UNCERTAIN: (
        "The initial loss is too uncertain to place the checkpoint.",
        "Measure the loss on more of the sweep's validation text.",
    ),
    Refused.EXTRAPOLATION_TOO_FAR: (
        "The target is so far outside the data that its answer is expected to lose more than a published law, or that its unit is likely wrong.",
        "Train larger proxies, or for more tokens; a plan with `--target-params` and `--target-tokens` says what they would change.",
    ),
    Refused.BUDGET_TOO_SMALL: (
        "The budget is fewer than 30 steps of its own answer, or points that judge an answer train for fewer than 30 of the best batch size there.",
        "Check the budget's unit: 60 billion tokens are 60e9. For the points that judge an answer, raise the tokens of their size.",
    ),
    Refused.MIXED_TOKENIZERS: (
        "Runs of several tokenizers cannot be compared.",
        "Fit one tokenizer at a time.",
    ),
    Refused.MIXED_SEQUENCE_LENGTHS: (
        "Runs of several sequence lengths cannot be compared.",
        "Fit one sequence length at a time.",
    ),
    Refused.MIXED_LOSS_KINDS: (
        "Raw and averaged losses, or other kinds, are mixed.",
        "Give one kind of loss.",
    ),
    Refused.MIXED_STARTS: (
        "Runs from scratch and runs that continue checkpoints have best settings of their own.",
        "Fit one kind at a time.",
    ),
    Refused.MIXED_OPTIMIZERS: (
        "Runs of several optimizers have best settings of their own.",
        "Fit one optimizer at a time.",
    ),
    Refused.DUPLICATED_RUN: (
        "Two runs of one configuration differ by more than seeds do.",
        "Remove one of the two.",
    ),
    Refused.LAW_REFUSED: ("A law that the question needs was refused.", "Read the message."),
}

FAILURES: Final[Mapping[Failed, str]] = {
    Failed.INTERRUPTED: "Nothing; the attempt runs again from its checkpoint.",
    Failed.POD_VANISHED: "Nothing. If it recurs, look for disappearing nodes.",
    Failed.NODE_FAILURE: "Cordon the node that the message names; the attempt then runs on another.",
    Failed.NODE_LOST: "Repair or remove the node; the attempt runs again elsewhere.",
    Failed.CLAIMED_ELSEWHERE: "Nothing: another sweep trains the same point and both will use it.",
    Failed.OUT_OF_MEMORY: "Use larger devices, or a smaller proxy or sequence length.",
    Failed.HOST_OUT_OF_MEMORY: "If it recurs, raise the memory limit of the pod template.",
    Failed.MEMORY_REFUSED: "Nothing; the attempt runs again from its checkpoint with half the micro-batch.",
    Failed.BAD_CONFIGURATION: "Correct the field that the condition names.",
    Failed.BAD_DATA: "Correct the named file.",
    Failed.STORE_UNAVAILABLE: "Nothing. If it recurs, check the store and the network to it.",
    Failed.STORAGE: "Check the pods' credentials, the store and the pods' limits of disk.",
    Failed.DEADLINE: "Raise `failurePolicy.attemptDeadlineSeconds`, or the deadline that the pod template or a policy sets.",
    Failed.STALLED: "Read the pod's log. Raise `failurePolicy.stallSeconds` if steps or checkpoints are that slow.",
    Failed.RESULT_MISSING: "Read the pod's log; check that the image is a trainer of this version.",
    Failed.RESULT_UNREADABLE: "Nothing; it is trained again. Check who else writes there.",
    Failed.TRAJECTORY_UNREADABLE: "Nothing; it is trained again. Check who else writes there.",
    Failed.CRASHED: "Read the message and the pod's log.",
}

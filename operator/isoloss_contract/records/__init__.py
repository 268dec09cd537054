"""The records that operator, trainer and command line exchange: tasks in, results out, exit codes.

Batch sizes are sequences and losses nats per token, unless a name says otherwise.
"""

from typing import Annotated

from pydantic import Field

from isoloss_contract.records.base import (
    Digest,
    Finite,
    Name,
    PositiveFinite,
    Record,
    Report,
    Tokens,
    content_key,
    in_words,
)
from isoloss_contract.records.evaluations import EvaluateConfig, EvaluateTask, EvaluationResult
from isoloss_contract.records.points import (
    MAX_BATCH_SIZE,
    WARMUP_MULTIPLE,
    AttentionShape,
    Claimant,
    DomainLoss,
    EvaluationConfig,
    OptimizerConfig,
    Outcome,
    ParameterCounts,
    PointConfig,
    PointProgress,
    PointResult,
    TimeConstants,
    TrainTask,
    TrajectoryRow,
)
from isoloss_contract.records.preparation import (
    DataManifest,
    DomainData,
    DomainSource,
    HashedShard,
    PrepareConfig,
    PrepareTask,
    Shard,
    SweepCorpus,
)
from isoloss_contract.records.process import (
    BAD_TASK,
    GRACE_VARIABLE,
    MAX_TERMINATION_BYTES,
    POD_ADDRESS_VARIABLE,
    POD_INDEX_VARIABLE,
    SCRATCH_VARIABLE,
    STORE_UNAVAILABLE,
    TASK_VARIABLE,
    TERMINATION_VARIABLE,
    ExitCode,
    TerminationMessage,
)

Task = Annotated[PrepareTask | TrainTask | EvaluateTask, Field(discriminator="kind")]

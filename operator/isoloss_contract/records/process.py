"""How a trainer process gets its task, and how it reports how it ended."""

from enum import IntEnum
from typing import Any

from pydantic import Field, model_validator

from isoloss_contract.records.base import Record

TASK_VARIABLE = "ISOLOSS_TASK"
"""Environment variable of the pod that holds the task as JSON."""
SCRATCH_VARIABLE = "ISOLOSS_SCRATCH"
"""Environment variable naming a writable directory (an emptyDir) for local files."""
TERMINATION_VARIABLE = "ISOLOSS_TERMINATION_LOG"
"""Environment variable naming the termination message file."""
POD_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Kubernetes' own name for the number of a pod among those of an Indexed Job, from 0."""
POD_ADDRESS_VARIABLE = "ISOLOSS_POD_ADDRESS"
"""Environment variable with the IP address of the pod, by which the other pods of a task reach it."""
GRACE_VARIABLE = "ISOLOSS_POD_GRACE_SECONDS"
"""Environment variable with the seconds from SIGTERM to SIGKILL."""
MAX_TERMINATION_BYTES = 2048
BAD_TASK = "BadTask"
"""Code of a termination message: the task is none that this trainer knows."""
STORE_UNAVAILABLE = "StoreUnavailable"
"""Code of a termination message: the store gave no answer for as long as the trainer tried."""


class ExitCode(IntEnum):
    """How a trainer process ended. Any other code is a crash."""

    SUCCEEDED = 0
    DIVERGED = 42
    """The result is written: divergence is a measurement, not an error."""
    OUT_OF_MEMORY = 43
    """A micro-batch of one sequence does not fit."""
    BAD_CONFIGURATION = 44
    """The task cannot succeed as it is; a retry cannot help."""
    BAD_DATA = 45
    """Corpus, tokenizer, prepared data or checkpoint is unusable; the message names it."""
    CLAIMED_ELSEWHERE = 46
    """Another sweep, or a later attempt, is training this point: look again after a while."""
    MEMORY_REFUSED = 47
    """One of several pods ran out of memory: all of them need to start over with a smaller micro-batch. The processes
    of a single pod do so by themselves."""
    STORAGE = 74
    """Storage or network failed after retries."""
    INTERRUPTED = 75
    """Stop requested (SIGTERM), or another attempt took over; progress since the last checkpoint is saved."""


class TerminationMessage(Record):
    """A trainer process's termination message, short enough that Kubernetes does not truncate it."""

    code: str = Field(max_length=64)
    """CamelCase, e.g. TextFieldMissing."""
    message: str = Field(max_length=1500)
    field: str = Field(default="", max_length=253)
    """The spec field to look at, if any."""

    @model_validator(mode="before")
    @classmethod
    def _cut(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("message"), str):
            return {**values, "message": values["message"][:1500]}
        return values

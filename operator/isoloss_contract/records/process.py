"""How a trainer process gets its task, and how it reports how it ended."""

from __future__ import annotations

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
MAX_TERMINATION_BYTES = 2048


class ExitCode(IntEnum):
    """How a trainer process ended. Any other code is a crash."""

    SUCCEEDED = 0
    DIVERGED = 42
    """The result is written: divergence is data, not an error."""
    OUT_OF_MEMORY = 43
    """No smaller micro-batch is left."""
    BAD_CONFIGURATION = 44
    """The task itself cannot work; a retry cannot help."""
    BAD_DATA = 45
    """Corpus, tokenizer, prepared data or checkpoint is unusable; the message names it."""
    STORAGE = 74
    """Storage or network failed after retries."""
    INTERRUPTED = 75
    """Stopped by SIGTERM, or another attempt holds the point; a checkpoint was written if there was anything to save."""


class TerminationMessage(Record):
    """The termination message of a trainer process, short enough that Kubernetes does not truncate it."""

    code: str = Field(max_length=64)
    """CamelCase, e.g. TextFieldMissing."""
    message: str = Field(max_length=1500)
    field: str = Field(default="", max_length=253)
    """The spec field at fault, if any."""

    @model_validator(mode="before")
    @classmethod
    def _cut(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("message"), str):
            return {**values, "message": values["message"][:1500]}
        return values

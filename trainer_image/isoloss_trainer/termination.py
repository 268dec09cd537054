"""How a trainer process ends: every failure becomes one exit code and a few words that a person
can act on. The operator decides by the code and shows the words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from isoloss_contract.records import MAX_TERMINATION_BYTES, TERMINATION_VARIABLE, ExitCode
from isoloss_contract.records import TerminationMessage as Message
from isoloss_contract.store import BadRecord, BadStoreUri, NotFound, StoreError


class TrainerError(Exception):
    """An ending with a known reason. `code` is CamelCase, `field` the spec field to look at."""

    exit_code = ExitCode.BAD_CONFIGURATION

    def __init__(self, code: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message, field


class BadConfiguration(TrainerError):
    """The task itself can not work."""


class BadData(TrainerError):
    """Corpus, tokenizer, prepared data or checkpoint is unusable."""

    exit_code = ExitCode.BAD_DATA


class OutOfMemory(TrainerError):
    """Not even one sequence at a time fits."""

    exit_code = ExitCode.OUT_OF_MEMORY


class Diverged(TrainerError):
    """The run's loss is lost; its result is written."""

    exit_code = ExitCode.DIVERGED


class Interrupted(TrainerError):
    """Asked to stop, or another attempt works on the same point."""

    exit_code = ExitCode.INTERRUPTED


def explain(error: BaseException) -> tuple[int, Message]:
    """Exit code and last words for an exception; 1 for what nobody foresaw (a bug)."""
    if isinstance(error, TrainerError):
        words = Message(code=error.code, message=error.message, field=error.field)
        return error.exit_code, words
    if isinstance(error, BadStoreUri):
        return ExitCode.BAD_CONFIGURATION, Message(code="BadUri", message=str(error))
    if isinstance(error, NotFound):
        return ExitCode.BAD_DATA, Message(code="NotFound", message=str(error))
    if isinstance(error, BadRecord):
        return ExitCode.BAD_DATA, Message(code="BadRecord", message=str(error))
    if isinstance(error, StoreError):
        return ExitCode.STORAGE, Message(code="StoreUnavailable", message=str(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExitCode.STORAGE, Message(code="DiskFull", message=str(error))
    if isinstance(error, MemoryError):
        return ExitCode.OUT_OF_MEMORY, Message(code="OutOfMemory", message="out of host memory")
    text = f"{type(error).__name__}: {error}"
    return 1, Message(code="InternalError", message=text)


def write_message(message: Message) -> None:
    """Leave the last words where the environment asks for them, short enough to be kept whole."""
    path = os.environ.get(TERMINATION_VARIABLE)
    if not path:
        return
    words = message.message
    content = message.model_dump_json()
    while len(content.encode()) > MAX_TERMINATION_BYTES and words:
        words = words[: len(words) * 3 // 4]
        content = message.model_copy(update={"message": words}).model_dump_json()
    Path(path).write_text(content)

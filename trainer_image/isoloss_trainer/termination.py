"""How a trainer process ends: every failure becomes an exit code, by which the operator decides, and a
message that a person can act on.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from isoloss_contract import records, store
from isoloss_contract.records import TerminationMessage as Message

ENDING_VARIABLE = "ISOLOSS_ENDING"
"""Names the file in which one of several processes leaves its message; the launcher passes one of them on."""


class TrainerError(Exception):
    """An ending with a known reason. `code` is CamelCase, `field` the spec field to look at."""

    exit_code: int = records.ExitCode.BAD_CONFIGURATION

    def __init__(self, code: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message, field

    def __reduce__(self) -> tuple[Any, ...]:
        """As processes tell one another of it."""
        return type(self), (self.code, self.message, self.field)


class BadConfiguration(TrainerError):
    """The task cannot succeed as it is."""


class BadData(TrainerError):
    """Corpus, tokenizer, prepared data or checkpoint is unusable."""

    exit_code = records.ExitCode.BAD_DATA


class OutOfMemory(TrainerError):
    """A single sequence does not fit into memory."""

    exit_code = records.ExitCode.OUT_OF_MEMORY


class Diverged(TrainerError):
    """The loss diverged; the result is written."""

    exit_code = records.ExitCode.DIVERGED


class ClaimedElsewhere(TrainerError):
    """Another sweep, or a later attempt of this one, trains the point."""

    exit_code = records.ExitCode.CLAIMED_ELSEWHERE


class Interrupted(TrainerError):
    """A stop was requested, or another attempt took over."""

    exit_code = records.ExitCode.INTERRUPTED


class MemoryRefused(Exception):
    """Memory was refused to a step or an evaluation of a run: that ends nothing, its processes start over with less at
    once (launch.py)."""


REFUSALS = ("out of memory", "_status_alloc_failed", "can't allocate memory", "not enough memory")
"""What the CUDA runtime and Triton, cuBLAS and cuDNN, and the host's allocators say, in lower case."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the host refused memory. Not every library raises a type of its own; torch's is a
    RuntimeError that says so."""
    text = str(error).lower()
    is_refusal = isinstance(error, RuntimeError) and any(refusal in text for refusal in REFUSALS)
    return is_refusal or isinstance(error, MemoryError)


def in_words(error: Exception) -> str:
    """What a library says of something that others wrote, in one line and without the names of Python's errors."""
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = " ".join(re.sub(r"\b\w*(Error|Exception): ", "", str(said)).split())[:400]
    if isinstance(error, KeyError) and " " not in text:
        return f"it has no {text}"
    return text or type(error).__name__


STORE_ERRORS = (
    (store.BadStoreUri, records.ExitCode.BAD_CONFIGURATION, "BadUri"),
    # What is there must not be overwritten; another image in the pod template can read it.
    (store.NewerRecord, records.ExitCode.BAD_CONFIGURATION, "NewerRecord"),
    (store.NotFound, records.ExitCode.BAD_DATA, "NotFound"),
    (store.BadRecord, records.ExitCode.BAD_DATA, "BadRecord"),
    (store.StoreRefused, records.ExitCode.STORAGE, "StoreRefused"),
    (store.StoreError, records.ExitCode.STORAGE, records.STORE_UNAVAILABLE),
)
"""How errors of the store end a task: the first that matches, because some are kinds of others."""


def explain(error: BaseException) -> tuple[int, Message]:
    """Exit code and termination message for an exception; 1 for an unexpected one (a bug)."""
    if isinstance(error, TrainerError):
        message = Message(code=error.code, message=error.message, field=error.field)
        return error.exit_code, message
    for kind, exit_code, code in STORE_ERRORS:
        if isinstance(error, kind):
            return exit_code, Message(code=code, message=str(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return records.ExitCode.STORAGE, Message(code="DiskFull", message=str(error))
    if is_out_of_memory(error):
        message = Message(code="OutOfMemory", message=str(error) or "out of host memory")
        return records.ExitCode.OUT_OF_MEMORY, message
    text = f"{type(error).__name__}: {error}"
    return 1, Message(code="InternalError", message=text)


def write_message(message: Message) -> None:
    """Write `message` to ENDING_VARIABLE's or TERMINATION_VARIABLE's file, shortened so that Kubernetes does not
    truncate it. Raises OSError."""
    path = os.environ.get(ENDING_VARIABLE) or os.environ.get(records.TERMINATION_VARIABLE)
    if not path:
        return
    while (
        len(message.model_dump_json().encode()) > records.MAX_TERMINATION_BYTES and message.message
    ):
        shorter = message.message[: len(message.message) * 3 // 4]
        message = Message(code=message.code, message=shorter, field=message.field)
    Path(path).write_text(message.model_dump_json())


# -------------------------------------------------------------------------------- being asked to end
# SIGTERM and SIGINT set a flag that loops check, so that work stops between two steps and is saved
# within the grace period.


class Interruption:
    """Set by SIGTERM or SIGINT. A second SIGINT ends the process at once, as people expect."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> Interruption:
        """Start listening; only the main thread may call this."""
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)
        return self

    def ignore(self) -> None:
        """Ignore SIGTERM from now on: during the interpreter's shutdown it would replace the exit code."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Raises Interrupted once a stop was requested."""
        if self.requested:
            raise Interrupted("Interrupted", "stop requested")

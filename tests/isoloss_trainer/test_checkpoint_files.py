"""What processes write of a checkpoint makes up its tensors, or is no checkpoint."""

import threading
from collections.abc import Callable

import pytest
import torch

from isoloss_trainer.checkpoint import write_tensors
from isoloss_trainer.world import World, _as_sent


class Twice(World):
    """Two processes that hold the same."""

    def of_all(self, call: Callable[[], object], group: object = None) -> list[object]:  # type: ignore[override]
        return [call(), call()]


def test_parts_that_two_processes_hold_alike_make_up_no_tensor_and_are_refused() -> None:
    """Before a manifest names them: the last good checkpoint is deleted after it."""
    tensors = {"weights.a": torch.ones(4)}
    assert write_tensors(lambda _file, _content: None, tensors, World(), None).tensors
    with pytest.raises(ValueError, match=r"weights\.a: the parts are not a tensor"):
        write_tensors(lambda _file, _content: None, tensors, Twice(), None)


def test_an_error_that_cannot_be_pickled_reaches_other_processes_in_words() -> None:
    sent = _as_sent(OSError("busy", threading.Lock()))
    assert isinstance(sent, RuntimeError)
    assert str(sent).startswith("OSError: ")
    assert "busy" in str(sent)
    plain = ValueError("as it is")
    assert _as_sent(plain) is plain

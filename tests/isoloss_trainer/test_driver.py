"""A device that torch cannot use is explained by the driver's version."""

from pathlib import Path

import pytest

from isoloss_trainer import world

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc version 12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)\n"


@pytest.mark.parametrize(
    ("reported", "branch"),
    [(PROPRIETARY, 535), (OPEN, 580), ("a driver of the future", None), (None, None)],
)
def test_the_drivers_branch_is_read_from_what_the_kernel_module_says(
    reported: str | None, branch: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "version"
    if reported is not None:
        path.write_text(reported)
    monkeypatch.setattr(world, "LOADED_DRIVER", path)
    assert world.driver_branch() == branch


@pytest.mark.parametrize(
    ("cuda", "words"),
    [
        (
            "13.2",
            "CUDA 13.2, for which torch 2.15.0 is built, needs driver 580 or newer; the machine's is 535",
        ),
        (
            "12.9",
            "CUDA 12.9, for which torch 2.15.0 is built, needs driver 525 or newer; the machine's is 535",
        ),
        (None, "torch 2.15.0 is built without CUDA"),
    ],
)
def test_the_refusal_names_the_oldest_driver_and_the_machines(
    cuda: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "version"
    path.write_text(PROPRIETARY)
    monkeypatch.setattr(world, "LOADED_DRIVER", path)
    assert world.why_unusable("2.15.0", cuda) == words

"""What torch.compile needs to make code for the CPU."""

import os
import shutil

import pytest

needs_cxx_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="no C++ compiler for torch.compile (Debian, Ubuntu: apt install g++)",
)

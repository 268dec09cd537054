"""CUDA's driver and runtime as two libraries whose every function says that all went well, and one device.

Enough for torch to trace a backward pass of tensors that have no memory: it asks which devices have a context, and
guards their streams. Nothing is computed, and what reads a result finds zeros.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

LIBRARIES = ("c10_cuda", "torch_cuda", "torch_cuda_linalg", "torch_python", "caffe2_nvrtc")
ANSWERS = {
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *count) { *count = 1; return 0; }",
    "cudaGetDevice": "int cudaGetDevice(int *device) { *device = 0; return 0; }",
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *version) { *version = VERSION; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *version) { *version = VERSION; return 0; }",
    "cudaGetErrorName": 'const char *cudaGetErrorName(int error) { return "none"; }',
    "cudaGetErrorString": 'const char *cudaGetErrorString(int error) { return "none"; }',
    "cuDevicePrimaryCtxGetState": "int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 0; return 0; }",
}


def why_none() -> str:
    """What is missing here; empty: nothing."""
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    missing = [program for program in ("cc", "nm") if shutil.which(program) is None]
    return f"there is no {' and no '.join(missing)}" if missing else ""


def build(folder: Path) -> Mapping[str, str]:
    """Compile both into a folder; the variables of a process that is to have them."""
    wanted = sorted(_wanted())
    driver = [name for name in wanted if not name.startswith("cuda")]
    runtime = [name for name in wanted if name.startswith("cuda")]
    _compile(driver, folder / "libcuda.so.1")
    _compile(runtime, folder / "libruntime.so")
    return {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(folder / "libruntime.so")}


def _wanted() -> set[str]:
    """What torch's libraries call of both."""
    found: set[str] = set()
    for name in LIBRARIES:
        library = Path(torch.__file__).parent / "lib" / f"lib{name}.so"
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        )
        found |= set(re.findall(r" U (cu(?:da)?[A-Z]\w*)", listed.stdout))
    return {name for name in found if not name.startswith(("cublas", "cufft", "cusparse"))}


def _compile(names: list[str], library: Path) -> None:
    assert torch.version.cuda is not None
    major, minor = (int(part) for part in torch.version.cuda.split(".")[:2])
    lines = [ANSWERS.get(name, f"int {name}(void) {{ return 0; }}") for name in names]
    source = library.with_suffix(".c")
    source.write_text(f"#define VERSION {1000 * major + 10 * minor}\n" + "\n".join(lines) + "\n")
    options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{library.name}"]
    subprocess.run(["cc", *options, "-o", library, source], check=True)

"""FlashInfer's kernel that decodes NVFP4 KV, compiled from its own source.

The package compiles that file when the function is first called, and needs a dozen others to be
imported; the kernel needs nothing but nvcc.
"""

import contextlib
import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import _torch

SOURCE: Final = "csrc/fp4_kv_dequantization.cu"
LAUNCHER: Final = """
extern "C" int dequantise(const void* codes, const void* scales, const void* global_scale,
                          void* out, int rows, int width, void* stream) {
  nvfp4_dequant_vectorized_kernel<__nv_bfloat16, 128, 16>
      <<<rows, 128, sizeof(float) + width / 16, static_cast<cudaStream_t>(stream)>>>(
          static_cast<const uint8_t*>(codes), static_cast<const uint8_t*>(scales),
          static_cast<const float*>(global_scale), static_cast<__nv_bfloat16*>(out), rows, width);
  return cudaGetLastError();
}
"""


def found() -> str:
    """Where its package is.

    Raises:
      RuntimeError: if it is not installed.
    """
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("flashinfer")
        if spec is not None and spec.submodule_search_locations:
            return list(spec.submodule_search_locations)[0]
    raise RuntimeError("FlashInfer is not installed, and --flashinfer names no source of it")


def kernel_source(where: str) -> str:
    """The kernel, from its file, a wheel or the installed package."""
    path = Path(where)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith(SOURCE))
            text = wheel.read(name).decode()
    elif path.is_dir():
        (file,) = path.rglob(SOURCE)
        text = file.read_text()
    else:
        text = path.read_text()
    before, _, after = text.partition('#include "tvm_ffi_utils.h"')
    return before + after.partition("void nvfp4_kv_dequant(")[0]


class FlashInfer:
    """FlashInfer's decoding of NVFP4 rows that already lie next to each other.

    Attributes:
      seconds: that its compilation took.
    """

    def __init__(self, where: str):
        compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "kernel.cu"), Path(folder, "kernel.so")
            source.write_text(kernel_source(where) + LAUNCHER)
            command = [compiler, "-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler",
                       "-fPIC", "-o", str(library), str(source)]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise RuntimeError(f"nvcc: {done.stderr.strip()[-200:]}")
            self.library = ctypes.CDLL(str(library))
        self.seconds = time.monotonic() - start
        self.kept: list[Any] = []  # what calls point to

    def call_of(self, codes: Any, scales: Any, width: int) -> tuple[Callable[[], None], Any]:
        """(a call, its result) for rows of `width` channels."""
        torch = _torch.imported()
        rows = codes.numel() * 2 // width
        out = torch.empty((rows, width), dtype=torch.bfloat16, device="cuda")
        one = torch.ones(1, dtype=torch.float32, device="cuda")
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (codes, scales, one, out)]

        def call():
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            failed = self.library.dequantise(*pointers, rows, width, stream)
            if failed:
                raise RuntimeError(f"CUDA error {failed}")

        self.kept += [codes, scales, one]
        return call, out

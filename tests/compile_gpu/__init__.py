"""Builds for an NVIDIA H200, without one: what the compiler makes of every donated state transition
and of every kernel is read for copies of pools and banks.

`python -m tests.compile_gpu` compiles them all; it wants the wheels of the CUDA compiler, which
`make compile-gpu` installs.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

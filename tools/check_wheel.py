"""Checks an installed wheel: run it in a venv that holds the wheel and its dependencies, no more.

Imports every module of both packages from site-packages. A module that stops at an optional extra
is named; any other failure, or an import from the checkout, fails.

Usage: python -I tools/check_wheel.py
"""

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys

EXTRAS = {"jax_triton", "triton", "hypothesis", "obstore"}
PACKAGES = ("tiercache", "pallas_kernels")
CHECKOUT_ONLY = ("models", "experiments", "benchmarks", "tests")


def main() -> None:
    num_imported = 0
    for name in PACKAGES:
        package = importlib.import_module(name)
        if "site-packages" not in str(package.__file__):
            sys.exit(f"{name} came from {package.__file__}, not from the installed wheel")
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            try:
                importlib.import_module(module.name)
                num_imported += 1
            except ModuleNotFoundError as error:
                if (error.name or "").split(".")[0] not in EXTRAS:
                    raise
                print(f"  {module.name} needs an extra ({error.name})")
    for name in CHECKOUT_ONLY:
        if importlib.util.find_spec(name) is not None:
            sys.exit(f"the wheel ships {name}, which belongs to the checkout")
    versions = " ".join(f"{p} {importlib.metadata.version(p)}" for p in ("tiercache", "jax"))
    print(f"  {versions}: {len(PACKAGES)} packages and {num_imported} modules import")


if __name__ == "__main__":
    main()

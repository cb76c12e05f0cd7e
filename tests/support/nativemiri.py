"""Run the unsafe code of the native tokenizer in Miri, which finds undefined behaviour.

    make miri-native

Miri interprets the backend and the test server of `native/fuzz`. It cannot call C, so the test uses
a tokenizer without regular expressions. Rust nightly with the component `miri` is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys

from e2e.local import cache, native

TOOLCHAIN = "+nightly"
TEST = "unsafe_code"


def main() -> int:
    """Command line: run the test in Miri; return its exit code."""
    environment = native.settings(os.environ)
    environment |= {
        "CARGO_TARGET_DIR": str(cache.cache_root() / "native-miri-target"),
        # The backend reads the files of a model, and the clocks.
        "MIRIFLAGS": "-Zmiri-disable-isolation",
    }
    call = ["nice", native.find_cargo(), TOOLCHAIN, "miri", "test", "--locked", "--jobs=1"]
    call += [f"--test={TEST}"]
    done = subprocess.run(call, cwd=native.CRATE / "fuzz", env=environment, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

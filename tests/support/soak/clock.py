"""A wall clock that a test moves while a process runs; its monotonic clock stays right.

A library that is loaded before the C library adds a number of seconds, read from a file, to the
real-time clock.
"""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (!failed && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""


def build_library(folder: Path) -> Path:
    """Compile the library, and return its path.

    Raises:
        subprocess.CalledProcessError: there is no C compiler, or it failed.
    """
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True)
class MovableClock:
    """The wall clock of one process."""

    library: Path
    """What :func:`build_library` returned."""
    file: Path
    """Where the offset is."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the process; its clock is right until moved."""
        if not self.file.exists():
            self.move(0)
        return {"LD_PRELOAD": str(self.library), "CLOCK_OFFSET_FILE": str(self.file)}

    def move(self, seconds: int) -> None:
        """Set the difference to the real time, in seconds."""
        with self.file.open("r+b" if self.file.exists() else "w+b") as file:
            file.write(struct.pack("q", seconds))

"""A library of a release is for its architecture and needs no newer glibc than the servers have."""

from __future__ import annotations

import struct

import pytest

from e2e.local.native_release import GLIBC, LibraryError, check


def elf(machine: int, *versions: bytes) -> bytes:
    head = b"\x7fELF\x02\x01".ljust(18, b"\0") + struct.pack("<H", machine)
    return head + b"\0" + b"\0".join(versions) + b"\0"


def test_libraries_for_old_servers_pass() -> None:
    check(elf(62, b"GLIBC_2.2.5", b"GLIBC_2.28", b"GCC_3.0"), "x86_64", GLIBC)
    check(elf(183, b"GLIBC_2.17"), "aarch64", GLIBC)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#!/bin/sh", "not a 64-bit little-endian ELF file"),
        (elf(62), "built for x86_64, not for aarch64"),
        (elf(40), "built for ELF machine 40, not for aarch64"),
        (elf(183, b"GLIBC_2.17", b"GLIBC_2.34"), "needs glibc 2.34, newer than 2.28"),
        (elf(183, b"GLIBC_2.17", b"GLIBCXX_3.4.30"), "needs the C"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(LibraryError, match=message):
        check(content, "aarch64", GLIBC)

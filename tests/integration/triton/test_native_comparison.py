"""The native tokenizer and the Python step agree on generated tokenizers, texts and pairs.

`make compare-native` runs the same comparison for longer.
"""

from __future__ import annotations

import pytest

from e2e.local import native, native_release
from tests.support.nativecompare import Comparison
from tests.support.randomtokenizers import KINDS
from triton_pipelines.loader import native_library

pytestmark = pytest.mark.integration
ROWS = 2000


def test_all_kinds_of_tokenizers_agree() -> None:
    comparison = Comparison(seed=20)
    comparison.run(ROWS)
    assert not comparison.differences, "\n".join(comparison.differences)[:8000]
    assert set(comparison.rows) == set(KINDS)
    assert comparison.pairs > ROWS // 10
    assert comparison.rejected["request"] > 0


def test_the_library_loads_in_the_oldest_supported_server_image() -> None:
    content = native.library().read_bytes()
    native_release.check(content, native_library.machine(), native_release.SERVER_GLIBC)

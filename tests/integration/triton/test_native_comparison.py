"""The native tokenizer agrees with the library on generated tokenizers, texts and pairs.

`make compare-native` runs the same comparison for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.local import native, native_release
from tests.support import tinymodel
from tests.support.nativecompare import Comparison
from tests.support.randomtokenizers import KINDS
from tests.support.testserver import BACKEND_API, NativeModel, backend_api
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


CONFIG = {
    "max_batch_size": 8,
    "input": [{"name": "TEXT", "data_type": "TYPE_STRING"}],
    "output": [{"name": "input_ids", "data_type": "TYPE_INT64"}],
}
PARAMETERS = {"tritonpipe.outputs": '{"input_ids": "InputIds"}'}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    tinymodel.tokenizer().save(str(tmp_path / "1/tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("version", [(1, 18), (0, 30), (2, 0)])
def test_a_server_with_another_backend_api_is_refused(
    model: Path, version: tuple[int, int]
) -> None:
    major, minor = version
    with backend_api(major, minor), pytest.raises(ValueError) as caught:
        NativeModel(model, CONFIG, PARAMETERS)
    assert f"this server has {major}.{minor}: use another server image" in str(caught.value)


@pytest.mark.parametrize("version", [BACKEND_API, (1, 33)])
def test_servers_with_a_later_minor_version_are_accepted(
    model: Path, version: tuple[int, int]
) -> None:
    with backend_api(*version):
        NativeModel(model, CONFIG, PARAMETERS).close()

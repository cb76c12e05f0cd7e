"""Trust one certificate authority in unit tests, since they reach no server outside.

Reading the more than one hundred of a machine takes 0.05 s for every TLS context.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

ONE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)


@pytest.fixture(autouse=True, scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    found = ONE.search(Path(certifi.where()).read_text(encoding="ascii", errors="replace"))
    assert found is not None
    file = tmp_path_factory.mktemp("authorities") / "ca.crt"
    file.write_text(found.group())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        patch.delenv("SSL_CERT_DIR", raising=False)
        yield

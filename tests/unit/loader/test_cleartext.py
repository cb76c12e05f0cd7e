"""Test that user information in an address does not go out unencrypted."""

from __future__ import annotations

import pytest

from triton_pipelines.loader.cleartext import refuse_cleartext
from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.uris import SourceLocation

URI = "oci://registry.test/model"


@pytest.mark.parametrize(
    ("location", "endpoint"),
    [
        (SourceLocation("http://ada:s3cret@web.test/model.bin"), None),
        (SourceLocation(URI), "http://ada:s3cret@registry.test"),
        (SourceLocation(URI), "http://ada@registry.test"),
        (SourceLocation(URI, "http://ada:s3cret@registry.test"), "https://registry.test"),
    ],
)
def test_user_information_over_http_is_refused(
    location: SourceLocation, endpoint: str | None
) -> None:
    with pytest.raises(SourceError, match="user information") as caught:
        refuse_cleartext(location, endpoint, SourceCredentials(), "model.source")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    [None, "http://registry.test", "https://ada:s3cret@registry.test", "http://a:b@127.0.0.1:5000"],
)
def test_other_addresses_are_not(endpoint: str | None) -> None:
    refuse_cleartext(SourceLocation(URI), endpoint, SourceCredentials(), "model.source")

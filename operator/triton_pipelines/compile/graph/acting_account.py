"""Decide in the name of which service account the operator writes the objects of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode

from .options import Options

FIELD = "spec.serviceAccountName"


def acting_account(declared: str | None, options: Options) -> str:
    """Return the account's name; empty for the operator's own account.

    An account that the operator may not use never falls back to the operator's own account while
    there is a default account.

    Args:
        declared: ``spec.serviceAccountName``.
        options: The operator's options.
    """
    allowed = options.impersonated_accounts
    if declared and (allowed is None or declared in allowed):
        return declared
    return options.default_account


def check_acting_account(declared: str | None, options: Options) -> Iterator[Finding]:
    """Yield a finding if the operator may not act as the declared account.

    Args:
        declared: ``spec.serviceAccountName``.
        options: The operator's options.
    """
    allowed = options.impersonated_accounts
    if not declared or allowed is None or declared in allowed:
        return
    if not allowed:
        message = (
            "this operator does not impersonate service accounts; omit serviceAccountName, "
            "or ask the operator's administrator to set "
            f"--impersonated-service-accounts={declared}"
        )
    else:
        message = (
            f"the operator cannot impersonate service account {declared!r}; use "
            f"{' or '.join(map(repr, allowed))}, or ask the operator's administrator to add "
            f"{declared!r} to --impersonated-service-accounts"
        )
    yield Finding(FIELD, message, code=FindingCode.FORBIDDEN)

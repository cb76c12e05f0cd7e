"""An API server and a way to it, as for tests of the reconciler."""

from tests.integration.reconcile.conftest import bare, bare_namespace, bare_proxy  # noqa: F401 fixtures

"""The client of Triton's gRPC service creates calls when they are used."""

from __future__ import annotations

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc
from tritonclient.grpc.aio import InferenceServerClient

from triton_pipelines.triton.service_client import ServiceClient, ServiceStub

ADDRESS = "127.0.0.1:1"


async def test_a_call_is_created_when_it_is_used() -> None:
    async with grpc.aio.insecure_channel(ADDRESS) as channel:
        stub = ServiceStub(channel)
        assert set(vars(stub)) == {"_channel"}
        call = stub.ModelInfer
        assert stub.ModelInfer is call
        assert set(vars(stub)) == {"_channel", "ModelInfer"}


async def test_it_has_the_calls_of_the_generated_stub() -> None:
    async with grpc.aio.insecure_channel(ADDRESS) as channel:
        stub = ServiceStub(channel)
        generated = vars(service_pb2_grpc.GRPCInferenceServiceStub(channel))
        assert len(generated) >= 20
        for name, call in generated.items():
            created = getattr(stub, name)
            assert type(created) is type(call)
            assert created._method == call._method
            assert created._request_serializer == call._request_serializer
        with pytest.raises(AttributeError, match="no method Reboot"):
            _ = stub.Reboot


async def test_it_sets_what_the_library_sets() -> None:
    """Its initializer replaces that of the library, which may set more in a later release."""
    library = InferenceServerClient(ADDRESS)
    async with ServiceClient(grpc.aio.insecure_channel(ADDRESS)) as client:
        assert vars(client).keys() == vars(library).keys()
        assert client._verbose is library._verbose
        assert client._plugin is library._plugin
    await library.close()

"""A served model over gRPC, in plaintext or with TLS: its metadata, and requests to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.tools.loadgen import ClientTls, channel_arguments, grpc_request

from .errors import EXIT_FAILED, CommandError
from .model_metadata import Array, ModelMetadata

# Asks for an empty last response, so that a request without a response ends too.
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_FINAL: Final = "triton_final_response"


def grpc_address(url: str) -> str:
    """Return ``host:port`` of an address; the port is Triton's if there is none."""
    parts = urlsplit(url)
    return parts.netloc if parts.port else f"{parts.netloc.rstrip(':')}:{PORT_GRPC}"


class GrpcModel:
    """A client of one model; a context manager.

    Args:
        url: ``grpc://…/v2/models/MODEL`` or ``grpcs://…``, with or without ``/versions/N``.
        timeout: Deadline of a request, in seconds.
        tls: How to connect with TLS; ``None`` for plaintext.

    All methods raise ``CommandError`` if the server cannot be reached or rejects the request.
    """

    def __init__(self, url: str, timeout: float, tls: ClientTls | None) -> None:
        path = urlsplit(url).path.partition("/v2/models/")[2]
        name, _, version = path.partition("/versions/")
        self._name, self._version = unquote(name), version
        self._address, self._timeout = grpc_address(url), timeout
        credentials, options = channel_arguments(tls)
        self._tls = tls
        self._channel = (
            grpc.insecure_channel(self._address, options=options)
            if credentials is None
            else grpc.secure_channel(self._address, credentials, options=options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def metadata(self) -> ModelMetadata:
        """Return the model's metadata and config as the server reports them."""
        named = {"name": self._name, "version": self._version}
        metadata = self._call(self._stub.ModelMetadata, service_pb2.ModelMetadataRequest(**named))
        try:
            answer = self._call(self._stub.ModelConfig, service_pb2.ModelConfigRequest(**named))
        except CommandError:
            config = {}  # a gateway may block it; the metadata has most of it
        else:
            found = MessageToDict(answer.config, preserving_proto_field_name=True)
            config = {"max_batch_size": 0} | found
        document = MessageToDict(metadata, preserving_proto_field_name=True)
        # Empty lists and zeros are omitted.
        defaults: dict[str, Any] = {"inputs": [], "outputs": []}
        return ModelMetadata.of(defaults | document, config)

    def infer(
        self, arrays: Mapping[str, Array], model: ModelMetadata
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer to one request as over HTTP: a document, and the bytes of tensors."""
        return _as_http(self._call(self._stub.ModelInfer, self._request(arrays, model)))

    def stream(
        self, arrays: Mapping[str, Array], model: ModelMetadata
    ) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield the responses of a decoupled model, as :meth:`infer` returns them."""
        request = self._request(arrays, model)
        request.parameters[_EMPTY_FINAL].bool_param = True
        responses = self._stub.ModelStreamInfer(iter([request]), timeout=self._timeout)
        try:
            for response in responses:
                if response.error_message:
                    raise CommandError(
                        f"{self._address} returned an error: {response.error_message}", EXIT_FAILED
                    )
                answer = response.infer_response
                if answer.outputs:
                    yield _as_http(answer)
                if answer.parameters[_FINAL].bool_param:
                    return
        except grpc.RpcError as error:
            raise self._error(error) from None
        finally:
            responses.cancel()

    def _request(self, arrays: Mapping[str, Array], model: ModelMetadata) -> Any:
        types = {item.name: item.data_type for item in model.inputs}
        request = grpc_request(self._name, arrays, model.outputs, types)
        request.model_version = self._version
        return request

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _error(self, error: grpc.RpcError) -> CommandError:
        code, details = error.code(), " ".join((error.details() or "").split())
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"{self._address}: the request timed out; increase --timeout"
        elif code is grpc.StatusCode.UNAVAILABLE:
            hint = (
                "if the server uses TLS, use grpcs://HOST:PORT"
                if self._tls is None
                else "check --cacert and --servername, and --cert and --key for mutual TLS"
            )
            text = f"cannot reach {self._address} over gRPC: {details}; {hint}"
        else:
            text = f"{self._address} returned {code.name}: {details}"
        return CommandError(text, EXIT_FAILED)


def _as_http(answer: Any) -> tuple[dict[str, Any], bytes]:
    if len(answer.outputs) != len(answer.raw_output_contents):
        raise CommandError(
            "the response does not contain tensors in binary form; check that the address "
            "points to a Triton server",
            EXIT_FAILED,
        )
    outputs = [
        {
            "name": item.name,
            "datatype": item.datatype,
            "shape": list(item.shape),
            "parameters": {"binary_data_size": len(raw)},
        }
        for item, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    ]
    document = {
        "model_name": answer.model_name,
        "model_version": answer.model_version,
        "outputs": outputs,
    }
    return document, b"".join(answer.raw_output_contents)

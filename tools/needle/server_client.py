"""A client of the server's generation service.

The Python messages are made from the proto file at run time, so nothing generated is kept here.
Needs grpcio and grpcio-tools (or protoc on the path, and protobuf).
"""

import importlib
import pathlib
import subprocess
import sys
import tempfile

PROTO_ROOT = pathlib.Path(__file__).resolve().parents[2] / "proto"
PROTO = "retroinfer/generation/v1/generation.proto"
METHOD = "/retroinfer.generation.v1.GenerationService/Generate"
_MAX_MESSAGE_BYTES = 64 << 20


def load_messages():
    """Compiles the proto file and imports the messages."""
    folder = tempfile.mkdtemp(prefix="needle_proto_")
    command = [f"-I{PROTO_ROOT}", f"--python_out={folder}", PROTO]
    try:
        subprocess.run(["protoc", *command], check=True)
    except FileNotFoundError:
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *command], check=True)
    sys.path.insert(0, folder)
    return importlib.import_module("retroinfer.generation.v1.generation_pb2")


class Client:
    """Sends prompts as text and returns the whole answer."""

    def __init__(self, address: str, timeout_s: float):
        import grpc
        self._failure = grpc.RpcError
        self._messages = load_messages()
        self._timeout_s = timeout_s
        limits = [("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
                  ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
        self._generate = grpc.insecure_channel(address, options=limits).unary_stream(
            METHOD, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._messages.GenerateResponse.FromString)

    def generate(self, text: str, policy: str, max_tokens: int) -> str:
        """Continues `text` greedily under the policy "full" or "wave".

        Raises OSError with the server's message when the call fails.
        """
        request = self._messages.GenerateRequest(text=text)
        request.sampling.temperature = 0
        request.sampling.max_tokens = max_tokens
        request.attention.policy = self._messages.AttentionPolicy.Value(
            f"ATTENTION_POLICY_{policy.upper()}")
        try:
            return "".join(response.output.text
                           for response in self._generate(request, timeout=self._timeout_s)
                           if response.WhichOneof("event") == "output")
        except self._failure as error:
            raise OSError(f"the server answered {error.code().name}: {error.details()}") from error

#!/usr/bin/env python3
"""Asks a fleet about a document: an example of a client, to be copied.

    deploy/fleet/ask.py --address balancer:50051 --file book.txt "Who is the narrator?"

Two things make it a good client of a fleet. It names what it asks about, so that the balancer sends all
questions about a document to the node that has read it. And it sends a request again that a node could
not take. Needs Debian's python3-grpcio, python3-protobuf and protobuf-compiler (or grpcio-tools).
"""
import argparse
import collections
import hashlib
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import grpc

PROTO_ROOT = pathlib.Path(__file__).resolve().parents[2] / "proto"
METHOD = "/retroinfer.generation.v1.GenerationService/Generate"
CONTEXT_KEY = "x-retroinfer-context"  # gRPC's metadata keys are in lower case
CONTEXT_BYTES = 16 << 10
MESSAGE_BYTES_MAX = 64 << 20

# A node that loads, drains or has lost its store answers UNAVAILABLE at once. The balancer asks nodes for their
# health once a second: the first retry may still meet the same node, the second does not.
SERVICE_CONFIG = json.dumps({"methodConfig": [{
    "name": [{"service": "retroinfer.generation.v1.GenerationService"}],
    "retryPolicy": {"maxAttempts": 4, "initialBackoff": "1s", "maxBackoff": "5s",
                    "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]})


def context_name(prompt):
    """Returns what names a prompt's context, as `retroinfer generate` has it:
    head -c 16384 PROMPT | sha256sum | head -c 16"""
    return hashlib.sha256(prompt.encode()[:CONTEXT_BYTES]).hexdigest()[:16]


def load_messages():
    """Compiles the proto file and imports its messages."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"-I{PROTO_ROOT}", f"--python_out={folder}",
                     "retroinfer/generation/v1/generation.proto"]
        try:
            subprocess.run(["protoc", *arguments], check=True)
        except FileNotFoundError:
            subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("retroinfer.generation.v1.generation_pb2")
        finally:
            sys.path.remove(folder)


class Client:
    """Threads: any."""

    def __init__(self, address, api_key=None):
        self.messages = load_messages()
        self.asked_again = collections.Counter()  # by status
        self._metadata = [("authorization", f"Bearer {api_key}")] if api_key else []
        self._channel = grpc.insecure_channel(address, options=[
            ("grpc.service_config", SERVICE_CONFIG),
            ("grpc.enable_retries", 1),
            # A request is kept for a retry as long as all that are under way fit in here.
            ("grpc.per_rpc_retry_buffer_size", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ])
        self._generate = self._channel.unary_stream(
            METHOD, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self.messages.GenerateResponse.FromString)

    def close(self):
        self._channel.close()

    def generate(self, prompt, max_tokens=64, context=None, timeout_s=None):
        """Returns the text and the finished event (cached_tokens, timings, ...).

        Raises grpc.RpcError.
        """
        request = self.messages.GenerateRequest(text=prompt)
        request.sampling.temperature = 0
        request.sampling.max_tokens = max_tokens
        metadata = [*self._metadata, (CONTEXT_KEY, context or context_name(prompt))]
        text, finished = [], None
        for event in self._generate(request, metadata=metadata, timeout=timeout_s):
            if event.WhichOneof("event") == "output":
                text.append(event.output.text)
            elif event.WhichOneof("event") == "finished":
                finished = event.finished
        return "".join(text), finished

    def ask(self, prompt, **options):
        """generate(), once more if the node is lost while it answers: the balancer has another."""
        try:
            return self.generate(prompt, **options)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL,
                                    grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED):
                raise
            self.asked_again[error.code().name] += 1
            time.sleep(2)
            return self.generate(prompt, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--address", default="127.0.0.1:50051", help="of the balancer (default: %(default)s)")
    parser.add_argument("--file", type=pathlib.Path, required=True, help="the document")
    parser.add_argument("--api-key-file", type=pathlib.Path)
    parser.add_argument("--context", help="name of the context instead of a hash of the prompt's beginning")
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    key = arguments.api_key_file.read_text(encoding="utf-8").strip() if arguments.api_key_file else None
    client = Client(arguments.address, key)
    prompt = f"{arguments.file.read_text(encoding='utf-8')}\n\nQuestion: {arguments.question}\nAnswer:"
    try:
        text, finished = client.ask(prompt, max_tokens=arguments.max_tokens, context=arguments.context)
    except grpc.RpcError as error:
        sys.exit(f"ask: {error.code().name}: {error.details()}")
    print(text.strip())
    print(f"[{finished.prompt_tokens} prompt tokens, {finished.cached_tokens} of them cached]", file=sys.stderr)


if __name__ == "__main__":
    main()

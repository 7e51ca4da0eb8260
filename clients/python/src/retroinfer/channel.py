"""How a server is reached."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

_MESSAGE_BYTES_MAX = 64 << 20
OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # The reading of a prompt may take minutes without a byte on the wire.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A server that was restarted is found again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


@dataclass(frozen=True)
class Tls:
    """PEM files. ca: that signed the server's certificate; None: the system's. certificate and key: of this
    client, for mutual TLS. server_name: that the certificate has, where it is not the address's host."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key need each other")

        def read(path: str | Path | None) -> bytes | None:
            return None if path is None else Path(path).read_bytes()

        return grpc.ssl_channel_credentials(read(self.ca), read(self.key), read(self.certificate))

    def options(self) -> list[tuple[str, int | str]]:
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def call_metadata(api_key: str | None, context: str = "") -> list[tuple[str, str]]:
    metadata = []
    if api_key:
        metadata.append(("authorization", f"Bearer {api_key}"))
    if context:
        metadata.append(("x-retroinfer-context", context))
    return metadata

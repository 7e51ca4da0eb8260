"""What is measured under each setting, once."""

import dataclasses
import threading
from typing import Any

from .client import Client, Setting


@dataclasses.dataclass
class Job:
    """A measurement of one thing. `key` is its name in the file, in front of the setting."""
    key: list
    name: str
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, init=False,
                                              repr=False)
    _made: Any = dataclasses.field(default=None, init=False, repr=False)

    def measure(self, server, client: Client, setting: Setting) -> dict:
        """Returns the content of a line.

        server: the services, or None where only their address is known. Raises OSError or
        ValueError when it fails.
        """
        raise NotImplementedError

    def made(self, client: Client, make):
        """Returns what `make` builds, and builds it once."""
        with self._lock:
            if self._made is None:
                self._made = make(client)
            return self._made

    def drop(self) -> None:
        """Forgets what was built."""
        self._made = None

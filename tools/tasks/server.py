"""`retroinfer serve` with its HTTP API for one measurement, stopped when the block ends."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 300  # until a model is loaded
_READY = "HTTP API is at"


def stop_by_signals() -> None:
    """Makes SIGTERM and SIGHUP end the program as an exception does, so that servers are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda which, _: sys.exit(128 + which))


class Server:
    """The services of a folder of programs, in a process group and a folder of their own."""

    def __init__(self, programs: pathlib.Path, model: pathlib.Path, options: list[str]):
        self._program = str(programs / "retroinfer")
        self._model, self._options = str(model), options
        self._folder = tempfile.TemporaryDirectory(prefix="retroinfer-tasks-")
        self._log = pathlib.Path(self._folder.name) / "log"
        self.url = ""

    @property
    def address(self) -> str:
        """The gRPC API."""
        return f"unix:{self._folder.name}/api.sock"

    def __enter__(self):
        command = [self._program, "serve", "--model", self._model, "--listen", self.address,
                   "--socket-dir", f"{self._folder.name}/sockets", "--http", "127.0.0.1:0",
                   "--metrics-address", "none", "--store-metrics-address", "none", *self._options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self.url = self._await_url()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._folder.cleanup()

    def generate(self, prompt: str, options: list[str]) -> subprocess.CompletedProcess:
        """Runs `retroinfer generate --json` with a prompt and returns what became of it."""
        return subprocess.run(
            [self._program, "generate", "--address", self.address, "--json", "--quiet", *options,
             "-"], input=prompt, capture_output=True, text=True, check=False)

    def log(self) -> str:
        """Returns what the services have said."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _await_url(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            text = self.log()
            if _READY in text:
                return "http://" + re.findall(r"http_gateway: serving \S+ on (127\.0\.0\.1:\d+)",
                                              text)[-1]
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise OSError(f"the server did not start:\n{self.log()}")

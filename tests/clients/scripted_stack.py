"""The gateway over a scripted worker, with a key, and with a recorder in between."""
import pathlib
import re
import secrets
import signal
import subprocess
import tempfile
import time

import scripted_worker
from recorder import Recorder

PATIENCE = 60  # seconds


class ScriptedStack:
    """Owns: the worker, the gateway's process, and a folder with the key and the log."""

    def __init__(self, bin_dir, *options):
        self.worker = scripted_worker.ScriptedWorker()
        self.model = scripted_worker.NAME
        self.key = secrets.token_hex(16)
        self._folder = tempfile.TemporaryDirectory(prefix="retroinfer-scripted-")
        folder = pathlib.Path(self._folder.name)
        (folder / "key").write_text(self.key, encoding="utf-8")
        log_path = folder / "log"
        with open(log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [bin_dir / "http_gateway", f"--worker={self.worker.address}", "--http=127.0.0.1:0",
                 f"--api-key-file={folder}/key", *options], stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not (found := re.findall(r"serving \S+ on 127\.0\.0\.1:(\d+)", log_path.read_text(encoding="utf-8"))):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise SystemExit(log_path.read_text(encoding="utf-8"))
            time.sleep(0.05)
        self.port = int(found[-1])
        self.recorder = Recorder(None, self.port)
        self.url = f"http://127.0.0.1:{self.recorder.port}"

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self.worker.stop()
        self._folder.cleanup()

"""`retroinfer serve --http` with the demo model, or another one, and an API key, in a folder of its own."""
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time

from recorder import Recorder

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds


class Server:
    def __init__(self, bin_dir, record=None, *, model=ROOT / "models/needle", options=(), remember=False):
        """record: a folder for what clients send, or None. remember: keep it, and the answers, in `recorder`."""
        self._bin = bin_dir
        self.recorder = None
        self.model = model.name
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-"))
        os.chmod(self.folder, 0o700)
        self.address = f"unix:{self.folder}/generation.sock"
        self.key = secrets.token_hex(16)
        (self.folder / "key").write_text(self.key, encoding="utf-8")
        log_path = self.folder / "log"
        with open(log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [bin_dir / "retroinfer", "serve", f"--model={model}",
                 f"--socket-dir={self.folder}", "--listen=127.0.0.1:0", "--metrics-address=none",
                 "--store-metrics-address=none", "--arena-bytes=256MiB", "--http=127.0.0.1:0",
                 f"--api-key-file={self.folder}/key", *options], stderr=log, stdin=subprocess.DEVNULL)
        while "HTTP API is at" not in log_path.read_text(encoding="utf-8"):
            if self.process.poll() is not None:
                raise SystemExit(log_path.read_text(encoding="utf-8"))
            time.sleep(0.1)
        port = int(re.findall(r"http_gateway: serving \S+ on 127\.0\.0\.1:(\d+)",
                              log_path.read_text(encoding="utf-8"))[-1])
        if record is not None or remember:
            self.recorder = Recorder(record, port)
            port = self.recorder.port
        self.url = f"http://127.0.0.1:{port}"

    def begin(self, client):
        """Names whom the recorder hears from now on."""
        if self.recorder is not None:
            self.recorder.begin(client)

    def stop(self):
        if self.recorder is not None:
            self.recorder.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        shutil.rmtree(self.folder)

    def command(self, *arguments):
        """Runs `retroinfer` as a client; returns what it printed."""
        return subprocess.run(
            [self._bin / "retroinfer", *arguments, f"--address={self.address}",
             f"--api-key-file={self.folder}/key"], capture_output=True, text=True, check=True).stdout

    def stats(self):
        return json.loads(self.command("ps", "--json", f"--socket-dir={self.folder}"))["gpu_worker"]

    def await_idle(self):
        deadline = time.monotonic() + PATIENCE
        while self.stats()["requests_running"] > 0:
            if time.monotonic() > deadline:
                raise AssertionError(f"requests are running after {PATIENCE} s")
            time.sleep(0.05)

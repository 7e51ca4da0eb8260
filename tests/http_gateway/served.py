"""`retroinfer serve --http` with the demo model, for tests."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
JSON = {"Content-Type": "application/json"}
PATIENCE = 120  # seconds, for a machine that is busy


def await_true(condition, what):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def child_of(parent, name):
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = entry.read_text(errors="replace")
            command, fields = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:]
            if command == name and int(fields.split()[1]) == parent:
                return int(entry.parent.name)
    raise AssertionError(f"{parent} has no child {name}")


class Served:
    """`retroinfer serve` in a folder of its own; `bin_dir`: where the programs are."""

    def __init__(self, bin_dir, *options, arena="64MiB", drain="5s"):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-"))
        os.chmod(self.folder, 0o700)
        self.log = self.folder / "serve.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [str(pathlib.Path(bin_dir) / "retroinfer"), "serve", f"--model={ROOT}/models/needle",
                 f"--socket-dir={self.folder}", "--listen=127.0.0.1:0", "--metrics-address=none",
                 "--store-metrics-address=none", f"--arena-bytes={arena}", "--memory=512MiB",
                 "--http=127.0.0.1:0", f"--drain-timeout={drain}", *options],
                stderr=log, stdin=subprocess.DEVNULL)
        try:
            await_true(lambda: "HTTP API is at" in self.text() or self.process.poll() is not None,
                       "serve is ready")
            self.port = self.find_port()
        except BaseException:
            self.stop()
            raise

    def text(self):
        return self.log.read_text(encoding="utf-8")

    def find_worker_port(self):
        return int(re.findall(r"gpu_worker: serving \S+ on 127\.0\.0\.1:(\d+)", self.text())[-1])

    def find_port(self):
        found = re.findall(r"http_gateway: serving \S+ on 127\.0\.0\.1:(\d+)", self.text())
        if not found:
            raise AssertionError(self.text())
        return int(found[-1])

    def follow_gateway(self):
        """Waits until a gateway that was killed once is started again, at the port it had."""
        await_true(lambda: len(re.findall(r"http_gateway: serving ", self.text())) > 1,
                   "the gateway is started again")
        if self.find_port() != self.port:
            raise AssertionError(self.text())

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method, path, data, {**JSON, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def post(self, path, body):
        status, _, text = self.ask("POST", path, body)
        assert status == 200, text
        return json.loads(text)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code

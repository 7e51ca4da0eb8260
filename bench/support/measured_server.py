"""Both services as a user starts them, for programs that measure them over gRPC or HTTP."""
import http.client
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Server:
    """Both services in a folder of their own, until the end of a with statement."""

    def __init__(self, arguments, options):
        self.arguments = arguments
        self.bin_dir = pathlib.Path(arguments.bin_dir).resolve()
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-measure-"))
        self.address = f"unix:{self.folder}/generation.sock"

    def __enter__(self):
        self.http_port, self.metrics_port = free_port(), free_port()
        self.log = open(self.folder / "serve.log", "wb")
        self.process = subprocess.Popen(
            [str(self.bin_dir / "retroinfer"), "serve", "--socket-dir", str(self.folder),
             "--listen", f"unix:{self.folder}/public.sock", "--http", f"127.0.0.1:{self.http_port}",
             "--metrics-address", f"127.0.0.1:{self.metrics_port}", "--store-metrics-address", "none",
             "--http-metrics-address", "none",
             *(["--log-level", "debug"] if getattr(self.arguments, "log", None) is not None else []),
             *self.options], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 150
        while subprocess.run([str(self.bin_dir / "retroinfer"), "health", "--address", self.address],
                             capture_output=True).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError("the server does not serve: " + self.last_words)
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        log = (self.folder / "serve.log").read_text(errors="replace")
        self.last_words = log[-2000:]
        if getattr(self.arguments, "log", None) is not None:
            with open(self.arguments.log, "a", encoding="utf-8") as file:
                file.write(log)
        shutil.rmtree(self.folder)

    def begin(self, prompts, at_a_time, input_len, output_len, **more):
        """Starts a load; keyword names are options of bench."""
        result = self.folder / f"{time.monotonic_ns()}.json"
        command = [str(self.bin_dir / "retroinfer"), "bench", "--address", self.address,
                   "--num-prompts", str(prompts), "--max-concurrency", str(at_a_time),
                   "--input-len", str(input_len), "--output-len", str(output_len), "--temperature",
                   "0", "--load-seed", str(time.monotonic_ns() % 10**9), "--result-file", str(result)]
        for name, value in more.items():
            option = "--" + name.replace("_", "-")
            if option in command:
                command[command.index(option) + 1] = str(value)
            else:
                command += [option, str(value)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        process.result = result
        return process

    def end(self, process, stop=False):
        """Waits for a load, or stops it, and returns its figures."""
        if stop and process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        if not process.result.exists():
            raise RuntimeError(errors.decode(errors="replace")[-500:])
        figures = json.loads(process.result.read_text())
        if not stop and figures.get("failed", 0) > 0:
            raise RuntimeError(f"{figures['failed']} requests failed: {figures.get('errors')}")
        return figures

    def log_tail(self, length=600):
        return (self.folder / "serve.log").read_text(errors="replace")[-length:]

    def metrics(self):
        """The worker's counters and gauges, each with the sum over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        values = {}
        for name, value in re.findall(r"^retroinfer_(\w+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            values[name] = values.get(name, 0) + float(value)
        return values

    def run(self, *load, **more):
        return self.end(self.begin(*load, **more))

    def post(self, path, body):
        """Asks over HTTP. Returns how long the answer took, in seconds."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        begun = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read()[:500]}") from error
        return time.monotonic() - begun

    def wait_for_http(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v1/models", timeout=10) as answer:
                    return answer.read()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def stream(self, body, tokens):
        """Streams a completion and goes away after so many tokens. Returns the seconds to each of them."""
        times = []
        begun = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=300)
        try:
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {answer.read()[:500]}")
            while len(times) < tokens:
                line = answer.readline()
                if not line or line.startswith(b"data: [DONE]"):
                    break
                if line.startswith(b"data: {"):
                    times.append(time.monotonic() - begun)
        finally:
            connection.close()
        return times

"""The services with the demo model, and a real Prometheus that scrapes them by the configuration of
deploy/prometheus: everything in one temporary folder, on free ports, gone at the end."""
import http.client
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
JOBS = {"gpu-worker": "gpu_worker", "http-gateway": "http_gateway", "kv-store": "kv_store_service"}
HTTP_KEY = "key-of-clients"
PATIENCE_S = 240  # only a stack that does not work waits so long


def eventually(condition, what):
    """Returns what `condition` returns, once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {PATIENCE_S} s")
        time.sleep(0.1)
    return result


class Stack:
    def __init__(self, bin_dir, store_options=(), worker_options=()):
        self.bin_dir = pathlib.Path(bin_dir).resolve()
        self.options = {"kv_store_service": list(store_options), "gpu_worker": list(worker_options)}
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-live-"))
        self.address = None  # of the worker
        self.processes = {}
        self.ports = {}
        self.url = None
        self.tls_options = []  # of clients

    def close(self):
        """Ends what was started, in order, and removes the folder."""
        for name in ("http_gateway", "gpu_worker", "kv_store_service", "prometheus"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name, command, port_pattern):
        """Starts a process and returns the port that it says it listens on."""
        path = self.folder / f"{name}.log"
        with open(path, "wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                cwd=self.folder)

        def port():
            text = path.read_text(errors="replace")
            if self.processes[name].poll() is not None:
                raise AssertionError(f"{name} ended:\n{text[-4000:]}")
            return re.search(port_pattern, text)

        return int(eventually(port, f"{name} listens").group(1))

    def _start_service(self, name, *options):
        self.ports[name] = self._start(
            name, [self.bin_dir / name, "--socket-dir", self.folder / "sockets", "--metrics-address",
                   "127.0.0.1:0", *options, *self.options[name]], r"metrics on port (\d+)")

    def make_certificate(self):
        """From here on the worker and its clients use TLS."""
        key, certificate = self.folder / "tls.key", self.folder / "tls.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                        "-nodes", "-keyout", key, "-out", certificate, "-days", "90", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True, check=True)
        self.options["gpu_worker"] += ["--tls-certificate", certificate, "--tls-key", key]
        self.tls_options = ["--tls-ca", certificate]

    def start_store(self):
        (self.folder / "sockets").mkdir(mode=0o700, exist_ok=True)
        self._start_service("kv_store_service", "--arena-bytes", "256MiB", "--cache-dir",
                            self.folder / "cache", "--cache-bytes", "1GiB")

    def start_gateway(self):
        """Before the worker, which it waits for at a socket without TLS; for clients it has TLS, and a key."""
        (self.folder / "key").write_text(HTTP_KEY, encoding="utf-8")
        certificate = self.folder / "tls.pem"
        self.ports["http_gateway"] = self._start(
            "http_gateway",
            [self.bin_dir / "http_gateway", "--http", "127.0.0.1:0", "--http-metrics-address", "127.0.0.1:0",
             "--worker", f"unix:{self.folder}/sockets/api.sock", "--tls-certificate", certificate, "--tls-key",
             self.folder / "tls.key", "--api-key-file", self.folder / "key"], r"metrics on port (\d+)")
        log = self.folder / "http_gateway.log"
        self.http_port = int(eventually(lambda: re.search(r"serving \S+ on 127\.0\.0\.1:(\d+)", log.read_text()),
                                        "the gateway says where it listens").group(1))

    def http(self, method, path, body=None, key=None):
        """Returns status and text."""
        context = ssl.create_default_context(cafile=str(self.folder / "tls.pem"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S, context=context)
        connection.request(method, path, None if body is None else json.dumps(body), {
            "Content-Type": "application/json", "Authorization": f"Bearer {key or HTTP_KEY}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def start_worker(self, on_port=lambda: None):
        """Calls `on_port` as soon as there are metrics, long before the model is loaded."""
        self._start_service("gpu_worker", "--model", ROOT / "models" / "needle", "--listen",
                            f"127.0.0.1:0,unix:{self.folder}/sockets/api.sock", "--device", "cpu", "--memory", "1GiB")
        on_port()
        eventually(lambda: "retroinfer_ready 1" in self.metrics("gpu_worker"), "the worker is ready")
        log = self.folder / "gpu_worker.log"
        self.address = eventually(lambda: re.search(r"serving \S+ on (127\.0\.0\.1:\d+)", log.read_text()),
                                  "the worker says where it listens").group(1)

    def metrics(self, service):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[service]}/metrics", timeout=60) as answer:
            return answer.read().decode()

    def start_prometheus(self, interval="1s"):
        """With the shipped rules and scrape configuration; targets (what was started) and the interval are this
        stack's."""
        folder = self.folder / "prometheus"
        shutil.copytree(PROMETHEUS, folder)
        path = folder / "prometheus.yml"
        text, count = re.subn(r"(scrape_interval|evaluation_interval|scrape_timeout): \S+",
                              rf"\1: {interval}", path.read_text(encoding="utf-8"))
        assert count == 3, "the intervals are not where they were"
        path.write_text(text, encoding="utf-8")
        for job, service in JOBS.items():
            self._write_target(folder, job, self.ports.get(service))
        (folder / "targets" / "alertmanager.yml").write_text("[]\n", encoding="utf-8")
        port = self._start("prometheus", [
            "prometheus", f"--config.file={path}", f"--storage.tsdb.path={self.folder / 'tsdb'}",
            "--web.listen-address=127.0.0.1:0"], r'msg="Listening on" address=127\.0\.0\.1:(\d+)')
        self.url = f"http://127.0.0.1:{port}"
        eventually(self._prometheus_is_ready, "Prometheus is ready")
        eventually(lambda: len(self.value("up == 1")) == len(self.ports), "all services are scraped")

    def _prometheus_is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=60):
                return True
        except urllib.error.HTTPError:
            return False

    @staticmethod
    def _write_target(folder, job, port):
        targets = [] if port is None else [{"targets": [f"127.0.0.1:{port}"], "labels": {"node": "here"}}]
        (folder / "targets" / f"{job}.yml").write_text(json.dumps(targets), encoding="utf-8")

    def api(self, path, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def value(self, expression):
        """Returns the vector that `expression` has now."""
        return self.api("query", query=expression)["result"]

    def range(self, expression, start, end, step):
        """Returns [(labels, [(time, value)])]."""
        return [(series["metric"], [(float(at), float(value)) for at, value in series["values"]])
                for series in self.api("query_range", query=expression, start=start, end=end,
                                       step=step)["result"]]

    def wait_for_scrapes(self, count):
        """Waits until all services were scraped `count` times more; the first of these may have begun before."""
        def scrapes():
            return min(int(series["value"][1]) for series in self.value("count_over_time(up[1h])"))

        before = scrapes()
        eventually(lambda: scrapes() >= before + count, f"{count} scrapes")

    def _client_command(self, arguments):
        return [str(part) for part in (self.bin_dir / "retroinfer", *arguments, "--address", self.address,
                                       *self.tls_options)]

    def client(self, *arguments, succeeds=True):
        """Runs the command-line client; returns its output."""
        result = subprocess.run(self._client_command(arguments), stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, check=False)
        if (result.returncode == 0) != succeeds:
            raise AssertionError(f"{arguments}: ended with {result.returncode}: {result.stdout}{result.stderr}")
        return result.stdout

    def start_client(self, *arguments):
        return subprocess.Popen(self._client_command(arguments), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

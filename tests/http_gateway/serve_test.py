#!/usr/bin/env python3
"""OpenAI's HTTP API of `retroinfer serve --http` with the demo model, spoken byte by byte.

usage: serve_test.py BIN_DIR
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
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
    """`retroinfer serve` in a folder of its own."""

    def __init__(self, *options):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-"))
        os.chmod(self.folder, 0o700)
        self.log = self.folder / "serve.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [str(BIN / "retroinfer"), "serve", f"--model={ROOT}/models/needle",
                 f"--socket-dir={self.folder}", "--listen=127.0.0.1:0", "--metrics-address=none",
                 "--store-metrics-address=none", "--arena-bytes=64MiB", "--memory=512MiB",
                 "--http=127.0.0.1:0", "--drain-timeout=5s", *options],
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

    def find_port(self):
        found = re.findall(r"http_gateway: serving \S+ on 127\.0\.0\.1:(\d+)", self.text())
        if not found:
            raise AssertionError(self.text())
        return int(found[-1])

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


def events(text):
    return [line[6:] for line in text.split("\n") if line.startswith("data: ")]


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served()

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        assert code == 0, code

    def test_the_model_has_a_name(self):
        status, _, text = self.served.ask("GET", "/v1/models")
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(text)["data"][0]["id"], "needle")
        self.assertEqual(self.served.ask("GET", "/health")[0], 200)
        self.assertIn("retroinfer_gateway_connections",
                      self.served.ask("GET", "/metrics")[2])

    def test_its_metrics_are_documented(self):
        self.served.ask("GET", "/nothing")
        text = self.served.ask("GET", "/metrics")[2]
        exported = {name: [kind, re.findall(rf"# HELP {name} (.*)", text)[0]]
                    for name, kind in re.findall(r"# TYPE (retroinfer_gateway_\w+) (\w+)", text)}
        rows = re.findall(r"^\| `(retroinfer_gateway_\w+)` \| (\w+) \| [^|]*\| (.*) \|$",
                          (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(exported, {name: [kind, meaning] for name, kind, meaning in rows})

    def test_it_answers_a_question_about_a_document(self):
        document = (ROOT / "deploy/examples/document.txt").read_text(encoding="utf-8")
        tokens = self.served.post("/tokenize", {"prompt": document})["count"]
        request = {"model": "needle", "max_tokens": 4, "temperature": 0, "messages": [
            {"role": "system", "content": document},
            {"role": "user", "content": [{"type": "text", "text": "What is the passkey?"}]}]}
        whole = self.served.post("/v1/chat/completions", request)
        text = whole["choices"][0]["message"]["content"]
        self.assertTrue(text.strip())
        self.assertGreater(whole["usage"]["prompt_tokens"], tokens)
        again = self.served.post("/v1/chat/completions", request)
        self.assertEqual(again["choices"][0]["message"]["content"], text)
        status, headers, stream = self.served.ask(
            "POST", "/v1/chat/completions",
            {**request, "stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        chunks = events(stream)
        self.assertEqual(chunks[-1], "[DONE]")
        chunks = [json.loads(chunk) for chunk in chunks[:-1]]
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(chunk["choices"][0]["delta"].get("content", "")
                                 for chunk in chunks[:-1]), text)
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"],
                         whole["choices"][0]["finish_reason"])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"],
                         whole["usage"]["completion_tokens"])

    def test_greedy_completions_are_the_same_for_text_and_tokens(self):
        prompt = "The passkey is"
        ids = self.served.post("/tokenize", {"prompt": prompt})["tokens"]
        request = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        by_text = self.served.post("/v1/completions", {**request, "prompt": prompt})
        by_ids = self.served.post("/v1/completions", {**request, "prompt": ids})
        self.assertEqual(by_text["choices"][0]["text"], by_ids["choices"][0]["text"])
        tokens = by_text["choices"][0]["logprobs"]["tokens"]
        self.assertEqual(len(tokens), 6)
        self.assertEqual("".join(tokens), by_text["choices"][0]["text"])

    def test_tools_of_a_model_without_them_are_refused_by_name(self):
        status, _, text = self.served.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": {"name": "f"}}]})
        self.assertEqual(status, 400)
        self.assertEqual(json.loads(text)["error"]["param"], "tools")

    def test_a_client_that_goes_away_frees_its_place(self):
        body = json.dumps({"prompt": "x", "max_tokens": 100000 // 2, "ignore_eos": True,
                           "stream": True})
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", self.served.port)) as client:
                client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: "
                               f"application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
                               .encode())
                client.recv(1)
        await_true(lambda: "retroinfer_gateway_generations 0" in
                   self.served.ask("GET", "/metrics")[2], "no generation is open")
        address = f"unix:{self.served.folder}/generation.sock"
        await_true(lambda: json.loads(subprocess.run(
            [str(BIN / "retroinfer"), "ps", "--json", f"--address={address}",
             f"--socket-dir={self.served.folder}"],
            capture_output=True, text=True, check=True).stdout)["gpu_worker"]["requests_running"] == 0,
                   "the worker runs nothing")


class RestartTest(unittest.TestCase):
    def test_services_that_die_come_back(self):
        served = Served()
        try:

            def answers():
                try:
                    return served.ask("POST", "/v1/completions",
                                      {"prompt": "x", "max_tokens": 1})[0] == 200
                except OSError:
                    return False

            self.assertTrue(answers())
            os.kill(child_of(served.process.pid, "gpu_worker"), signal.SIGKILL)
            await_true(answers, "the gateway finds the new worker")
            os.kill(child_of(served.process.pid, "http_gateway"), signal.SIGKILL)
            old = served.port

            def found():
                served.port = served.find_port()
                return served.port != old and answers()
            await_true(found, "the gateway is started again")
        finally:
            self.assertEqual(served.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

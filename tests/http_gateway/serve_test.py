#!/usr/bin/env python3
"""OpenAI's HTTP API of `retroinfer serve --http` with the demo model, spoken byte by byte.

usage: serve_test.py BIN_DIR
"""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

from served import JSON, PATIENCE, ROOT, Served, await_true, child_of

BIN = pathlib.Path(sys.argv.pop(1)).resolve()


class Asked(threading.Thread):
    """A request on a thread of its own, and its answer."""

    def __init__(self, served, *request):
        super().__init__(daemon=True)
        self.served, self.request, self.answer = served, request, None

    def run(self):
        self.answer = self.served.ask(*self.request)


def events(text):
    return [line[6:] for line in text.split("\n") if line.startswith("data: ")]


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(BIN)

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        assert code == 0, code

    def test_echo_with_logprobs_is_what_generating_says(self):
        """As evaluation harnesses ask: ids of context and continuation, max_tokens 0 or 1."""
        text = "The needle is 1234. The needle"
        greedy = self.served.post("/v1/completions", {"prompt": text, "max_tokens": 8, "temperature": 0,
                                                      "logprobs": 1, "ignore_eos": True})["choices"][0]
        context = self.served.post("/tokenize", {"prompt": text})["tokens"]
        whole = self.served.post("/tokenize", {"prompt": text + greedy["text"]})["tokens"]
        for max_tokens in (0, 1):
            answer = self.served.post("/v1/completions",
                                      {"prompt": [whole, context], "max_tokens": max_tokens, "temperature": 0,
                                       "logprobs": 1, "echo": True, "policy": "full"})
            choice = answer["choices"][0]
            logprobs = choice["logprobs"]
            self.assertEqual(len(logprobs["tokens"]), len(whole) + max_tokens)
            self.assertIsNone(logprobs["token_logprobs"][0])
            for at, token in zip(logprobs["text_offset"], logprobs["tokens"]):
                self.assertTrue(token.startswith("bytes:") or choice["text"][at:].startswith(token), (at, token))
            self.assertEqual(len(answer["choices"][1]["logprobs"]["tokens"]), len(context) + max_tokens)
            if whole[:len(context)] != context or len(whole) - len(context) != 8:
                continue  # the text is tokenized in another way than it was generated
            behind = slice(len(context), len(whole))
            for got, want, top in zip(logprobs["token_logprobs"][behind], greedy["logprobs"]["token_logprobs"],
                                      logprobs["top_logprobs"][behind]):
                self.assertAlmostEqual(got, want, delta=0.05)  # prefill and decode steps round differently
                self.assertEqual(got, max(top.values()))

    def test_a_score_is_what_generating_says_to_the_bit(self):
        context = self.served.post("/tokenize", {"prompt": "The needle is 1234. The needle"})["tokens"]
        greedy = self.served.post("/v1/completions", {"prompt": context, "max_tokens": 8, "temperature": 0,
                                                      "logprobs": 0, "ignore_eos": True})["choices"][0]["logprobs"]
        ids = []  # of what was generated: of each token the likeliest one behind those before it
        for _ in greedy["tokens"]:
            answer = self.served.post("/score", {"prompt": context + ids, "continuations": [[0]], "logprobs": 1})
            ids.append(answer["continuations"][0]["top_logprobs"][0][0]["token_id"])
        answer = self.served.post("/score", {"prompt": context, "continuations": [ids, ids[:3], [ids[0], 0]],
                                             "prompt_logprobs": 0, "policy": "wave"})
        whole, beginning, other = answer["continuations"]
        self.assertEqual(whole["tokens"], greedy["tokens"])
        self.assertEqual(whole["token_logprobs"], greedy["token_logprobs"])
        self.assertEqual(whole["ranks"], [1] * 8)
        self.assertTrue(whole["all_greedy"])
        self.assertEqual(beginning["token_logprobs"], whole["token_logprobs"][:3])
        self.assertEqual(other["token_logprobs"][0], whole["token_logprobs"][0])
        self.assertFalse(other["all_greedy"])
        self.assertEqual(answer["prompt"]["token_ids"], context)
        self.assertIsNone(answer["prompt"]["token_logprobs"][0])
        self.assertEqual(answer["usage"]["completion_tokens"], 8 + 3 + 2)
        status, _, text = self.served.ask("POST", "/score", {"prompt": context, "continuations": []})
        self.assertEqual((status, json.loads(text)["error"]["code"]), (400, "missing_parameter"))

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
                          (ROOT / "docs/operate/metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
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


class AloneTest(unittest.TestCase):
    def test_a_unit_of_its_own_says_how_it_does(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="retroinfer-")))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=a",
                        "-keyout", folder / "key", "-out", folder / "crt"], check=True, capture_output=True)
        told = self.enterContext(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        told.bind(str(folder / "notify"))
        told.settimeout(PATIENCE)
        with open(folder / "log", "w", encoding="utf-8") as log:
            gateway = subprocess.Popen(
                [BIN / "http_gateway", "--http=127.0.0.1:0", f"--worker=unix:{folder}/nobody",
                 "--http-metrics-address=127.0.0.1:0", f"--tls-certificate={folder}/crt", f"--tls-key={folder}/key"],
                stderr=log, env={**os.environ, "NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "2000000"})
        self.addCleanup(gateway.wait)
        self.addCleanup(gateway.kill)
        seen = ""
        while "READY=1" not in seen or seen.count("WATCHDOG=1") < 3:
            seen += told.recv(4096).decode() + "\n"
        port = int(re.search(r"metrics on port (\d+)", (folder / "log").read_text(encoding="utf-8")).group(1))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        name = "retroinfer_certificate_expiry_timestamp_seconds"
        ends = float(re.search(rf'{name}{{service="http_gateway"}} (\S+)', text).group(1))
        self.assertLess(abs(ends - time.time() - 3 * 86400), 3600)
        self.assertIn('retroinfer_certificate_reload_failures_total{service="http_gateway"} 0', text)


class Stream:
    """A completion over HTTP that does not end by itself, on a connection of its own."""

    def __init__(self, served):
        self.connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE)
        self.connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "x", "max_tokens": 65000, "policy": "streaming", "ignore_eos": True, "stream": True}), JSON)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.begun = self.answer.read1(1)

    def rest(self):
        text = (self.begun + self.answer.read()).decode()
        self.connection.close()
        return events(text)


class DrainTest(unittest.TestCase):
    """What clients of both APIs see when `serve` ends."""

    DRAIN = 3.0

    def serve(self, drain):
        # One request at a time, so that another one waits.
        served = Served(BIN, "--max-batch=1", drain=drain)
        self.addCleanup(served.stop)
        return served

    def queue(self, served):
        """A request that waits for the stream's end; returns a thread that will have its answer."""
        waiting = Asked(served, "POST", "/v1/completions", {"prompt": "y", "max_tokens": 5000, "ignore_eos": True})
        waiting.start()
        await_true(lambda: self.generations(served) == 2, "the request has reached the gateway")
        return waiting

    @staticmethod
    def generations(served):
        text = served.ask("GET", "/metrics")[2]
        return int(re.search(r"^retroinfer_gateway_generations (\d+)", text, re.MULTILINE).group(1))

    @staticmethod
    def live(served):
        stats = json.loads(served.ask("GET", "/stats")[2])
        return stats["requests_running"] + stats["requests_waiting"]

    def expect_errors(self, stream, waiting):
        told = stream.rest()
        self.assertIn("error", json.loads(told[-1]), told[-3:])
        waiting.join(PATIENCE)
        status, headers, text = waiting.answer
        self.assertEqual(status, 503, text)
        self.assertIn("Retry-After", headers)
        self.assertIn("error", json.loads(text))

    def test_at_the_deadline_of_both_services_clients_are_told(self):
        served = self.serve(f"{self.DRAIN}s")
        stream = Stream(served)
        waiting = self.queue(served)
        over_grpc = subprocess.Popen(
            [str(BIN / "retroinfer"), "generate", "x", "--max-tokens=60000", "--policy=streaming", "--ignore-eos",
             f"--address=unix:{served.folder}/generation.sock"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(over_grpc.wait)
        self.addCleanup(over_grpc.kill)
        await_true(lambda: self.live(served) == 3, "the worker has three requests")
        begin = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        await_true(lambda: "draining" in served.text(), "the worker drains")
        # New work is refused alike.
        status, _, text = served.ask("POST", "/v1/completions", {"prompt": "z", "max_tokens": 1})
        self.assertEqual((status, json.loads(text)["error"]["code"]), (503, "draining"))
        refused = subprocess.run(
            [str(BIN / "retroinfer"), "generate", "z", "--max-tokens=1", "--retries=0",
             f"--address=unix:{served.folder}/generation.sock"], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("UNAVAILABLE DRAINING", refused.stderr)
        self.assertEqual(served.ask("GET", "/health")[0], 503)
        self.expect_errors(stream, waiting)
        self.assertEqual(over_grpc.wait(PATIENCE), 1)
        self.assertEqual(served.process.wait(PATIENCE), 0)
        elapsed = time.monotonic() - begin
        print(f"drained for {elapsed:.2f} s with --drain-timeout {self.DRAIN} s")
        self.assertGreaterEqual(elapsed, self.DRAIN)
        # One deadline for both services: one behind the other takes twice the time.
        self.assertLess(elapsed, 2 * self.DRAIN)

    def test_a_second_signal_ends_answers_at_once_and_clients_are_told(self):
        served = self.serve("10m")
        stream = Stream(served)
        waiting = self.queue(served)
        served.process.send_signal(signal.SIGTERM)
        await_true(lambda: "draining" in served.text(), "the worker drains")
        served.process.send_signal(signal.SIGTERM)
        self.expect_errors(stream, waiting)
        self.assertEqual(served.process.wait(PATIENCE), 0)
        self.assertNotIn("killing", served.text())

    def test_a_gateway_alone_tells_its_clients_too(self):
        served = self.serve("10m")
        gateway = child_of(served.process.pid, "http_gateway")
        stream = Stream(served)
        waiting = self.queue(served)
        os.kill(gateway, signal.SIGTERM)
        await_true(lambda: served.ask("GET", "/health")[2] == '{"status":"draining"}', "the gateway drains")
        status, _, text = served.ask("POST", "/v1/completions", {"prompt": "z", "max_tokens": 1})
        self.assertEqual((status, json.loads(text)["error"]["code"]), (503, "draining"))
        os.kill(gateway, signal.SIGTERM)
        self.expect_errors(stream, waiting)


class RestartTest(unittest.TestCase):
    def test_services_that_die_come_back(self):
        served = Served(BIN)
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
            served.follow_gateway()
            await_true(answers, "the gateway that was started again answers")
        finally:
            self.assertEqual(served.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

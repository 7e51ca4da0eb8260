#!/usr/bin/env python3
"""Requests as packages send them (tests/http_gateway/fixtures/packages), over a worker that plays their answers.

usage: packages_test.py BIN_DIR   (with Debian's python3: it needs python3-grpcio)
Ends with 77 where something that it needs is missing.
"""
import http.client
import importlib.util
import json
import pathlib
import shutil
import sys
import unittest

import answers

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "http_gateway/fixtures/packages"
PATIENCE = 60  # seconds


def missing():
    if importlib.util.find_spec("grpc") is None:
        return "python3-grpcio"
    return None if shutil.which("grpc_python_plugin") else "protobuf-compiler-grpc"


def written(request):
    """The request's answer, as a model of the worker's form writes it."""
    calls = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in request["calls"]]
    return "\n".join([request["text"]] * bool(request["text"]) + calls)


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = ScriptedStack(BIN)
        cls.addClassCleanup(cls.stack.stop)

    def post(self, request):
        connection = http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        key = {"x-api-key": self.stack.key} if "/messages" in request["path"] else {
            "Authorization": f"Bearer {self.stack.key}"}
        body = {**request["body"], "model": self.stack.model}
        connection.request("POST", request["path"], json.dumps(body), {"Content-Type": "application/json", **key})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_requests_are_answered_as_the_model_wrote(self):
        paths = sorted(FIXTURES.glob("*.json"))
        self.assertGreater(len(paths), 20)
        for path in paths:
            for request in json.loads(path.read_text(encoding="utf-8")):
                with self.subTest(f"{path.stem}: {request['title']}"):
                    self.stack.worker.play([written(request)])
                    status, text = self.post(request)
                    self.assertEqual(status, 200, text)
                    said, calls = answers.read(request["path"], text)
                    self.assertEqual(calls, request["calls"])
                    self.assertEqual(said.strip(), request["text"].strip())
                    self.assertEqual(len(self.stack.worker.heard()), 1)


if __name__ == "__main__":
    if lacking := missing():
        print(f"{lacking} is missing")
        sys.exit(77)
    from scripted_stack import ScriptedStack
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)

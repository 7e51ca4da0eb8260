#!/usr/bin/env python3
"""Requests as real clients send them (fixtures/clients) to `retroinfer serve --http` with the demo model.

usage: clients_test.py BIN_DIR
"""
import http.client
import json
import pathlib
import re
import secrets
import socket
import sys
import tempfile
import unittest

from served import PATIENCE, Served

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures"
TYPES = {"string": str, "integer": int, "number": (int, float), "list": list, "object": dict}


class Request:
    def __init__(self, text):
        self.title, *lines = text.split("\n")
        self.checks = []
        while lines[0].startswith("# "):
            self.checks.append(lines.pop(0)[2:])
        head, _, body = "\n".join(lines).partition("\n\n")
        self.head, self.body = head.rstrip("\n"), body.rstrip("\n").encode()
        self.header_names = [line.split(":")[0].lower() for line in self.head.split("\n")[1:]]

    def head_bytes(self, key):
        head = self.head.replace("Bearer KEY", f"Bearer {key}").replace("x-api-key: KEY", f"x-api-key: {key}")
        head = re.sub(r"^(content-length): \*", rf"\1: {len(self.body)}", head, flags=re.IGNORECASE | re.MULTILINE)
        return (head.replace("\n", "\r\n") + "\r\n\r\n").encode()

    def body_bytes(self):
        if "transfer-encoding" not in self.header_names:
            return self.body
        middle = len(self.body) // 2
        return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (self.body[:middle], self.body[middle:], b""))


def read(path):
    return [Request(text) for text in path.read_text(encoding="utf-8").split("\n### ")[1:]]


def await_continue(connection):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        if not piece:
            raise AssertionError(f"the connection ended after {head}")
        head += piece
    if not head.startswith(b"HTTP/1.1 100 "):
        raise AssertionError(head)


def exchange(connection, request, key):
    """Returns the response and its text. The body goes out behind the head, as a packet of its own."""
    connection.sendall(request.head_bytes(key))
    if "expect" in request.header_names:
        await_continue(connection)
    connection.sendall(request.body_bytes())
    response = http.client.HTTPResponse(connection, method=request.head.split(" ")[0])
    response.begin()
    return response, response.read().decode()


def events(text):
    """The JSON of a stream's events; comments between them are for connections."""
    data = [block[len("data: "):] for block in text.split("\n\n") if block and not block.startswith(":")]
    if data[-1] != "[DONE]" or not all(block.startswith(("data: ", ":")) for block in text.split("\n\n") if block):
        raise AssertionError(text[-500:])
    return [json.loads(event) for event in data[:-1]]


def typed_events(text):
    """The JSON of a stream's events that have names, which are their types."""
    found = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, _, data = block.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        if name != f"event: {found[-1]['type']}":
            raise AssertionError(block)
    return found


def find(value, path):
    for name, index in re.findall(r"([^.\[\]]+)|\[(-?\d+)\]", path):
        value = value[name] if name else value[int(index)]
    return value


class ClientsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="retroinfer-"))
        cls.key = secrets.token_hex(16)
        (pathlib.Path(folder) / "key").write_text(cls.key, encoding="utf-8")
        cls.served = Served(BIN, f"--api-key-file={folder}/key", f"--chat-template={FIXTURES}/tools.jinja",
                            "--served-model-name=needle,claude-sonnet-4-5,gpt-5-codex")

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        assert code == 0, code

    def check(self, check, response, answer):
        kind, _, rest = check.partition(" ")
        if kind == "status":
            self.assertEqual(response.status, int(rest), answer)
        elif kind == "header":
            name, _, beginning = rest.partition(": ")
            self.assertTrue(response.headers[name].startswith(beginning), f"{name}: {response.headers[name]}")
        else:
            path, _, wanted = rest.partition(" = ")
            found = find(answer, path)
            if kind == "value":
                self.assertEqual(found, json.loads(wanted))
            elif kind == "length":
                self.assertEqual(len(found), int(wanted))
            elif kind == "type":
                self.assertIsInstance(found, TYPES[wanted])
                self.assertNotIsInstance(found, bool)
            else:
                self.fail(f"no such check: {kind}")

    def send_all(self, requests):
        with socket.create_connection(("127.0.0.1", self.served.port), timeout=PATIENCE) as connection:
            for request in requests:
                with self.subTest(request.title):
                    response, text = exchange(connection, request, self.key)
                    flags = [check for check in request.checks if check in ("events", "typed", "closes")]
                    answer = (events(text) if "events" in flags else
                              typed_events(text) if "typed" in flags else json.loads(text))
                    for check in request.checks:
                        if check not in flags:
                            with self.subTest(check):
                                self.check(check, response, answer)
                    self.assertEqual(response.will_close, "closes" in flags)
                    if "closes" in flags:
                        self.assertEqual(connection.recv(1), b"")

    def test_what_clients_send(self):
        fixtures = sorted((FIXTURES / "clients").glob("*.http"))
        self.assertGreater(len(fixtures), 10)
        for path in fixtures:
            requests = read(path)
            self.assertTrue(requests and all(request.checks for request in requests), path)
            with self.subTest(path.stem):
                self.send_all(requests)

    def test_clients_beside_one_another(self):
        """As load generators do: connections that were opened before any of them sends."""
        paths = sorted((FIXTURES / "clients").glob("*.http"))
        connections = [socket.create_connection(("127.0.0.1", self.served.port), timeout=PATIENCE) for _ in paths]
        firsts = [read(path)[0] for path in paths]
        for connection, request in zip(connections, firsts):
            connection.sendall(request.head_bytes(self.key) + request.body_bytes())
        for connection, request in zip(connections, firsts):
            with self.subTest(request.title), connection:
                response = http.client.HTTPResponse(connection, method=request.head.split(" ")[0])
                response.begin()
                response.read()
                self.assertIn(f"status {response.status}", request.checks)


if __name__ == "__main__":
    unittest.main(verbosity=2)

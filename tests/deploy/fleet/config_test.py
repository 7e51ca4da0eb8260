#!/usr/bin/env python3
"""The files of deploy/fleet agree with each other and with HAProxy, without any node."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
FLEET = pathlib.Path(__file__).resolve().parents[3] / "deploy/fleet"
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)

HAPROXY = (FLEET / "haproxy.cfg").read_text(encoding="utf-8")
NODES = {f"NODE_{i}": f"127.0.0.1:{10 + i}" for i in range(3)}


class Haproxy(unittest.TestCase):
    def setUp(self):
        if shutil.which("haproxy") is None:
            self.skipTest("needs haproxy (scripts/bootstrap.sh)")
        folder = tempfile.TemporaryDirectory(prefix="retroinfer-haproxy-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def check(self, listen):
        environment = {**os.environ, **NODES, "LISTEN": listen, "STATUS": f"unix@{self.folder}/status",
                       "INSIDE": f"unix@{self.folder}/inside",
                       "ADMIN_SOCKET": f"{self.folder}/admin"}
        return subprocess.run(["haproxy", "-c", "-f", str(FLEET / "haproxy.cfg")], env=environment,
                              capture_output=True, text=True, check=False)

    def test_plain_text(self):
        result = self.check(":50051")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("WARNING", result.stderr)

    def test_tls_takes_a_certificate_and_its_key_from_two_files(self):
        if shutil.which("openssl") is None:
            self.skipTest("needs openssl")
        listen = f":50051 ssl crt {self.folder}/tls.crt alpn h2"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
                        "-keyout", f"{self.folder}/tls.key", "-out", f"{self.folder}/tls.crt", "-days", "2"],
                       check=True, capture_output=True)
        result = self.check(listen)
        self.assertEqual(result.returncode, 0, result.stderr)
        os.remove(f"{self.folder}/tls.key")
        result = self.check(listen)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("tls.key", result.stderr)


class Files(unittest.TestCase):
    def setUp(self):
        self.envoy = yaml.safe_load((FLEET / "envoy.yaml").read_text(encoding="utf-8"))["static_resources"]
        self.cluster = self.envoy["clusters"][0]

    def test_envoy_does_what_haproxy_does(self):
        manager = self.envoy["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
        header = re.search(r"balance hdr\(([\w-]+)\)", HAPROXY)[1]
        self.assertEqual(route["hash_policy"], [{"header": {"header_name": header}}])
        factor = int(re.search(r"hash-balance-factor (\d+)", HAPROXY)[1])
        hashing = self.cluster["common_lb_config"]["consistent_hashing_lb_config"]
        self.assertEqual(hashing["hash_balance_factor"], factor)
        self.assertIn("unavailable", route["retry_policy"]["retry_on"])
        self.assertEqual(self.cluster["health_checks"][0]["grpc_health_check"], {})
        endpoints = self.cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        self.assertEqual([e["endpoint"]["hostname"] for e in endpoints],
                         re.findall(r"^\s+server (\S+)", HAPROXY, re.MULTILINE))

    def test_clients_and_balancers_know_one_header(self):
        header = re.search(r"balance hdr\(([\w-]+)\)", HAPROXY)[1]
        source = (FLEET.parents[1] / "common/rpc/context_affinity.h").read_text(encoding="utf-8")
        self.assertEqual(re.search(r'kContextAffinityKey\[\] = "([^"]+)"', source)[1], header)
        example = (FLEET / "ask.py").read_text(encoding="utf-8")
        self.assertEqual(re.search(r'CONTEXT_KEY = "([^"]+)"', example)[1], header)
        self.assertEqual(re.search(r"CONTEXT_BYTES = (.*)", example)[1],
                         re.search(r"kContextAffinityBytes = (.*);", source)[1])

    def test_the_health_check_is_a_grpc_request(self):
        sent = b"".join(map(bytes.fromhex, re.findall(r"tcp-check send-binary (\w+)", HAPROXY)))
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        self.assertTrue(sent.startswith(preface))
        frames, rest = [], sent[len(preface):]
        while rest:
            length = int.from_bytes(rest[:3], "big")
            frames.append((rest[3], rest[4], int.from_bytes(rest[5:9], "big"), rest[9:9 + length]))
            self.assertEqual(len(frames[-1][3]), length)
            rest = rest[9 + length:]
        settings, headers, data = frames
        self.assertEqual(settings, (4, 0, 0, b""))
        self.assertEqual(headers[:3], (1, 4, 1))
        for text in (b"/grpc.health.v1.Health/Check", b"application/grpc", b"trailers"):
            self.assertIn(bytes([len(text)]) + text, headers[3])
        self.assertEqual(data, (0, 1, 1, b"\0" * 5))  # an empty message, and the end of the stream


if __name__ == "__main__":
    unittest.main()

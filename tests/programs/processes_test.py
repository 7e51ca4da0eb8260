#!/usr/bin/env python3
"""The programs as processes: their streams, signals and settings, with the demo model.

usage: processes_test.py BIN_DIR
"""
import contextlib
import fcntl
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin").resolve()
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models/needle"
LONG = int(os.environ.get("RETROINFER_TEST_TIMEOUT", "120"))  # s, for what takes one if it is quiet


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETROINFER_")}
    return {**kept, **more}


def run(*command, env=None, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([BIN / command[0], *command[1:]], env=env or environment(), timeout=LONG,
                          check=False, **options)


def wait_for(reached, what):
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if reached():
            return
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def children_of(pid):
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = entry.read_text(errors="replace")
            fields = text[text.rindex(")") + 2:].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found[text[text.index("(") + 1:text.rindex(")")]] = int(entry.parent.name)
    return found


def is_alive(pid):
    with contextlib.suppress(OSError):
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return text[text.rindex(")") + 2] != "Z"
    return False


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="retroinfer-programs-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.sockets = self.folder / "sockets"
        self.address = f"unix:{self.sockets}/generation.sock"

    def start(self, *command, env=None, **options):
        with open(self.folder / "log", "ab") as log:
            options.setdefault("stderr", log)
            process = subprocess.Popen([BIN / command[0], *command[1:]], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, env=env or environment(), **options)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        children = children_of(process.pid).values()
        process.kill()
        process.wait()
        wait_for(lambda: not any(is_alive(child) for child in children), "the end of the children")

    def serve(self, *more, drain="1s", **options):
        return self.start("retroinfer", "serve", "--model", MODEL, "--listen", "127.0.0.1:0",
                          "--socket-dir", self.sockets, "--arena-bytes", "64MiB", "--memory", "512MiB",
                          "--metrics-address", "none", "--store-metrics-address", "none",
                          "--drain-timeout", drain, *more, **options)

    def await_ready(self):
        result = run("retroinfer", "health", "--address", self.address, "--wait", f"{LONG // 2}s")
        self.assertEqual(result.returncode, 0, (self.log(), result.stderr))

    def generate(self, *more, **options):
        return run("retroinfer", "generate", "a b c", "--address", self.address, "--max-tokens", "8",
                   "--ignore-eos", *more, **options)

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def stop(self, process):
        process.terminate()
        self.assertEqual(process.wait(LONG), 0, self.log())


class Streams(Programs):
    def test_a_pipe_that_nobody_reads_holds_up_no_service(self):
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        fcntl.fcntl(write_end, fcntl.F_SETFL, os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write_end, b"x" * 4096)
        fcntl.fcntl(write_end, fcntl.F_SETFL, 0)
        server = self.serve(stderr=write_end)
        os.close(write_end)
        self.await_ready()
        for _ in range(3):
            self.assertEqual(self.generate().returncode, 0)
        self.stop(server)

    def test_head_ends_and_the_server_goes_on(self):
        read_end, write_end = os.pipe()
        server = self.serve(stderr=write_end)
        os.close(write_end)
        os.read(read_end, 1)
        os.close(read_end)
        self.await_ready()
        self.assertEqual(self.generate().returncode, 0)
        self.stop(server)

    def test_a_result_that_cannot_be_written_is_a_failure(self):
        server = self.serve()
        self.await_ready()
        commands = [("generate", "a", "--address", self.address, "--max-tokens", "4"),
                    ("generate", "a", "--address", self.address, "--max-tokens", "4", "--json"),
                    ("ps", "--address", self.address, "--socket-dir", self.sockets),
                    ("health", "--address", self.address),
                    ("check", MODEL, "--memory", "1GiB"),
                    ("cache", "ls", "--address", self.address),
                    ("bench", "--address", self.address, "--num-prompts", "1", "--input-len", "4",
                     "--output-len", "2"),
                    ("--help",), ("--version",), ("serve", "--help")]
        for command in commands:
            fine = run("retroinfer", *command)
            if command[0] != "cache":  # which is off here
                self.assertEqual(fine.returncode, 0, (command, fine.stderr))
            with open("/dev/full", "wb") as full:
                result = run("retroinfer", *command, stdout=full)
                self.assertNotEqual(result.returncode, 0, command)
            closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", BIN / "retroinfer", *command],
                                    env=environment(), capture_output=True, timeout=LONG,
                                    stdin=subprocess.DEVNULL, check=False)
            self.assertNotEqual(closed.returncode, 0, command)
        self.stop(server)

    def test_closed_streams_harm_nobody(self):
        script = 'exec "$@" <&- >&- 2>&-'
        server = self.start("retroinfer", "--version")
        server.wait()
        server = subprocess.Popen(
            ["sh", "-c", script, "sh", BIN / "retroinfer", "serve", "--model", MODEL, "--listen",
             "127.0.0.1:0", "--socket-dir", self.sockets, "--arena-bytes", "64MiB", "--memory",
             "512MiB", "--metrics-address=none", "--store-metrics-address=none"], env=environment())
        self.addCleanup(self.end, server)
        self.await_ready()
        self.assertEqual(self.generate().returncode, 0)
        no_prompt = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", BIN / "retroinfer", "generate",
                                    "--address", self.address], env=environment(), timeout=LONG,
                                   capture_output=True, check=False)
        self.assertEqual(no_prompt.returncode, 2, no_prompt.stderr)
        self.stop(server)


class Signals(Programs):
    def test_hang_up_opens_the_log_again_and_ends_nothing(self):
        log = self.folder / "server.log"
        server = self.serve("--log-file", log, "--log-format", "json")
        self.await_ready()
        before = children_of(server.pid)
        self.assertEqual(set(before), {"gpu_worker", "kv_store_servic"})  # the kernel keeps 15 characters
        log.rename(self.folder / "server.log.1")
        server.send_signal(signal.SIGHUP)
        wait_for(lambda: log.exists() and log.read_text().count("opened the log file again") == 3,
                 "three programs in the new file")
        self.assertEqual(children_of(server.pid), before)
        self.assertEqual(self.generate().returncode, 0)
        self.stop(server)
        lines = [json.loads(line) for name in ("server.log.1", "server.log")
                 for line in (self.folder / name).read_text().splitlines()]
        self.assertEqual({line["process"] for line in lines}, {"serve", "gpu_worker", "kv_store_service"})
        for line in lines:
            self.assertEqual(set(line), {"time", "level", "process", "message"})

    def test_a_log_that_may_not_grow_ends_nothing(self):
        log = self.folder / "service.log"
        server = self.serve("--log-file", log, "--log-level", "debug")
        self.await_ready()
        self.assertEqual(self.generate().returncode, 0)
        services = children_of(server.pid)
        processes = [server.pid, *services.values()]
        before = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in processes]
        for pid, (_, hard) in zip(processes, before):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
        for _ in range(3):
            self.assertEqual(self.generate().returncode, 0)
        self.assertEqual(children_of(server.pid), services)
        for pid, limits in zip(processes, before):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        self.assertEqual(self.generate().returncode, 0)
        wait_for(lambda: "lines are missing here" in log.read_text(), "a line about missing ones")
        self.stop(server)

    def test_a_trace_that_may_not_grow_ends_nothing(self):
        trace = self.folder / "trace"
        self.sockets.mkdir(mode=0o700)
        self.start("kv_store_service", "--arena-bytes", "64MiB", "--socket-dir", self.sockets,
                   "--metrics-address", "none")
        worker = self.start("gpu_worker", "--model", MODEL, "--memory", "512MiB", "--socket-dir",
                            self.sockets, "--listen", self.address, "--metrics-address", "none",
                            "--record-trace", trace, "--dense-below", "0", stderr=subprocess.PIPE)
        self.addCleanup(worker.stderr.close)
        self.await_ready()
        text = self.folder / "text"
        text.write_text("one two three four five six seven eight nine ten\n" * 200)
        ask = ("--file", text, "--policy", "wave")
        self.assertEqual(self.generate(*ask).returncode, 0)
        wait_for(lambda: trace.stat().st_size > 1, "what the first request has retrieved")
        _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (1, hard))
        for _ in range(2):
            self.assertEqual(self.generate(*ask).returncode, 0)
        self.stop(worker)
        self.assertEqual(worker.stderr.read().count(b"nothing more is recorded"), 1)

    def test_hang_up_at_every_phase_ends_nothing(self):
        server = self.serve()
        # A program that has just been started has no handlers yet; Python's own are set before exec.
        wait_for(lambda: children_of(server.pid), "the store")
        for _ in range(20):
            server.send_signal(signal.SIGHUP)
            time.sleep(0.02)
        self.await_ready()
        self.stop(server)
        self.assertNotIn("died", self.log())

    def test_each_line_has_time_level_and_process(self):
        server = self.serve()
        self.await_ready()
        self.generate()
        self.stop(server)
        lines = self.log().splitlines()
        self.assertGreater(len(lines), 8)
        form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning) (serve|gpu_worker|kv_store_service): "
        for line in lines:
            self.assertRegex(line, form)

    def test_an_interrupt_ends_it_at_every_phase(self):
        for number, delay in enumerate((0.0, 0.05, 0.15, 0.3, 0.6)):
            self.sockets = self.folder / f"sockets{number}"
            server = self.serve()
            time.sleep(delay)
            children = children_of(server.pid).values()
            server.send_signal(signal.SIGINT)
            self.assertIn(server.wait(LONG), (0, 130, -signal.SIGINT), self.log())
            wait_for(lambda: not any(is_alive(child) for child in children), "the end of the children")

    def test_ctrl_c_in_commands_is_130(self):
        server = self.serve()
        self.await_ready()
        client = self.start("retroinfer", "generate", "a", "--address", self.address, "--max-tokens",
                            "9000", "--ignore-eos")
        wait_for(lambda: b"requests        1 running" in run(
            "retroinfer", "ps", "--address", self.address, "--socket-dir", self.sockets).stdout,
            "the request")
        client.send_signal(signal.SIGINT)
        self.assertEqual(client.wait(LONG), 130)
        self.stop(server)

    def test_an_answer_that_a_stopping_server_cuts_is_a_failure(self):
        server = self.serve(drain="100ms")
        self.await_ready()
        client = self.start("retroinfer", "generate", "a", "--address", self.address, "--max-tokens",
                            "9000", "--ignore-eos")
        wait_for(lambda: b"requests        1 running" in run(
            "retroinfer", "ps", "--address", self.address, "--socket-dir", self.sockets).stdout,
            "the request")
        self.stop(server)
        self.assertEqual(client.wait(LONG), 1)


class Settled(Programs):
    def test_a_service_that_refuses_its_settings_ends_serve_with_2(self):
        server = self.serve("--gpu-memory-utilization", "7")  # which the worker alone can judge
        self.assertEqual(server.wait(LONG), 2, self.log())
        self.assertIn("gpu_worker: --gpu-memory-utilization: Value 7 not in range", self.log())
        self.assertNotIn("arena", self.log())  # nothing was started for that

    def test_settings_that_are_found_wrong_later_end_a_service_with_2_too(self):
        folder = ("--socket-dir", self.sockets)
        for command in (("gpu_worker", "--model", MODEL, "--device", "cuda:x", *folder),
                        ("gpu_worker", "--model", MODEL, "--tls-key", MODEL / "x", *folder),
                        ("http_gateway", "--http", "127.0.0.1:0", "--tls-key", MODEL / "x"),
                        ("http_gateway", "--http", "127.0.0.1"),
                        ("kv_store_service", "--arena-bytes", "64MiB", "--metrics-address", "x", *folder)):
            result = run(*command)
            self.assertEqual(result.returncode, 2, (command, result.stderr))


class Folders(Programs):
    def test_a_second_server_is_refused_at_once_and_by_name(self):
        server = self.serve()
        self.await_ready()
        arena = ("--socket-dir", self.sockets, "--metrics-address", "none")
        seconds = {
            "retroinfer serve": ("retroinfer", "serve", "--model", MODEL, "--socket-dir", self.sockets,
                                 "--listen", "127.0.0.1:0"),
            "kv_store_service": ("kv_store_service", "--arena-bytes", "64MiB", *arena),
            "gpu_worker": ("gpu_worker", "--model", MODEL, "--listen", "127.0.0.1:0", *arena),
        }
        for owner, command in seconds.items():
            result = run(*command)
            self.assertEqual(result.returncode, 1, command)
            self.assertRegex(result.stderr.decode(), rf"{owner} \(process \d+\) uses {self.sockets}")
        self.assertEqual(self.generate().returncode, 0)
        self.stop(server)

    def test_a_store_of_somebody_else_is_left_alone(self):
        store = self.start("kv_store_service", "--arena-bytes", "64MiB", "--socket-dir", self.sockets,
                           "--metrics-address", "none")
        self.assertEqual(run("retroinfer", "health", "--wait", f"{LONG}s", "--address",
                             f"unix:{self.sockets}/kv_store.sock").returncode, 0)
        result = run("retroinfer", "serve", "--model", MODEL, "--socket-dir", self.sockets)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"kv_store_service (process {store.pid}) uses", result.stderr.decode())
        self.stop(store)

    def test_a_killed_supervisor_takes_its_services_along(self):
        server = self.serve()
        self.await_ready()
        children = children_of(server.pid).values()
        self.assertEqual(len(children), 2)
        server.kill()
        wait_for(lambda: not any(is_alive(child) for child in children), "the end of the children")
        self.stop_again()

    def stop_again(self):
        server = self.serve()
        self.await_ready()
        self.stop(server)

    def test_liveness_is_not_readiness(self):
        worker = self.start("gpu_worker", "--model", MODEL, "--listen", f"{self.address}", "--memory",
                            "512MiB", "--socket-dir", self.sockets, "--metrics-address", "none")
        live = run("retroinfer", "health", "--live", "--wait", f"{LONG}s", "--address", self.address)
        self.assertEqual(live.returncode, 0, live.stderr)
        ready = run("retroinfer", "health", "--address", self.address)
        self.assertEqual(ready.returncode, 1)
        wait_for(lambda: "waiting for the kv_store_service" in self.log(), "the line in the log")
        store = self.start("kv_store_service", "--arena-bytes", "64MiB", "--socket-dir", self.sockets,
                           "--metrics-address", "none")
        self.await_ready()
        store.kill()
        wait_for(lambda: run("retroinfer", "health", "--address", self.address).returncode == 1,
                 "a worker that is not ready")
        self.assertEqual(run("retroinfer", "health", "--live", "--address", self.address).returncode, 0)
        self.end(worker)


class Settings(Programs):
    def test_too_few_descriptors_are_told_at_the_start(self):
        few = (16, 16)
        for program in ("gpu_worker", "kv_store_service", "http_gateway"):
            done = run(program, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few))
            self.assertEqual(done.returncode, 1, program)
            self.assertIn(b"may open 16 files", done.stderr)

    def test_a_config_file_that_is_no_file_is_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)
            for program in ("gpu_worker", "kv_store_service", "http_gateway"):
                for path in (fifo, folder, "/dev/zero"):
                    done = run(program, "--config", path)
                    self.assertNotEqual(done.returncode, 0, program)
                    self.assertIn(b"needs a regular file", done.stderr)

    def test_a_log_that_nobody_reads_is_not_waited_for(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        for command in (("retroinfer", "serve", "--model", MODEL), ("gpu_worker", "--model", MODEL),
                        ("kv_store_service", "--arena-bytes", "64MiB"), ("http_gateway",)):
            result = run(*command, "--log-file", fifo,
                         env=environment(RETROINFER_SOCKET_DIR=str(self.sockets)))
            self.assertNotEqual(result.returncode, 0, command)
            self.assertIn(b"a FIFO that nobody reads", result.stderr, command)

    def test_a_config_file_that_is_none(self):
        secret = self.folder / "config"
        secret.write_text("model = x\nlisen = 1\n")
        for program in (("retroinfer", "serve"), ("retroinfer", "generate", "a"), ("gpu_worker",),
                        ("kv_store_service",)):
            for path, said in ((self.folder, "folder"), ("/no/such", "/no/such"),
                               (secret, "line ")):
                result = run(*program, "--config", path)
                self.assertEqual(result.returncode, 2, (program, path))
                self.assertIn(said, result.stderr.decode(), (program, path))

    def test_variables_that_nobody_knows_are_told(self):
        env = environment(RETROINFER_ARENA_BYTE="1GiB", RETROINFER_SERVICE_HOST="10.0.0.1")
        result = run("retroinfer", "check", MODEL, "--memory", "1GiB", env=env)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr.decode(), r"warning: RETROINFER_ARENA_BYTE .*RETROINFER_ARENA_BYTES\?")
        self.assertNotIn("SERVICE_HOST", result.stderr.decode())

    def test_the_model_is_looked_at_first(self):
        result = run("retroinfer", "serve", "--model", "meta-llama/Llama-3.1-8B", "--arena-bytes",
                     "1TiB", "--socket-dir", self.sockets, cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("hf download meta-llama/Llama-3.1-8B", result.stderr.decode())
        self.assertFalse(self.sockets.exists())

    def test_public_addresses_are_warned_of(self):
        worker = self.start("gpu_worker", "--model", MODEL, "--listen", "0.0.0.0:0", "--socket-dir",
                            self.sockets, "--metrics-address", "none")
        wait_for(lambda: "--api-key-file" in self.log() and "without TLS" in self.log(), "both warnings")
        self.end(worker)

    def test_strange_arguments_are_refused_politely(self):
        server = self.serve()
        self.await_ready()
        address = os.fsencode(self.address)
        for arguments in ([b"generate", b"\xff\xfe", b"--address", address],
                          [b"generate", b"a", b"--system", b"\xff", b"--address", address],
                          [b"generate", b"a", b"--cache-salt", b"\xff", b"--address", address],
                          [b"generate", b"a", b"--request-id", b"x" * 100_000, b"--address", address],
                          [b"generate", b"a", b"--stop", b"\xff", b"--address", address],
                          [b"generate", b"--" + b"x" * 100_000],
                          [b"generate", b"a", b"--address", b"y" * 100_000],
                          [b"health", b"--address", b"unix:" + b"y" * 100_000],
                          [b"health", b"--address", b"\xff\xff"],
                          [b"serve", b"--model", b"\xff", b"--socket-dir", b"/" + b"z" * 5000],
                          [b"\xff"], [b"check", b"\xff" * 5000]):
            result = run("retroinfer", *arguments)
            self.assertIn(result.returncode, (1, 2), (arguments[:4], result.stderr[:500]))
            self.assertTrue(result.stderr.startswith((b"retroinfer ", b"retroinfer:")), result.stderr[:500])
        self.assertEqual(self.generate().returncode, 0)
        self.stop(server)


if __name__ == "__main__":
    unittest.main()

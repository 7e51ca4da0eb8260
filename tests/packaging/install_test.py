#!/usr/bin/env python3
"""What `cmake --install` gives: the files, and a server that runs from where they lie.

usage: install_test.py BUILD_DIR (of this project, all built)
"""
import concurrent.futures
import os
import re
import stat
import subprocess
import unittest

from installed import PROGRAMS, TemporaryFolder, files_below, install

QUESTION = "What is the secret number of the mellow lock?"
ANSWER = "1756423"


class Installed(TemporaryFolder):
    def test_a_system_prefix_has_everything_in_its_place(self):
        install("/usr", destdir=self.folder)
        found = files_below(self.folder)
        expected = {f"usr/bin/{program}" for program in PROGRAMS} | {
            "etc/retroinfer/gpu_worker.conf",
            "etc/retroinfer/http_gateway.conf",
            "etc/retroinfer/kv_store_service.conf",
            "etc/retroinfer/serve.conf",
            "usr/share/doc/retroinfer-server/LICENSE",
            "usr/share/doc/retroinfer-server/README.md",
            "usr/share/doc/retroinfer-server/SECURITY.md",
            "usr/share/doc/retroinfer-server/docs/architecture.md",
            "usr/share/doc/retroinfer-server/docs/operate/install.md",
            "usr/share/doc/retroinfer-server/examples/document.txt",
            "usr/share/retroinfer/grafana/dashboards/overview.json",
            "usr/share/retroinfer/models/needle/model.safetensors",
            "usr/share/retroinfer/prometheus/prometheus.yml",
            "usr/share/retroinfer/prometheus/rules/load.yml",
            "usr/share/retroinfer/prometheus/targets/gpu-worker.yml",
            "usr/share/retroinfer/proto/retroinfer/generation/v1/generation.proto",
            "usr/share/retroinfer/proto/retroinfer/kvstore/v1/kv_store.proto",
            "usr/share/man/man1/retroinfer.1",
            "usr/share/man/man1/retroinfer-cache-save.1",
            "usr/share/man/man1/gpu_worker.1",
            "usr/share/bash-completion/completions/retroinfer",
            "usr/share/bash-completion/completions/gpu_worker",
            "usr/share/zsh/site-functions/_retroinfer",
            "usr/share/fish/vendor_completions.d/retroinfer.fish",
            "usr/lib/systemd/system/retroinfer-store.service",
            "usr/lib/systemd/system/retroinfer-worker.service",
            "usr/lib/systemd/system/retroinfer-gateway.service",
            "usr/lib/systemd/system/retroinfer.service",
            "usr/lib/systemd/system-generators/retroinfer-generator",
            "usr/lib/sysusers.d/retroinfer-server.conf",
        }
        self.assertEqual(expected - found, set())
        for name in sorted(found):
            self.assertTrue(name.startswith(("usr/", "etc/retroinfer/")), name)
            mode = stat.S_IMODE((self.folder / name).stat().st_mode)
            self.assertEqual(mode, 0o755 if self.is_program(name) else 0o644, name)
        credentials = self.folder / "etc/retroinfer/credentials"
        self.assertEqual(stat.S_IMODE(credentials.stat().st_mode), 0o700)
        for name in found:
            if name.startswith(("etc/", "usr/lib/")):
                text = (self.folder / name).read_text(encoding="utf-8")
                self.assertNotRegex(text, r"@\w+@", f"{name} is not completed")
                self.assertNotIn(str(self.folder), text)
                self.assertNotIn("/usr/local", text, name)

    @staticmethod
    def is_program(name):
        return name.startswith(("usr/bin/", "usr/lib/systemd/system-generators/"))

    def test_components_are_what_an_image_takes(self):
        for component, program in (("worker", "gpu_worker"), ("store", "kv_store_service"),
                                   ("gateway", "http_gateway"),
                                   ("client", "retroinfer")):
            prefix = self.folder / component
            install(prefix, component=component)
            self.assertEqual(files_below(prefix), {f"bin/{program}"})
        install(self.folder / "license", component="license")
        self.assertEqual(files_below(self.folder / "license"),
                         {"share/doc/retroinfer-server/LICENSE"})

    def test_programs_name_no_library_of_the_build(self):
        install(self.folder)
        for program in PROGRAMS:
            dynamic = subprocess.run(["readelf", "-d", self.folder / "bin" / program], check=True,
                                     capture_output=True, text=True).stdout
            self.assertNotRegex(dynamic, r"R(UN)?PATH")

    def test_installations_do_not_disturb_each_other(self):
        prefixes = [self.folder / str(i) for i in range(6)]
        with concurrent.futures.ThreadPoolExecutor(len(prefixes)) as threads:
            list(threads.map(lambda prefix: install(prefix, component="systemd"), prefixes))
        for prefix in prefixes:
            unit = prefix / "lib/systemd/system/retroinfer.service"
            self.assertIn(str(prefix), unit.read_text(encoding="utf-8"))

    def test_a_server_with_the_installed_settings_answers(self):
        install(self.folder)
        program = self.folder / "bin/retroinfer"
        sockets = self.folder / "sockets"
        # The settings as installed, but for what another server on this machine may hold.
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("RETROINFER_")}
        environment.update(RETROINFER_LISTEN=f"unix:{self.folder}/api.sock",
                           RETROINFER_ARENA_BYTES="128MiB",
                           RETROINFER_METRICS_ADDRESS="127.0.0.1:0",
                           RETROINFER_STORE_METRICS_ADDRESS="127.0.0.1:0",
                           RETROINFER_SOCKET_DIR=str(sockets))
        log_path = self.folder / "serve.log"
        with log_path.open("w") as log:
            server = subprocess.Popen(
                [program, "serve", "--config", self.folder / "etc/retroinfer/serve.conf"],
                env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                while not re.search(r"needle is ready at", log_path.read_text(encoding="utf-8")):
                    try:
                        server.wait(0.1)
                    except subprocess.TimeoutExpired:
                        continue
                    self.fail(f"serve ended: {log_path.read_text(encoding='utf-8')}")
                document = self.folder / "share/doc/retroinfer-server/examples/document.txt"
                answer = subprocess.run(
                    [program, "generate", "--address", f"unix:{self.folder}/api.sock", "--file",
                     document, QUESTION, "--max-tokens", "20"], env=environment,
                    capture_output=True, text=True, check=False)
                self.assertEqual(answer.returncode, 0, answer.stderr)
                self.assertEqual(answer.stdout.strip(), ANSWER)
            finally:
                server.terminate()
                self.assertEqual(server.wait(), 0, log_path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main(verbosity=2)

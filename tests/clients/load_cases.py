"""aiperf, with the demo model's tokenizer from this machine."""
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from harness_cases import MODEL, OFFLINE
from table import case, expect

REVISION = "0" * 40


def cache_tokenizer(home):
    """Lays the tokenizer where aiperf looks without a network: as the snapshot of a repository `local/needle`."""
    repository = home / "hub/models--local--needle"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(REVISION, encoding="utf-8")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).symlink_to(MODEL / name)


def profile(server, folder, name, *arguments):
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "aiperf", "profile", "-m", "needle", "--url", server.url, "--api-key",
         server.key, "--tokenizer", "local/needle", "--use-server-token-count", "--random-seed", "1", "--ui", "none",
         "--no-gpu-telemetry", "--no-server-metrics", "--workers-max", "2", "--artifact-dir", folder / name, *arguments],
        text=True, capture_output=True, cwd=folder, env={**os.environ, **OFFLINE, "HF_HOME": str(folder / "hf")})
    expect(done.returncode == 0, done.stdout[-150:])
    return json.loads((folder / name / "profile_export_aiperf.json").read_text(encoding="utf-8"))


def cases(server):
    name = f"aiperf {importlib.metadata.version('aiperf')}"
    with tempfile.TemporaryDirectory(prefix="retroinfer-aiperf-") as path:
        folder = pathlib.Path(path)
        cache_tokenizer(folder / "hf")

        def measured(what, requests, tokens, *arguments):
            """Runs it, and compares its counts with the worker's."""
            before = server.stats()
            result = profile(server, folder, what, "--request-count", str(requests), "--osl", str(tokens), "--osl-stddev",
                             "0", "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{tokens}", *arguments)
            server.await_idle()
            after = server.stats()
            expect(result["request_count"]["avg"] == requests and not result["error_summary"], result["error_summary"])
            for counter, metric in (("generation_tokens_total", "total_usage_completion_tokens"),
                                    ("prompt_tokens_total", "total_usage_prompt_tokens")):
                grown = after[counter] - before[counter]
                expect(result[metric]["avg"] == grown, f"{metric} {result[metric]['avg']}, the worker counts {grown}")
            expect(after["generation_tokens_total"] - before["generation_tokens_total"] == requests * tokens)
            return (f"{requests} x {tokens} tokens, {result['output_token_throughput']['avg']:.0f} tokens/s, "
                    f"first token {result['time_to_first_token']['p50']:.0f} ms" if "time_to_first_token" in result else
                    f"{requests} x {tokens} tokens, {result['output_token_throughput']['avg']:.0f} tokens/s")

        @case(name, "chat, streamed, 8 at a time: counts of tokens as the worker's")
        def _():
            return measured("chat", 40, 32, "--endpoint-type", "chat", "--streaming", "--concurrency", "8", "--isl", "300")

        @case(name, "completions, not streamed, at a rate, with new connections: counts as the worker's")
        def _():
            return measured("completions", 20, 16, "--endpoint-type", "completions", "--request-rate", "10", "--isl", "200",
                            "--connection-reuse-strategy", "never")

        @case(name, "every second stream is cancelled: the server ends up idle, the others are whole")
        def _():
            result = profile(server, folder, "cancelled", "--endpoint-type", "completions", "--streaming", "--concurrency",
                             "4", "--request-count", "20", "--isl", "200", "--osl", "400", "--osl-stddev", "0",
                             "--extra-inputs", "ignore_eos:true", "--request-cancellation-rate", "50",
                             "--request-cancellation-delay", "0.2")
            server.await_idle()
            cancelled = sum(error["count"] for error in result["error_summary"])
            whole = result["request_count"]["avg"]
            expect(cancelled > 0 and whole > 0 and cancelled + whole == 20, f"{cancelled} and {whole}")
            expect(result["total_usage_completion_tokens"]["avg"] == 400 * whole)
            return f"{cancelled} cancelled, {whole:.0f} whole"

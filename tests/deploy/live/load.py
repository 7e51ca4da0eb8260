"""A load that touches everything that the dashboards show: prompts that share beginnings, contexts that are long
enough for the index, a block cache that is too small for them, a saved context, refusals."""
import re

# Contexts from 1,024 tokens on are indexed, and the block cache holds a part of them.
WORKER_OPTIONS = ("--dense-below", "1024", "--block-cache-bytes", "8MiB")
VARIABLES = {"node": ".*", "instance": ".*", "interval": "15s"}


def substitute(expression):
    """Replaces the variables of a dashboard, as Grafana does."""
    return re.sub(r"\$(\w+)", lambda match: VARIABLES[match.group(1)], expression)


def bench(stack, seed, prompts, at_a_time, tokens, prefix, output, policy="wave"):
    return stack.start_client(
        "bench", "--load-seed", seed, "--num-prompts", prompts, "--max-concurrency", at_a_time,
        "--input-len", tokens, "--prefix-len", prefix, "--output-len", output, "--policy", policy)


def finish(*processes):
    for process in processes:
        if process.wait() != 0:
            raise AssertionError(f"{process.args}: ended with {process.returncode}")


def run(stack):
    document = stack.folder / "document.txt"
    document.write_text("the passkey of the harbour is amber . " * 400, encoding="utf-8")
    stack.client("cache", "save", "handbook", "--file", document)
    first = bench(stack, 1, 6, 3, 2560, 2048, 32)
    stack.client("generate", "x", "--max-tokens", "100000000", succeeds=False)
    finish(first)
    finish(bench(stack, 2, 4, 4, 3072, 2048, 96), bench(stack, 3, 2, 2, 512, 0, 24, "full"))

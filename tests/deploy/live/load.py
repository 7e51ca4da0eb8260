"""A load that touches everything that the dashboards show: prompts that share beginnings, contexts that are long
enough for the index, a block cache that is too small for them, a saved context, refusals."""
import math
import re
import time

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


CONVERSATION = [{"role": "user", "content": "the passkey of the harbour is amber . " * 20},
                {"role": "assistant", "content": "the harbour ."},
                {"role": "user", "content": "the passkey"}]


def ask_http(stack):
    """Answers of every kind: whole, streamed, of a conversation, wrong, without a key."""
    for path, request, wanted in (
            ("completions", {"prompt": "the harbour", "max_tokens": 8}, 200),
            ("completions", {"prompt": "the harbour", "max_tokens": 8, "stream": True}, 200),
            ("chat/completions", {"messages": CONVERSATION, "max_tokens": 8}, 200),
            ("completions", {"prompt": "the harbour", "temperature": -8}, 400)):
        status, text = stack.http("POST", f"/v1/{path}", request)
        if status != wanted:
            raise AssertionError(f"{request}: {status} {text}")
    if stack.http("GET", "/v1/models", key="wrong")[0] != 401:
        raise AssertionError("a wrong key was taken")


def run(stack):
    document = stack.folder / "document.txt"
    document.write_text("the passkey of the harbour is amber . " * 400, encoding="utf-8")
    stack.client("cache", "save", "handbook", "--chat", "--file", document, "--force")
    ask_http(stack)
    first = bench(stack, 1, 6, 3, 2560, 2048, 32)
    stack.client("generate", "x", "--max-tokens", "100000000", succeeds=False)
    finish(first)
    # A rate is that of what was counted before: of a counter that appears with its last value there is none.
    stack.wait_for_scrapes(2)
    ask_http(stack)
    finish(bench(stack, 2, 4, 4, 3072, 2048, 96), bench(stack, 3, 2, 2, 512, 0, 24, "full"))


def run_for(stack, seconds):
    """A load that comes and goes in waves, with chats, long documents, and callers that go away."""
    document = stack.folder / "document.txt"
    document.write_text("the passkey of the harbour is amber . " * 400, encoding="utf-8")
    stack.client("cache", "save", "handbook", "--chat", "--file", document, "--force")
    end = time.monotonic() + seconds
    seed = 0
    while (left := end - time.monotonic()) > 0:
        phase = 1 - left / seconds
        wave = 0.5 + 0.5 * math.sin(2 * math.pi * (2.5 * phase - 0.2))
        seed += 1
        clients = [bench(stack, seed, 2 + round(5 * wave), 1 + round(4 * wave), 1536 + 512 * (seed % 4), 1024, 64)]
        if wave > 0.4:
            clients.append(bench(stack, 1000 + seed, 3 + round(6 * wave), 1 + round(3 * wave), 96 << (seed % 3), 0,
                                 96, "full"))
        if seed % 4 == 0:
            clients.append(stack.start_client("generate", "--file", document, "What is the passkey?",
                                              "--ignore-eos", "--max-tokens", "2000", "--timeout", "2s"))
            clients.append(bench(stack, 2000 + seed, 1, 1, 12288, 8192, 48))
        if seed % 5 == 0:
            clients.append(stack.start_client("generate", "x", "--max-tokens", "100000000"))
        for client in clients:
            client.wait()

#!/usr/bin/env python3
"""Real clients against `retroinfer serve --http` with the demo model: puts a table into docs/use/clients.md.

usage: clients.py BIN_DIR [--record FOLDER] (tests/clients/run.sh calls it). Ends with 1 if anything failed; then the table
is only printed.
"""
import argparse
import asyncio
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import harness_cases
import langchain_openai
import load_cases
import openai
import python_cases
import table
from server import ROOT, Server
from table import case, expect

LINE = subprocess.run([sys.executable, "-m", "tools.needle.generate", "--task", "multi_key", "--length",
                       "12000", "--questions", "1", "--seed", "11"], cwd=ROOT, capture_output=True,
                      text=True, check=True).stdout
DOCUMENT, ASKED = json.loads(LINE)["prompt"].rsplit("\n\nQuestion: ", 1)
ANSWER = json.loads(LINE)["answer"]
QUESTION = [{"role": "system", "content": DOCUMENT},
            {"role": "user", "content": ASKED.removesuffix("\nAnswer:")}]
LIMITS = {"model": "needle", "max_tokens": 20, "temperature": 0}


def openai_cases(server):
    name = f"openai {openai.__version__}"
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=server.key)
    found = {}

    @case(name, "models.list, models.retrieve")
    def _():
        expect([model.id for model in client.models.list()] == ["needle"])
        expect(client.models.retrieve("needle").id == "needle")

    @case(name, "chat.completions.create: an answer about a document")
    def _():
        answer = client.chat.completions.create(messages=QUESTION, **LIMITS)
        found["text"] = answer.choices[0].message.content
        expect(found["text"].strip() == ANSWER.strip(), found["text"])
        expect(answer.usage.prompt_tokens > 8192 and answer.choices[0].finish_reason == "stop")
        return f"{answer.usage.prompt_tokens:,} tokens, `{found['text'].strip()}`"

    @case(name, "the same again: cached tokens in usage")
    def _():
        answer = client.chat.completions.create(messages=QUESTION, **LIMITS)
        expect(answer.choices[0].message.content == found["text"])
        expect(answer.usage.prompt_tokens_details.cached_tokens >= 8192)
        return f"{answer.usage.prompt_tokens_details.cached_tokens:,} cached"

    @case(name, "stream, with include_usage")
    def _():
        chunks = list(client.chat.completions.create(
            messages=QUESTION, stream=True, stream_options={"include_usage": True}, **LIMITS))
        expect(chunks[0].choices[0].delta.role == "assistant")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        expect(text == found["text"], text)
        expect(chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices)

    @case(name, "chat.completions.stream (the helper that puts chunks together)")
    def _():
        with client.chat.completions.stream(messages=QUESTION, **LIMITS) as stream:
            for _ in stream:
                pass
            expect(stream.get_final_completion().choices[0].message.content == found["text"])

    @case(name, "AsyncOpenAI, 16 streams at once")
    def _():
        async def one(client_, index):
            text = ""
            async for chunk in await client_.completions.create(
                    model="needle", prompt=f"{index} and", max_tokens=5, stream=True,
                    extra_body={"ignore_eos": True}):
                text += chunk.choices[0].text
            return text

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=server.key) as many:
                return await asyncio.gather(*(one(many, index) for index in range(16)))
        expect(all(asyncio.run(all_of_them())))

    @case(name, "completions.create: lists, n, echo, stop, seed, logit_bias")
    def _():
        answer = client.completions.create(model="needle", prompt=["a b", "c d"], n=2, echo=True,
                                           max_tokens=3, seed=5, stop=["\n\n"], logit_bias={"5": -100})
        expect(len(answer.choices) == 4 and answer.choices[2].text.startswith("c d"))
        again = client.completions.create(model="needle", prompt=["a b", "c d"], n=2, echo=True,
                                          max_tokens=3, seed=5, stop=["\n\n"], logit_bias={"5": -100})
        expect([c.text for c in again.choices] == [c.text for c in answer.choices])

    @case(name, "logprobs of completions and of chat")
    def _():
        answer = client.completions.create(model="needle", prompt="The", max_tokens=2, logprobs=3,
                                           extra_body={"ignore_eos": True})
        logprobs = answer.choices[0].logprobs
        expect(len(logprobs.tokens) == 2 and len(logprobs.top_logprobs[0]) == 3)
        chat = client.chat.completions.create(messages=[{"role": "user", "content": "The"}],
                                              model="needle", max_tokens=2, logprobs=True, top_logprobs=2)
        expect(len(chat.choices[0].logprobs.content[0].top_logprobs) == 2)

    @case(name, "extra_body: policy, ratios, cache_salt; kv_read_ratio in usage")
    def _():
        ratios = {}
        for policy in ("full", "wave"):
            answer = client.chat.completions.create(
                messages=QUESTION, extra_body={"policy": policy, "cache_salt": "tenant-1"}, **LIMITS)
            ratios[policy] = answer.usage.model_extra["kv_read_ratio"]
        expect(ratios["wave"] < ratios["full"], ratios)
        return ", ".join(f"{policy} {ratio:.2f}" for policy, ratio in ratios.items())

    @case(name, "errors: BadRequestError with param, NotFoundError, AuthenticationError")
    def _():
        for error, call in (
                (openai.BadRequestError, lambda: client.completions.create(
                    model="needle", prompt="a", temperature=1000)),
                (openai.BadRequestError, lambda: client.completions.create(
                    model="needle", prompt="a", suffix="b")),
                (openai.NotFoundError, lambda: client.completions.create(model="x", prompt="a")),
                (openai.AuthenticationError, lambda: openai.OpenAI(
                    base_url=server.url + "/v1", api_key="wrong").models.list())):
            try:
                call()
            except error as caught:
                expect(caught.body["message"])
                continue
            raise AssertionError(f"no {error.__name__}")
        try:
            client.completions.create(model="needle", prompt="a", suffix="b")
        except openai.BadRequestError as caught:
            expect(caught.param == "suffix" and caught.code == "unsupported_parameter")

    @case(name, "tools: refused by name, as the demo model has no form of calls")
    def _():
        try:
            client.chat.completions.create(
                messages=QUESTION, tools=[{"type": "function", "function": {"name": "f"}}], **LIMITS)
        except openai.BadRequestError as caught:
            expect(caught.param == "tools")
            return
        raise AssertionError("not refused")

    @case(name, "a stream that is closed early ends the generation")
    def _():
        stream = client.completions.create(model="needle", prompt="x", max_tokens=30000, stream=True,
                                           extra_body={"ignore_eos": True})
        next(iter(stream))
        expect(server.stats()["requests_running"] == 1)
        stream.close()
        server.await_idle()

    @case(name, "a wrong temperature in a stream is an error before the first chunk")
    def _():
        try:
            client.completions.create(model="needle", prompt="a", temperature=1000, stream=True)
        except openai.BadRequestError:
            return
        raise AssertionError("no error")


def langchain_cases(server):
    name = f"langchain-openai {importlib.metadata.version('langchain-openai')}"
    model = langchain_openai.ChatOpenAI(base_url=server.url + "/v1", api_key=server.key, model="needle",
                                        max_tokens=20, temperature=0, max_retries=0)
    asked = [(message["role"], message["content"]) for message in QUESTION]

    @case(name, "ChatOpenAI.invoke: an answer about a document, with usage_metadata")
    def _():
        answer = model.invoke(asked)
        expect(answer.content.strip() == ANSWER, answer.content)
        expect(answer.usage_metadata["input_tokens"] > 8192)
        return f"`{answer.content.strip()}`, {answer.usage_metadata['input_token_details']['cache_read']:,} cached"

    @case(name, "stream, and ainvoke of four at once")
    def _():
        expect("".join(chunk.content for chunk in model.stream(asked)).strip() == ANSWER)

        async def four():
            return await asyncio.gather(*(model.ainvoke([("user", f"{index} and")]) for index in range(4)))
        expect(len(asyncio.run(four())) == 4)

    @case(name, "extra_body: policy and cache_salt; a wrong one is a BadRequestError")
    def _():
        answer = model.bind(extra_body={"policy": "full", "cache_salt": "tenant-1"}).invoke(asked)
        expect(answer.content.strip() == ANSWER, answer.content)
        try:
            model.bind(extra_body={"policy": "other"}).invoke(asked)
        except openai.BadRequestError as caught:
            expect(caught.param == "policy")
            return
        raise AssertionError("not refused")


def curl_cases(server):
    version = subprocess.run(["curl", "--version"], capture_output=True, text=True,
                             check=True).stdout.split()[1]
    name = f"curl {version}"

    def curl(*arguments, **options):
        return subprocess.run(
            ["curl", "-sS", "--max-time", "60", "-H", f"Authorization: Bearer {server.key}",
             "-H", "Content-Type: application/json", *arguments], capture_output=True, text=True,
            check=True, **options).stdout

    @case(name, "a chat, and a stream of events (-N)")
    def _():
        body = json.dumps({"messages": QUESTION, **LIMITS})
        expect(json.loads(curl(server.url + "/v1/chat/completions", "-d", body))["choices"])
        text = curl("-N", server.url + "/v1/chat/completions", "-d",
                    json.dumps({"messages": QUESTION, "stream": True, **LIMITS}))
        expect(text.rstrip().endswith("data: [DONE]"))

    @case(name, "5 MB by chunks, with Expect: 100-continue")
    def _():
        body = json.dumps({"prompt": "word " * 1_000_000})
        answer = curl(server.url + "/tokenize", "-H", "Transfer-Encoding: chunked", "-H",
                      "Expect: 100-continue", "--data-binary", "@-", input=body)
        return f"{json.loads(answer)['count']:,} tokens"

    @case(name, "two requests on one connection; HTTP/1.0")
    def _():
        verbose = subprocess.run(["curl", "-sv", server.url + "/health", server.url + "/health"],
                                 capture_output=True, text=True, check=True).stderr
        expect("Re-using" in verbose or "reusing" in verbose.lower(), verbose[-300:])
        expect("ok" in subprocess.run(["curl", "-s0", server.url + "/health"], capture_output=True,
                                      text=True, check=True).stdout)

    @case(name, "100 MB: status 413")
    def _():
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(100 << 20)
            expect(curl("-o", os.devnull, "-w", "%{http_code}", server.url + "/v1/completions",
                        "--data-binary", f"@{file.name}") == "413")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--record", type=pathlib.Path, help="a folder for what the clients send")
    groups = {"openai": openai_cases, "langchain": langchain_cases, "lm-eval": harness_cases.cases,
              "aiperf": load_cases.cases, "curl": curl_cases,
              "retroinfer": lambda server: python_cases.cases(server, QUESTION, ANSWER)}
    parser.add_argument("--only", choices=groups, help="one of the clients; the document stays as it is")
    options = parser.parse_args()
    server = Server(options.bin_dir.resolve(), options.record)
    try:
        for name, cases in groups.items():
            if options.only in (None, name):
                server.begin(name)
                cases(server)
    finally:
        server.stop()
    print(table.text(), end="")
    if not table.all_worked():
        return 1
    if options.only is not None:
        return 0
    table.write_into(ROOT / "docs/use/clients.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())

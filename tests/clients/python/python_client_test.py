#!/usr/bin/env python3
"""The Python client, as its wheel has it, against `retroinfer serve` with the demo model.

usage: python_client_test.py BIN_DIR   (with Debian's python3: it needs python3-grpcio)
Ends with 77 where something that it needs is missing.
"""
import asyncio
import concurrent.futures
import importlib.util
import io
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/http_gateway"))
from served import PATIENCE, Served, await_true  # noqa: E402

FOLDER = tempfile.TemporaryDirectory(prefix="retroinfer-python-")
PROMPT = "The passkey is"
RUNNER = asyncio.Runner()  # one loop: gRPC's own thread outlives them


def missing():
    wanted = {"grpc": "python3-grpcio", "google.protobuf": "python3-protobuf", "setuptools": "python3-setuptools",
              "wheel": "python3-wheel"}
    for module, package in wanted.items():
        try:
            if importlib.util.find_spec(module) is None:
                return package
        except ModuleNotFoundError:
            return package
    return None if shutil.which("grpc_python_plugin") else "protobuf-compiler-grpc"


def load_wheel():
    """Builds the wheel and imports what is in it."""
    wheel = subprocess.run([ROOT / "clients/python/build_wheel.sh", FOLDER.name], check=True, text=True,
                           stdout=subprocess.PIPE, env={**os.environ, "PYTHON": sys.executable}).stdout.strip()
    site = pathlib.Path(FOLDER.name) / "site"
    shutil.unpack_archive(wheel, site, "zip")
    sys.path.insert(0, str(site))
    return site


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(BIN, f"--cache-dir={FOLDER.name}/cache", "--persist=on-demand", arena="256MiB")
        cls.addClassCleanup(cls.served.stop)
        cls.address = f"unix:{cls.served.folder}/generation.sock"
        cls.client = retroinfer.Client(cls.address, timeout=PATIENCE)
        cls.addClassCleanup(cls.client.close)

    def await_idle(self):
        await_true(lambda: self.client.model_info().stats.requests_running == 0, "the server runs nothing")

    def test_generates_and_streams_the_same(self):
        options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        answer = self.client.generate(PROMPT, **options)
        choice, = answer.choices
        self.assertEqual(len(choice.token_ids), 12)
        self.assertEqual(answer.finished.reason, "length")
        self.assertEqual(answer.finished.completion_tokens, 12)
        self.assertGreater(answer.finished.timings.first_token, 0)
        self.assertEqual(len(choice.logprobs), 12)
        self.assertEqual([len(one.alternatives) for one in choice.logprobs], [2] * 12)
        self.assertLessEqual(choice.logprobs[0].logprob, 0)
        events = list(self.client.stream(PROMPT, **options))
        outputs = [event for event in events if isinstance(event, retroinfer.Output)]
        self.assertEqual("".join(output.text for output in outputs), answer.text)
        self.assertIsInstance(events[0], retroinfer.Progress)
        self.assertIsInstance(events[-1], retroinfer.Finished)
        ids = self.client.tokenize(PROMPT)
        self.assertEqual(self.client.generate(token_ids=ids.ids, **options).text, answer.text)
        self.assertEqual(RUNNER.run(self.generate_async(PROMPT, **options)).text, answer.text)

    async def generate_async(self, *prompt, **options):
        async with retroinfer.AsyncClient(self.address) as client:
            return await client.generate(*prompt, **options)

    def test_options_reach_the_server(self):
        twice = self.client.generate(PROMPT, n=2, seed=5, max_tokens=6, policy="full", min_tokens=6)
        self.assertEqual([choice.finished.seed for choice in twice.choices], [5, 6])
        biased = self.client.generate(PROMPT, max_tokens=2, logit_bias={7: 100}, ignore_eos=True)
        self.assertEqual(biased.choices[0].token_ids, (7, 7))
        named = self.client.generate(PROMPT, max_tokens=1, request_id="mine-1")
        self.assertEqual(named.request_id, "mine-1")
        chat = self.client.generate(messages=[{"role": "user", "content": "x"}], max_tokens=1)
        self.assertEqual(chat.finished.prompt_tokens,
                         len(self.client.tokenize(messages=[{"role": "user", "content": "x"}]).ids))
        late = self.client.generate(PROMPT, max_tokens=30000, ignore_eos=True, time_limit=0.2)
        self.assertEqual(late.finished.reason, "time_limit")
        for prompt, wrong in ((PROMPT, {"max_token": 1}), (PROMPT, {"token_ids": [1]}), (None, {}),
                              (None, {"messages": [{"rule": "user"}]})):
            with self.assertRaises(TypeError):
                self.client.generate(prompt, **wrong)

    def test_scores_are_what_generating_says(self):
        answer = self.client.generate(PROMPT, max_tokens=12, temperature=0, ignore_eos=True, logprobs=2).choices[0]
        ids = self.client.tokenize(PROMPT).ids
        seen = []
        scores = self.client.score(token_ids=ids, continuations=[answer.token_ids, (7, 7), " a text"], logprobs=2,
                                   prompt_logprobs=1, on_progress=seen.append)
        first, second, third = scores.continuations
        self.assertEqual([(token.token_id, token.token, token.logprob, token.rank, token.alternatives)
                          for token in first.tokens],
                         [(token.token_id, token.token, token.logprob, token.rank, token.alternatives)
                          for token in answer.logprobs])
        self.assertTrue(first.is_greedy and all(token.is_greedy and token.rank == 1 for token in first.tokens))
        self.assertEqual([token.token_id for token in second.tokens], [7, 7])
        self.assertFalse(second.is_greedy)
        self.assertGreater(min(token.rank for token in second.tokens if not token.is_greedy), 1)
        self.assertLess(second.logprob, first.logprob)
        self.assertAlmostEqual(second.logprob, sum(token.logprob for token in second.tokens))
        self.assertAlmostEqual(second.perplexity, math.exp(-second.logprob / 2))
        self.assertEqual(b"".join(token.token for token in third.tokens), b" a text")
        self.assertEqual([token.token_id for token in scores.prompt.tokens], list(ids))
        self.assertEqual([token.logprob is None for token in scores.prompt.tokens], [True] + [False] * (len(ids) - 1))
        self.assertEqual(scores.prompt_tokens, len(ids))
        self.assertEqual(seen[-1].processed_tokens, len(ids))
        self.assertTrue(scores.request_id)
        # Generating measures its prompt likewise.
        for max_tokens in (0, 1):
            measured = self.client.generate(PROMPT, max_tokens=max_tokens, prompt_logprobs=1)
            self.assertEqual(measured.prompt, scores.prompt)
        self.assertIsNone(self.client.generate(PROMPT, max_tokens=1).prompt)
        alone = self.client.score(PROMPT, prompt_logprobs=1)
        self.assertEqual((alone.prompt, alone.continuations), (scores.prompt, ()))

        async def score():
            async with retroinfer.AsyncClient(self.address) as client:
                return await asyncio.gather(*(
                    client.score(PROMPT, [answer.token_ids], logprobs=2, policy=policy) for policy in ("full", "wave")))
        self.assertEqual([one.continuations for one in RUNNER.run(score())], [(first,), (first,)])

    def test_what_is_not_scored_whole_is_an_error(self):
        long = {"continuations": [[7] * 20000], "policy": "full"}
        with self.assertRaises(retroinfer.Incomplete) as caught:
            self.client.score(PROMPT, time_limit=1, **long)
        self.assertEqual(caught.exception.code.name, "ABORTED")
        self.assertLess(len(caught.exception.scores.continuations[0].tokens), 20000)
        self.assertEqual(caught.exception.scores.prompt_tokens, len(self.client.tokenize(PROMPT).ids))
        with self.assertRaises(retroinfer.DeadlineExceeded):
            self.client.score(PROMPT, timeout=0.3, **long)
        with self.assertRaises(retroinfer.InvalidRequest) as caught:
            self.client.score(PROMPT)  # nothing is asked for
        for wrong in ("text", [7, 7]):
            with self.assertRaises(TypeError):
                self.client.score(PROMPT, wrong)
        with self.assertRaises(TypeError):
            self.client.score(PROMPT, ["a"], temperature=1)
        with self.assertRaises(ValueError):
            self.client.score(PROMPT, ["a"], policy="other")

        async def abort_and_cancel():
            async with retroinfer.AsyncClient(self.address) as client:
                task = asyncio.create_task(client.score(PROMPT, request_id="mine-2", **long))
                while not await client.abort("mine-2"):
                    await asyncio.sleep(0.05)
                with self.assertRaises(retroinfer.Incomplete):
                    await task
                task = asyncio.create_task(client.score(PROMPT, **long))
                while (await client.model_info()).stats.requests_running == 0:
                    await asyncio.sleep(0.05)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
        RUNNER.run(abort_and_cancel())
        self.await_idle()

    def test_every_field_of_the_protos_is_an_option(self):
        from retroinfer.generation.v1 import generation_pb2 as proto

        def fields(message):
            return set(message.DESCRIPTOR.fields_by_name)
        messages = (fields(proto.Messages) - {"messages"}) | {"messages", "token_ids"}
        shared = fields(proto.AttentionOptions) | {"context", "time_limit"} | messages
        # What has another name, or is an argument of the method.
        other = {"text", "timeout", "return_progress", "sampling", "attention", "continuations", "constraint"}
        generate = (shared | fields(proto.SamplingOptions) | fields(proto.Constraint)
                    | fields(proto.GenerateRequest) - other)
        score = shared | fields(proto.ScoreRequest) - other
        self.assertEqual(set(typing.get_type_hints(retroinfer.GenerateOptions)), generate)
        self.assertEqual(set(typing.get_type_hints(retroinfer.ScoreOptions)), score)
        for prefill in ("exact", "sparse", "indexed"):
            self.assertEqual(self.client.generate(PROMPT, prefill=prefill, policy="full", max_tokens=1).text,
                             self.client.generate(PROMPT, policy="full", max_tokens=1).text)
        with self.assertRaisesRegex(ValueError, "prefill is one of"):
            self.client.generate(PROMPT, prefill="fast", max_tokens=1)
        for name in proto.AttentionPolicy.keys()[1:]:
            policy = name.removeprefix("ATTENTION_POLICY_").lower()
            self.assertEqual(self.client.generate(PROMPT, policy=policy, max_tokens=1, tenant="a", streaming_window=64)
                             .finished.completion_tokens, 1)

    def test_answers_have_the_form_that_is_asked_for(self):
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9,
                                                                                    "minimum": 0}},
                  "required": ["ok", "n"], "additionalProperties": False}
        value = json.loads(self.client.generate(PROMPT, json_schema=schema, max_tokens=200, seed=1).text)
        self.assertIsInstance(value["ok"], bool)
        self.assertIn(value["n"], range(10))
        self.assertRegex(self.client.generate(PROMPT, regex="[a-c]{3}-[0-9]", max_tokens=20).text, "^[a-c]{3}-[0-9]$")
        self.assertIn(self.client.generate(PROMPT, choices=["left", "right"], max_tokens=20).text, ("left", "right"))
        self.assertEqual(self.client.generate(PROMPT, grammar='root ::= "x" "y"', max_tokens=20).text, "xy")
        thought = self.client.generate(PROMPT, choices=["z"], thoughts=("<a>", "</a>"), max_tokens=20).text
        self.assertTrue(thought == "z" or thought.startswith("<a>"), thought)
        with self.assertRaises(retroinfer.InvalidRequest) as caught:
            self.client.generate(PROMPT, json_schema={"type": "object", "if": {}}, max_tokens=1)
        self.assertEqual(caught.exception.reason, "INVALID_CONSTRAINT")
        with self.assertRaises(TypeError):
            self.client.generate(PROMPT, regex="a", choices=["b"])
        with self.assertRaises(TypeError):
            self.client.generate(PROMPT, thoughts=("<a>", "</a>"))

    def test_tokenizes_and_tells_of_the_model(self):
        tokens = self.client.tokenize("some words", add_special_tokens=False)
        self.assertEqual(self.client.detokenize(tokens.ids), "some words")
        info = self.client.model_info()
        self.assertEqual(info.model_name, "needle")
        self.assertEqual(tokens.max_model_len, info.max_model_len)
        self.assertFalse(self.client.abort("nobody"))

    def test_errors_have_reasons(self):
        with self.assertRaises(retroinfer.InvalidRequest) as caught:
            self.client.generate(PROMPT, max_tokens=10_000_000)
        self.assertEqual(caught.exception.reason, "CONTEXT_TOO_LONG")
        self.assertEqual(caught.exception.metadata["max_tokens"], "10000000")
        self.assertIsNone(caught.exception.retry_after)
        with self.assertRaises(retroinfer.InvalidRequest):
            list(self.client.stream(PROMPT, temperature=-1))
        with self.assertRaises(retroinfer.DeadlineExceeded):
            self.client.generate(PROMPT, max_tokens=30000, ignore_eos=True, timeout=0.3)
        with retroinfer.Client("unix:/nothing/here.sock") as nobody, \
                self.assertRaises(retroinfer.Unavailable):
            nobody.model_info()
        with self.assertRaises(retroinfer.NotFound):
            self.client.contexts.pin("nothing")
        self.await_idle()

    def test_a_stream_that_is_left_ends_in_the_server(self):
        endless = {"max_tokens": 30000, "ignore_eos": True}
        with self.client.stream(PROMPT, **endless) as stream:
            next(stream)
        self.await_idle()
        stream = self.client.stream(PROMPT, **endless)
        next(stream)
        threading.Timer(0.2, stream.cancel).start()
        with self.assertRaises(retroinfer.Cancelled):
            list(stream)
        self.await_idle()

        async def cancel_the_task():
            async with retroinfer.AsyncClient(self.address) as client:
                task = asyncio.create_task(client.generate(PROMPT, **endless))
                while (await client.model_info()).stats.requests_running == 0:
                    await asyncio.sleep(0.05)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
        RUNNER.run(cancel_the_task())
        self.await_idle()

    def test_asyncio_has_many_at_once(self):
        async def all_of_them():
            async with retroinfer.AsyncClient(self.address) as client:
                async def one(seed):
                    text = ""
                    async with client.stream(PROMPT, max_tokens=8, seed=seed, ignore_eos=True) as stream:
                        async for event in stream:
                            if isinstance(event, retroinfer.Output):
                                text += event.text
                    return text
                return await asyncio.gather(*(one(seed) for seed in range(8)))
        texts = RUNNER.run(all_of_them())
        self.assertEqual(len(texts), 8)
        for seed in (0, 7):
            self.assertEqual(self.client.generate(PROMPT, max_tokens=8, seed=seed, ignore_eos=True).text, texts[seed])

    def test_contexts(self):
        document = "The green lamp stood by the door. " * 1400
        seen = []
        saved = self.client.contexts.save("handbook", document, on_progress=seen.append)
        self.assertGreater(saved.context.reusable_tokens, 8000)
        # How often progress is told, and whether of the end, depends on the machine.
        done = [progress.processed_tokens for progress in seen]
        self.assertEqual(done, sorted(done))
        self.assertTrue(0 < done[-1] <= seen[-1].total_tokens)
        answer = self.client.generate(document + "And?", max_tokens=1)
        self.assertGreaterEqual(answer.finished.cached_tokens, saved.context.reusable_tokens)
        with self.assertRaises(retroinfer.InvalidRequest) as taken:
            self.client.contexts.save("handbook", document)
        self.assertEqual(taken.exception.reason, "CONTEXT_EXISTS")
        self.assertEqual(self.client.contexts.save("handbook", document, replace=True).computed_tokens, 0)
        self.assertEqual([context.name for context in self.client.contexts.list()], ["handbook"])
        self.assertEqual(self.client.contexts.list(cache_salt="another"), ())
        self.assertTrue(self.client.contexts.pin("handbook").pinned)
        self.assertFalse(self.client.contexts.unpin("handbook").pinned)
        self.assertTrue(self.client.contexts.verify("handbook").is_whole)
        file = io.BytesIO()
        self.assertEqual(self.client.contexts.export("handbook", file), len(file.getvalue()))
        self.assertGreater(self.client.contexts.remove("handbook"), 0)

        async def bring_back():
            async with retroinfer.AsyncClient(self.address) as client:
                taken = await client.contexts.import_file(io.BytesIO(file.getvalue()), name="again")
                copy = io.BytesIO()
                await client.contexts.export("again", copy)
                whole = (await client.contexts.verify("again")).is_whole
                await client.contexts.pin("again")
                await client.contexts.unpin("again")
                names = [context.name for context in await client.contexts.list()]
                await client.contexts.remove("again")
                return taken, names, whole, len(copy.getvalue())
        taken, names, whole, size = RUNNER.run(bring_back())
        self.assertEqual((taken.num_tokens, names, whole), (saved.context.num_tokens, ["again"], True))
        self.assertGreater(size, taken.bytes)
        with self.assertRaises(retroinfer.InvalidRequest):
            self.client.contexts.import_file(io.BytesIO(b"no context"))

    def test_examples(self):
        line = json.loads(subprocess.run(
            [sys.executable, "-m", "tools.needle.generate", "--task", "multi_key", "--length", "9000",
             "--questions", "1", "--seed", "3"], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        document, question = line["prompt"].removesuffix("\nAnswer:").rsplit("\n\nQuestion: ", 1)
        file = pathlib.Path(FOLDER.name) / "document.txt"
        file.write_text(document, encoding="utf-8")
        tasks = pathlib.Path(FOLDER.name) / "tasks.jsonl"
        tasks.write_text(json.dumps(line) + "\n", encoding="utf-8")
        asked = self.example("ask_document.py", "--file", file, "--temperature", "0", question)
        self.assertIn(line["answer"], asked.stdout)
        self.assertIn("tokens read", asked.stderr)
        chat = self.example("chat_on_context.py", "--file", file, "--name", "book", input=f"{question}\n{question}\n")
        self.assertEqual(chat.stdout.count(line["answer"]), 2, chat.stdout)
        self.assertIn("of it cached", chat.stdout)
        evaluation = self.example("evaluate.py", tasks)
        self.assertRegex(evaluation.stdout, r"full +1 of 1 right, .*100% of the KV")
        self.assertRegex(evaluation.stdout, r"wave +1 of 1 right")
        load = self.example("load.py", "--requests", "6", "--concurrency", "3", "--max-tokens", "8")
        self.assertRegex(load.stdout, r"6 of 6 requests")

    def test_examples_that_fail_say_why_in_a_line(self):
        empty = pathlib.Path(FOLDER.name) / "empty"
        empty.write_text("", encoding="utf-8")
        wrong = pathlib.Path(FOLDER.name) / "wrong.jsonl"
        wrong.write_text('{"prompt": "no answer"}\n', encoding="utf-8")
        many = pathlib.Path(FOLDER.name) / "many.jsonl"
        many.write_text('{"prompt": "1 and", "answer": "2"}\n' * 32, encoding="utf-8")
        nobody = "unix:/nothing/here.sock"
        for address, *arguments in (
                (nobody, "ask_document.py", "--file", wrong, "What?"),
                (self.address, "ask_document.py", "--file", empty, "What?"),
                (self.address, "chat_on_context.py", "--file", empty, "--name", "empty"),
                (self.address, "evaluate.py", empty), (self.address, "evaluate.py", wrong),
                # Several that fail at once are told of in one line, too.
                (nobody, "load.py", "--concurrency", "32"), (nobody, "evaluate.py", many)):
            failed = self.example(*arguments, address=address, code=1, input="")
            self.assertRegex(failed.stderr, rf"^{arguments[0]}: [^\n]+\n$")

    def example(self, name, *arguments, address=None, code=0, **options):
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / name, "--address", address or self.address, *arguments], text=True,
            capture_output=True, timeout=PATIENCE, env={**os.environ, "PYTHONPATH": str(SITE)}, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        return done


class WireTest(unittest.TestCase):
    """What goes over the wire, seen by a server of the test's own."""

    @classmethod
    def setUpClass(cls):
        import grpc
        from retroinfer.generation.v1 import generation_pb2, generation_pb2_grpc
        from retroinfer.rpc.v1 import error_details_pb2

        class Server(generation_pb2_grpc.GenerationServiceServicer):
            seen = []

            def Generate(self, request, context):
                self.seen.append((request, dict(context.invocation_metadata())))
                details = error_details_pb2.Status(code=8, message="full")
                for kind, message in (
                        ("ErrorInfo", error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="retroinfer",
                                                                  metadata={"live_requests": "9"})),
                        ("RetryInfo", error_details_pb2.RetryInfo())):
                    if kind == "RetryInfo":
                        message.retry_delay.FromMilliseconds(1500)
                    details.details.add(type_url=f"type.googleapis.com/google.rpc.{kind}",
                                        value=message.SerializeToString())
                context.set_trailing_metadata((("grpc-status-details-bin", details.SerializeToString()),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "as many as there can be")
                yield generation_pb2.GenerateResponse()

        cls.handler = Server()
        cls.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(cls.handler, cls.server)
        cls.address = f"unix:{FOLDER.name}/fake.sock"
        cls.server.add_insecure_port(cls.address)
        cls.server.start()
        cls.addClassCleanup(lambda: cls.server.stop(None).wait())

    def check(self, error):
        self.assertEqual(error.reason, "QUEUE_FULL")
        self.assertEqual(error.metadata, {"live_requests": "9"})
        self.assertEqual(error.retry_after, 1.5)

    def test_keys_names_and_reasons(self):
        with retroinfer.Client(self.address, api_key="secret") as client:
            with self.assertRaises(retroinfer.Busy) as caught:
                client.generate("a" * 20000, priority=-1, cache_salt="mine", stop="\n", retrieval_ratio=0.5)
        self.check(caught.exception)
        request, metadata = self.handler.seen[-1]
        self.assertEqual((request.priority, request.cache_salt, list(request.sampling.stop)), (-1, "mine", ["\n"]))
        self.assertEqual(request.attention.retrieval_ratio, 0.5)
        self.assertEqual(metadata["authorization"], "Bearer secret")
        self.assertEqual(metadata["x-retroinfer-context"], retroinfer.context_name("a" * 16384 + "b"))
        # `printf aaa | sha256sum`
        self.assertEqual(retroinfer.context_name("aaa"), "9834876dcfb05cb1")

        async def busy():
            async with retroinfer.AsyncClient(self.address) as client:
                await client.generate("a", context="")
        with self.assertRaises(retroinfer.Busy) as caught:
            RUNNER.run(busy())
        self.check(caught.exception)
        self.assertNotIn("x-retroinfer-context", self.handler.seen[-1][1])
        self.assertNotIn("authorization", self.handler.seen[-1][1])


class SecureTest(unittest.TestCase):
    def test_tls_and_keys(self):
        folder = pathlib.Path(FOLDER.name)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "tls.key",
                        "-out", folder / "tls.crt"], check=True, capture_output=True)
        (folder / "key").write_text("secret", encoding="utf-8")
        served = Served(BIN, f"--api-key-file={folder}/key", f"--tls-certificate={folder}/tls.crt",
                        f"--tls-key={folder}/tls.key")
        self.addCleanup(served.stop)
        port = served.find_worker_port()
        tls = retroinfer.Tls(ca=folder / "tls.crt", server_name="localhost")
        with retroinfer.Client(f"127.0.0.1:{port}", tls=tls, api_key="secret") as client:
            self.assertTrue(client.generate(PROMPT, max_tokens=2, ignore_eos=True).text)
        with retroinfer.Client(f"127.0.0.1:{port}", tls=tls, api_key="wrong") as client, \
                self.assertRaises(retroinfer.Unauthenticated) as caught:
            client.model_info()
        self.assertEqual(caught.exception.reason, "API_KEY_REQUIRED")

        async def check():
            async with retroinfer.AsyncClient(f"127.0.0.1:{port}", tls=tls, api_key="secret") as client:
                return (await client.model_info()).model_name
        self.assertEqual(RUNNER.run(check()), "needle")


if __name__ == "__main__":
    if package := missing():
        print(f"skipped: {package} is missing (scripts/bootstrap.sh)")
        sys.exit(77)
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    SITE = load_wheel()
    import retroinfer
    unittest.main(verbosity=2)

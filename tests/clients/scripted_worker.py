"""A worker whose answers are written beforehand: clients' loops run against the gateway without a model's wit.

Tokens are pieces of text between spaces, numbered as they come. The template is a short one of Hermes's form. What the
gateway asked for (`heard`) can be read back as JSON, with the prompt as text.
"""
import collections
import concurrent.futures
import importlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import grpc
from google.protobuf import json_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "scripted"
END = 0  # the end-of-sequence token
VOCABULARY = 1 << 24
MAX_MODEL_LEN = 65536
NOTHING_LEFT = "The script has no further answer."
TURN = "<|im_start|>assistant\n"


def load_protocol():
    """The modules of generation.proto and error_details.proto, made by protoc."""
    with tempfile.TemporaryDirectory(prefix="retroinfer-protocol-") as folder:
        plugin = subprocess.check_output(["which", "grpc_python_plugin"], text=True).strip()
        subprocess.run(
            ["protoc", "-I.", f"--python_out={folder}", f"--grpc_python_out={folder}",
             f"--plugin=protoc-gen-grpc_python={plugin}", "retroinfer/generation/v1/generation.proto",
             "retroinfer/rpc/v1/error_details.proto"], cwd=ROOT / "proto", check=True)
        sys.path.insert(0, folder)
        try:
            return [importlib.import_module(name) for name in
                    ("retroinfer.generation.v1.generation_pb2", "retroinfer.generation.v1.generation_pb2_grpc",
                     "retroinfer.rpc.v1.error_details_pb2")]
        finally:
            sys.path.remove(folder)


pb, services, errors = load_protocol()


def render(messages):
    """The prompt of a conversation."""
    system = [message.content for message in messages.messages if message.role == "system"]
    if messages.tools:
        tools = "\n".join(json.dumps(tool) for tool in json.loads(messages.tools))
        system.append(f"<tools>\n{tools}\n</tools>\nA call:\n<tool_call>\n"
                      '{"name": <name>, "arguments": <object>}\n</tool_call>')
    turns = [("system", "\n\n".join(system))] if system else []
    for message in messages.messages:
        if message.role == "system":
            continue
        calls = [f"<tool_call>\n{json.dumps(call.get('function', call))}\n</tool_call>"
                 for call in json.loads(message.tool_calls or "[]")]
        turns.append((message.role, "\n".join([message.content] * bool(message.content) + calls)))
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text if messages.continue_final_message else text + TURN


class Words:
    """Numbers for pieces of text, and back.

    Threads: any."""

    def __init__(self):
        self._lock = threading.Lock()
        self._ids = {"<|im_end|>": END}
        self._texts = ["<|im_end|>"]

    def tokens(self, text):
        pieces = re.findall(r"<\|im_start\|>|<\|im_end\|>|\s*[^\s<]+|\s*<|\s+", text)
        with self._lock:
            found = []
            for piece in pieces:
                if piece not in self._ids:
                    self._ids[piece] = len(self._texts)
                    self._texts.append(piece)
                found.append(self._ids[piece])
            return found

    def text(self, tokens):
        with self._lock:
            return "".join(self._texts[token] for token in tokens)


class Refusal(Exception):
    def __init__(self, code, reason, message, retry=None, **metadata):
        super().__init__(message)
        self.code, self.reason, self.message, self.retry, self.metadata = code, reason, message, retry, metadata

    def abort(self, context):
        details = errors.Status(code=self.code.value[0], message=self.message)
        info = errors.ErrorInfo(reason=self.reason, domain="retroinfer",
                                metadata={key: str(value) for key, value in self.metadata.items()})
        any_ = details.details.add()
        any_.type_url, any_.value = "type.googleapis.com/google.rpc.ErrorInfo", info.SerializeToString()
        if self.retry is not None:
            retry = errors.RetryInfo()
            retry.retry_delay.FromMilliseconds(int(1000 * self.retry))
            any_ = details.details.add()
            any_.type_url, any_.value = "type.googleapis.com/google.rpc.RetryInfo", retry.SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", details.SerializeToString()),))
        context.abort(self.code, self.message)


QUEUE_FULL = {"code": grpc.StatusCode.RESOURCE_EXHAUSTED, "reason": "QUEUE_FULL", "retry": 1,
              "message": "1024 requests are live, as many as this server takes: try again later",
              "live_requests": 1024, "max_live_requests": 1024}


class ScriptedWorker(services.GenerationServiceServicer):
    """Each call of Generate takes the next answer of the script: a text, {"refuse": "QUEUE_FULL"}, or
    {"when": WORDS, "text": TEXT}, which waits for a prompt with these words.

    Threads: any."""

    def __init__(self):
        self._words = Words()
        self._lock = threading.Lock()
        self._script = collections.deque()
        self._heard = []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(32), options=[
            ("grpc.max_receive_message_length", 64 << 20)])
        services.add_GenerationServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self):
        self._server.stop(0)

    def play(self, answers):
        """These come next; whatever was left is forgotten, and so is what was heard."""
        with self._lock:
            self._script = collections.deque(answers)
            self._heard = []

    def heard(self):
        with self._lock:
            return list(self._heard)

    def _prompt(self, request):
        """Its tokens."""
        kind = request.WhichOneof("input")
        if kind == "token_ids":
            return list(request.token_ids.ids)
        return self._words.tokens(render(request.messages) if kind == "messages" else request.text)

    def _next(self, prompt):
        for index, answer in enumerate(self._script):
            if not isinstance(answer, dict) or answer.get("when", "") in prompt:
                del self._script[index]
                return answer["text"] if isinstance(answer, dict) and "text" in answer else answer
        return NOTHING_LEFT

    def GetModelInfo(self, request, context):
        return pb.GetModelInfoResponse(
            model_name=NAME, architecture="ScriptedForCausalLM", vocab_size=VOCABULARY, num_layers=1, num_query_heads=1,
            num_kv_heads=1, head_dim=64, compute_dtype="f32", kv_dtype="f32", backend="cpu", eos_token_ids=[END],
            chat_template="scripted", max_model_len=MAX_MODEL_LEN, kv_capacity_tokens_full=MAX_MODEL_LEN,
            kv_capacity_tokens_wave=MAX_MODEL_LEN, max_batch=8, default_max_tokens=4096,
            default_attention=pb.AttentionOptions(policy=pb.ATTENTION_POLICY_FULL), server_version="0.1.0",
            load_format="auto", device_name="none", chat_template_fingerprint="0123456789abcdef")

    def Tokenize(self, request, context):
        if request.WhichOneof("input") == "messages":
            text = render(request.messages)
        else:
            text = request.text
        return pb.TokenizeResponse(token_ids=self._words.tokens(text), max_model_len=MAX_MODEL_LEN)

    def Detokenize(self, request, context):
        return pb.DetokenizeResponse(text=self._words.text(request.token_ids))

    def Generate(self, request, context):
        prompt = self._prompt(request)
        wanted = request.sampling.max_tokens or 1
        try:
            if len(prompt) + wanted > MAX_MODEL_LEN:
                raise Refusal(
                    grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_TOO_LONG",
                    f"The prompt is too long: this model's maximum context length is {MAX_MODEL_LEN} tokens. However, you "
                    f"requested {len(prompt) + wanted} tokens ({len(prompt)} in the messages, {wanted} in the completion). "
                    "Shorten the prompt or lower max_tokens.", prompt_tokens=len(prompt), max_tokens=wanted,
                    max_model_len=MAX_MODEL_LEN)
            with self._lock:
                self._heard.append({**json_format.MessageToDict(request), "prompt": self._words.text(prompt)})
                answer = self._next(self._heard[-1]["prompt"])
            if isinstance(answer, dict):
                raise Refusal(**{**QUEUE_FULL, "reason": answer["refuse"]})
            begun = self._words.text(prompt).rpartition(TURN)[2]  # a prompt may have begun the answer
            answer = answer.removeprefix(begun)
        except Refusal as refusal:
            refusal.abort(context)
        for index in range(request.sampling.n or 1):
            yield from self._play(request, index, len(prompt), answer)

    def _play(self, request, index, prompt_tokens, answer):
        """The events of one continuation."""
        sampling = request.sampling
        name = request.request_id or "scripted-1"
        text, matched = answer, None
        for stop in sampling.stop:
            if stop in text:
                text, matched = text[:text.index(stop)], stop
        tokens = self._words.tokens(text)
        if sampling.max_tokens and len(tokens) > sampling.max_tokens:
            tokens, matched = tokens[:sampling.max_tokens], "length"
        for count, token in enumerate(tokens, 1):
            output = pb.OutputChunk(text=self._words.text([token]), token_ids=[token], prompt_tokens=prompt_tokens,
                                    completion_tokens=count)
            if sampling.HasField("logprobs"):
                bytes_ = self._words.text([token]).encode()
                output.logprobs.add(logprob=-0.5, token_bytes=bytes_, rank=1, alternatives=[
                    pb.TokenLogprob(token_id=token, logprob=-0.5, token_bytes=bytes_)] * sampling.logprobs)
            yield pb.GenerateResponse(request_id=name, index=index, output=output)
        finished = pb.Finished(reason=pb.FINISH_REASON_STOP, prompt_tokens=prompt_tokens,
                               completion_tokens=len(tokens), seed=1)
        if matched == "length":
            finished.reason = pb.FINISH_REASON_LENGTH
        elif matched is not None:
            finished.matched_stop = matched
        else:
            finished.matched_token_id = END
        yield pb.GenerateResponse(request_id=name, index=index, finished=finished)

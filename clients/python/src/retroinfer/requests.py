"""Requests from what callers give."""
from __future__ import annotations

import hashlib
import json
from typing import Any, Mapping, Sequence, TypedDict

from google.protobuf import duration_pb2

from .generation.v1 import contexts_pb2, generation_pb2

Prompt = str | None
Message = Mapping[str, Any]
_CONTEXT_BYTES = 16 << 10
_SAMPLING = tuple(generation_pb2.SamplingOptions.DESCRIPTOR.fields_by_name)
_POLICIES = {"wave": generation_pb2.ATTENTION_POLICY_WAVE, "full": generation_pb2.ATTENTION_POLICY_FULL}
_MESSAGE_FIELDS = ("role", "content", "name", "tool_call_id", "reasoning_content")


class ContextOptions(TypedDict, total=False):
    """What a prompt may come with, beside its text."""

    messages: Sequence[Message]  # {"role", "content"}, also "tool_calls" as in OpenAI's API
    token_ids: Sequence[int]
    tools: Sequence[Mapping[str, Any]]  # functions, as in OpenAI's API
    template_arguments: Mapping[str, Any]
    enable_thinking: bool
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    parse_special: bool
    cache_salt: str


class GenerateOptions(ContextOptions, total=False):
    """Options of a generation; generation.proto says what each means, and its default."""

    policy: str  # "wave" or "full"
    retrieval_ratio: float
    estimation_ratio: float
    priority: int
    request_id: str
    time_limit: float  # seconds, kept by the server: what there is until then comes
    context: str  # names what the request is about, for balancers; default: context_name(); "": none
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    seed: int
    n: int
    logprobs: int
    logit_bias: Mapping[int, float]


def duration(seconds: float) -> duration_pb2.Duration:
    made = duration_pb2.Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


def _refuse_rest(options: Mapping[str, Any]) -> None:
    if options:
        raise TypeError(f"unknown option: {', '.join(sorted(options))}")


def _message(given: Message) -> generation_pb2.Message:
    message = generation_pb2.Message()
    for key, value in given.items():
        if key == "tool_calls":
            message.tool_calls = value if isinstance(value, str) else json.dumps(value)
        elif key not in _MESSAGE_FIELDS:
            raise TypeError(f"a message has no field {key!r}")
        elif value is not None:
            setattr(message, key, value)
    return message


def set_input(request: Any, prompt: Prompt, options: dict[str, Any]) -> None:
    """Takes the prompt and what belongs to it out of `options`."""
    messages, token_ids = options.pop("messages", None), options.pop("token_ids", None)
    if sum(given is not None for given in (prompt, messages, token_ids)) != 1:
        raise TypeError("give one of a prompt, messages and token_ids")
    if messages is not None:
        target = request.messages
        target.SetInParent()
        target.messages.extend(map(_message, messages))
        for name in ("tools", "template_arguments"):
            if (value := options.pop(name, None)) is not None:
                setattr(target, name, json.dumps(value))
        for name in ("enable_thinking", "add_generation_prompt", "continue_final_message"):
            if (value := options.pop(name, None)) is not None:
                setattr(target, name, value)
    elif token_ids is not None:
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(token_ids)
    else:
        request.text = prompt
    for name in ("add_special_tokens", "parse_special"):
        if (value := options.pop(name, None)) is not None:
            setattr(request, name, value)


def _set_sampling(sampling: generation_pb2.SamplingOptions, options: dict[str, Any]) -> None:
    for name in _SAMPLING:
        value = options.pop(name, None)
        if value is None:
            continue
        if name == "logit_bias":
            sampling.logit_bias.update(value)
        elif name in ("stop", "stop_token_ids"):
            getattr(sampling, name).extend([value] if isinstance(value, str) else value)
        else:
            setattr(sampling, name, value)


def generate_request(prompt: Prompt, progress: bool,
                     options: Mapping[str, Any]) -> tuple[generation_pb2.GenerateRequest, str]:
    """The request, and the name of its context."""
    left = dict(options)
    request = generation_pb2.GenerateRequest(return_progress=progress)
    set_input(request, prompt, left)
    _set_sampling(request.sampling, left)
    if (policy := left.pop("policy", None)) is not None:
        if policy not in _POLICIES:
            raise ValueError(f"policy is 'wave' or 'full', not {policy!r}")
        request.attention.policy = _POLICIES[policy]
    for name in ("retrieval_ratio", "estimation_ratio"):
        if (value := left.pop(name, None)) is not None:
            setattr(request.attention, name, value)
    for name in ("cache_salt", "priority", "request_id"):
        if (value := left.pop(name, None)) is not None:
            setattr(request, name, value)
    if (limit := left.pop("time_limit", None)) is not None:
        request.timeout.CopyFrom(duration(limit))
    context = left.pop("context", None)
    _refuse_rest(left)
    return request, _name_of(request) if context is None else context


def tokenize_request(prompt: Prompt, options: Mapping[str, Any]) -> generation_pb2.TokenizeRequest:
    left = dict(options)
    if left.get("token_ids") is not None or left.get("cache_salt") is not None:
        raise TypeError("text or messages are tokenized, without a salt")
    request = generation_pb2.TokenizeRequest()
    set_input(request, prompt, left)
    _refuse_rest(left)
    return request


def save_request(name: str, prompt: Prompt, pinned: bool, time_to_live: float | None,
                 options: Mapping[str, Any]) -> contexts_pb2.SaveContextRequest:
    left = dict(options)
    request = contexts_pb2.SaveContextRequest(name=name, pinned=pinned)
    request.cache_salt = left.pop("cache_salt", "")
    set_input(request, prompt, left)
    if time_to_live is not None:
        request.time_to_live.CopyFrom(duration(time_to_live))
    _refuse_rest(left)
    return request


def context_name(beginning: str | bytes) -> str:
    """What names a prompt's context for balancers, as `retroinfer generate` has it: 16 digits of the SHA-256
    of the first 16 KiB, so that a question behind a document does not count."""
    data = beginning.encode() if isinstance(beginning, str) else beginning
    return hashlib.sha256(data[:_CONTEXT_BYTES]).hexdigest()[:16]


def _name_of(request: Any) -> str:
    if request.HasField("messages"):
        return context_name("".join(f"{message.role}\n{message.content}\n" for message in request.messages.messages))
    if request.HasField("token_ids"):
        return context_name(b"".join((token & 0xffffffff).to_bytes(4, "little")
                                     for token in request.token_ids.ids[:_CONTEXT_BYTES // 4]))
    return context_name(request.text)

"""Requests from what callers give."""
from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any, Iterable, Mapping, Sequence, TypedDict

from google.protobuf import duration_pb2

from .generation.v1 import contexts_pb2, generation_pb2

Prompt = str | None
Continuation = str | Sequence[int]
Message = Mapping[str, Any]
_CONTEXT_BYTES = 16 << 10
_SAMPLING = tuple(generation_pb2.SamplingOptions.DESCRIPTOR.fields_by_name)
# By their names in the proto, in lower case, so that a new one is known here, too.
_POLICIES = {name.removeprefix("ATTENTION_POLICY_").lower(): number
             for name, number in generation_pb2.AttentionPolicy.items() if number != 0}
_REUSES = {name.removeprefix("KV_REUSE_").lower(): number
           for name, number in generation_pb2.KvReuse.items() if number != 0}
_SPECULATIONS = {name.removeprefix("SPECULATION_").lower(): number
                 for name, number in generation_pb2.Speculation.items() if number != 0}
_PREFILLS = {name.removeprefix("PREFILL_").lower(): number
             for name, number in generation_pb2.Prefill.items() if number != 0}
_ATTENTION = tuple(name for name in generation_pb2.AttentionOptions.DESCRIPTOR.fields_by_name
                   if name not in ("policy", "prefill"))
_FORMS = tuple(field.name for field in generation_pb2.Constraint.DESCRIPTOR.oneofs_by_name["form"].fields)
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


class ScoreOptions(ContextOptions, total=False):
    """Options of a scoring; generation.proto says what each means, and its default."""

    policy: str  # "wave", "full" or "streaming"
    prefill: str  # "exact", "sparse" or "indexed"
    tail_tokens: int  # with "indexed"
    retrieval_ratio: float
    estimation_ratio: float
    max_unseen_mass: float
    streaming_window: int
    priority: int
    request_id: str
    time_limit: float  # seconds, kept by the server: what there is until then comes
    context: str  # names what the request is about, for balancers; default: context_name(); "": none
    logprobs: int  # alternatives of each token that is written or scored
    prompt_logprobs: int  # measures the prompt, too, with so many alternatives


class GenerateOptions(ScoreOptions, total=False):
    """Options of a generation: those of a scoring, and how tokens are drawn."""

    tenant: str
    reuse: str  # "exact" or "generated": which cached KV may be read
    speculation: str  # "off" or "auto": whether steps may try drafts of the next tokens; the tokens are the same
    prediction: str  # what the answer is expected to be like, for those drafts
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
    shown_special_tokens: Sequence[str]
    include_stop_str_in_output: bool
    seed: int
    n: int
    logit_bias: Mapping[int, float]
    # What the answer must look like: one of these four.
    json_schema: Mapping[str, Any] | str | bool  # a schema, or its JSON text
    regex: str
    choices: Sequence[str]
    grammar: str
    # Tags around thoughts that may come first, such as ("<think>", "</think>"); the first one empty: the prompt has it.
    thoughts: tuple[str, str]


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
        elif name in ("stop", "stop_token_ids", "shown_special_tokens"):
            getattr(sampling, name).extend([value] if isinstance(value, str) else value)
        else:
            setattr(sampling, name, value)


def _set_constraint(request: generation_pb2.GenerateRequest, options: dict[str, Any]) -> None:
    given = {name: options.pop(name) for name in _FORMS if options.get(name) is not None}
    thoughts = options.pop("thoughts", None)
    if len(given) > 1:
        raise TypeError(f"give one of {' and '.join(given)}")
    for name, value in given.items():
        if name == "choices":
            if isinstance(value, str):
                raise TypeError("choices is a list of texts")
            request.constraint.choices.texts.extend(value)
        else:
            setattr(request.constraint, name, value if isinstance(value, str) else json.dumps(value))
    if thoughts is not None:
        if not given:
            raise TypeError(f"thoughts come before what one of {', '.join(_FORMS)} describes")
        request.constraint.thoughts.open, request.constraint.thoughts.close = thoughts


def _set_work(request: Any, options: dict[str, Any]) -> str:
    """Sets what generating and scoring have in common; nothing may be left of `options` then. Returns the name of the
    context."""
    if (policy := options.pop("policy", None)) is not None:
        if policy not in _POLICIES:
            raise ValueError(f"policy is one of {', '.join(map(repr, _POLICIES))}, not {policy!r}")
        request.attention.policy = _POLICIES[policy]
    if (prefill := options.pop("prefill", None)) is not None:
        if prefill not in _PREFILLS:
            raise ValueError(f"prefill is one of {', '.join(map(repr, _PREFILLS))}, not {prefill!r}")
        request.attention.prefill = _PREFILLS[prefill]
    for name in _ATTENTION:
        if (value := options.pop(name, None)) is not None:
            setattr(request.attention, name, value)
    for name in ("cache_salt", "priority", "request_id"):
        if (value := options.pop(name, None)) is not None:
            setattr(request, name, value)
    if (limit := options.pop("time_limit", None)) is not None:
        request.timeout.CopyFrom(duration(limit))
    context: str | None = options.pop("context", None)
    _refuse_rest(options)
    return _name_of(request) if context is None else context


def generate_request(prompt: Prompt, progress: bool,
                     options: Mapping[str, Any]) -> tuple[generation_pb2.GenerateRequest, str]:
    """The request, and the name of its context."""
    left = dict(options)
    request = generation_pb2.GenerateRequest(return_progress=progress)
    set_input(request, prompt, left)
    _set_sampling(request.sampling, left)
    if (tenant := left.pop("tenant", None)) is not None:
        request.tenant = tenant
    if (reuse := left.pop("reuse", None)) is not None:
        if reuse not in _REUSES:
            raise ValueError(f"reuse is one of {', '.join(map(repr, _REUSES))}, not {reuse!r}")
        request.reuse = _REUSES[reuse]
    if (speculation := left.pop("speculation", None)) is not None:
        if speculation not in _SPECULATIONS:
            raise ValueError(f"speculation is one of {', '.join(map(repr, _SPECULATIONS))}, not {speculation!r}")
        request.speculation = _SPECULATIONS[speculation]
    if (prediction := left.pop("prediction", None)) is not None:
        request.prediction = prediction
    _set_constraint(request, left)
    return request, _set_work(request, left)


def score_request(prompt: Prompt, continuations: Iterable[Continuation], progress: bool,
                  options: Mapping[str, Any]) -> tuple[generation_pb2.ScoreRequest, str]:
    """The request, and the name of its context."""
    if isinstance(continuations, (str, bytes)):
        raise TypeError("continuations is a list: of texts, or of lists of token ids")
    left = dict(options)
    request = generation_pb2.ScoreRequest(return_progress=progress)
    set_input(request, prompt, left)
    for continuation in continuations:
        if isinstance(continuation, str):
            request.continuations.add(text=continuation)
        elif isinstance(continuation, int):
            raise TypeError("continuations is a list: of texts, or of lists of token ids")
        else:
            request.continuations.add().token_ids.ids.extend(continuation)
    for name in ("logprobs", "prompt_logprobs"):
        if (value := left.pop(name, None)) is not None:
            setattr(request, name, value)
    return request, _set_work(request, left)


def tokenize_request(prompt: Prompt, options: Mapping[str, Any]) -> generation_pb2.TokenizeRequest:
    left = dict(options)
    if left.get("token_ids") is not None or left.get("cache_salt") is not None:
        raise TypeError("text or messages are tokenized, without a salt")
    request = generation_pb2.TokenizeRequest()
    set_input(request, prompt, left)
    _refuse_rest(left)
    return request


def save_request(name: str, prompt: Prompt, pinned: bool, replace: bool, time_to_live: float | None,
                 options: Mapping[str, Any]) -> contexts_pb2.SaveContextRequest:
    left = dict(options)
    request = contexts_pb2.SaveContextRequest(name=name, pinned=pinned, replace=replace)
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
        # What comes before the first answer: all turns of a conversation have the name of its first one.
        asked = itertools.takewhile(lambda message: message.role != "assistant", request.messages.messages)
        return context_name("".join(f"{message.role}\n{message.content}\n" for message in asked))
    if request.HasField("token_ids"):
        return context_name(b"".join((token & 0xffffffff).to_bytes(4, "little")
                                     for token in request.token_ids.ids[:_CONTEXT_BYTES // 4]))
    return context_name(request.text)

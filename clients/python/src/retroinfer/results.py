"""What calls return."""
from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Iterable

from .generation.v1 import contexts_pb2, generation_pb2

_REASONS = {
    generation_pb2.FINISH_REASON_STOP: "stop", generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_CANCELLED: "cancelled", generation_pb2.FINISH_REASON_DEADLINE: "time_limit",
}
_TIERS = {
    contexts_pb2.CONTEXT_TIER_DISK: "disk", contexts_pb2.CONTEXT_TIER_ARENA_AND_DISK: "arena and disk",
    contexts_pb2.CONTEXT_TIER_ARENA: "arena", contexts_pb2.CONTEXT_TIER_PARTLY_LOST: "partly lost",
}


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


@dataclass(frozen=True)
class Progress:
    """Reading of the prompt. `cached_tokens` were found in the cache; `processed_tokens` include them."""

    total_tokens: int
    cached_tokens: int
    processed_tokens: int
    elapsed: float  # seconds
    index: int = 0  # of the continuation


@dataclass(frozen=True)
class TokenLogprob:
    """`token`: its bytes, often a part of a character. `token_id`: -1 where the server names bytes alone."""

    token_id: int
    token: bytes
    logprob: float
    alternatives: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Output:
    """What was written since the last one."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    index: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds on the server. first_token: since the request came; None: there was no token."""

    queue: float
    prefill: float
    first_token: float | None
    decode: float


@dataclass(frozen=True)
class Finished:
    """The end of a continuation.

    reason: "stop", "length", "cancelled" or "time_limit". matched: the stop string or token that ended it.
    kv_read_ratio: share of the keys and values that its steps looked at.
    """

    reason: str
    matched: str | int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seed: int
    timings: Timings
    kv_read_ratio: float
    index: int = 0


Event = Progress | Output | Finished


@dataclass(frozen=True)
class Choice:
    """One continuation."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finished: Finished


@dataclass(frozen=True)
class Answer:
    """What `generate` returns: `n` continuations, the first one at hand."""

    request_id: str
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finished(self) -> Finished:
        return self.choices[0].finished


@dataclass(frozen=True)
class Tokens:
    """`max_model_len`: how many the server takes, prompt and answer together."""

    ids: tuple[int, ...]
    max_model_len: int


@dataclass(frozen=True)
class Context:
    """A context that is kept under a name. reusable_tokens: of it, that a request need not compute. tier:
    "disk", "arena and disk", "arena" or "partly lost"."""

    name: str
    num_tokens: int
    reusable_tokens: int
    bytes: int
    num_segments: int
    tier: str
    pinned: bool
    created: datetime.datetime
    last_used: datetime.datetime
    expires: datetime.datetime | None


@dataclass(frozen=True)
class SavedContext:
    context: Context
    computed_tokens: int  # 0: all of it was there
    elapsed: float  # seconds


@dataclass(frozen=True)
class Verification:
    num_segments: int
    intact_segments: int
    missing_segments: int
    damaged_segments: int
    bytes_checked: int
    problems: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return self.intact_segments == self.num_segments


def progress(event: generation_pb2.PrefillProgress, index: int = 0) -> Progress:
    return Progress(event.total_tokens, event.cached_tokens, event.processed_tokens, _seconds(event.elapsed), index)


def _alternative(given: generation_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(given.token_id, given.token_bytes, given.logprob)


def _output(chunk: generation_pb2.OutputChunk, index: int) -> Output:
    logprobs = tuple(
        TokenLogprob(token_id, position.token_bytes, position.logprob,
                     tuple(map(_alternative, position.alternatives)))
        for token_id, position in zip(chunk.token_ids, chunk.logprobs))
    return Output(chunk.text, tuple(chunk.token_ids), logprobs, chunk.prompt_tokens, chunk.cached_tokens,
                  chunk.completion_tokens, index)


def _finished(event: generation_pb2.Finished, index: int) -> Finished:
    matched = event.WhichOneof("matched")
    timings = event.timings
    first = _seconds(timings.time_to_first_token) if timings.HasField("time_to_first_token") else None
    return Finished(
        _REASONS.get(event.reason, "unknown"), None if matched is None else getattr(event, matched),
        event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.seed,
        Timings(_seconds(timings.queue), _seconds(timings.prefill), first, _seconds(timings.decode)),
        event.kv_read_ratio, index)


def event_of(response: generation_pb2.GenerateResponse) -> Event | None:
    """None: an event that this version does not know."""
    kind = response.WhichOneof("event")
    if kind == "progress":
        return progress(response.progress, response.index)
    if kind == "output":
        return _output(response.output, response.index)
    if kind == "finished":
        return _finished(response.finished, response.index)
    return None


class AnswerBuilder:
    """Puts an answer together from its events."""

    def __init__(self) -> None:
        self.request_id = ""
        self._outputs: dict[int, list[Output]] = {}
        self._ends: dict[int, Finished] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Output):
            self._outputs.setdefault(event.index, []).append(event)
        elif isinstance(event, Finished):
            self._ends[event.index] = event

    def answer(self) -> Answer:
        return Answer(self.request_id, tuple(self._choice(index) for index in sorted(self._ends)))

    def _choice(self, index: int) -> Choice:
        outputs: Iterable[Output] = self._outputs.get(index, [])
        return Choice("".join(output.text for output in outputs),
                      tuple(token for output in outputs for token in output.token_ids),
                      tuple(logprob for output in outputs for logprob in output.logprobs), self._ends[index])


def context(info: contexts_pb2.ContextInfo) -> Context:
    def when(name: str) -> datetime.datetime:
        stamp: datetime.datetime = getattr(info, name).ToDatetime(tzinfo=datetime.timezone.utc)
        return stamp

    return Context(info.name, info.num_tokens, info.reusable_tokens, info.bytes, info.num_segments,
                   _TIERS.get(info.tier, "unknown"), info.pinned, when("created"), when("last_used"),
                   when("expires") if info.HasField("expires") else None)


def saved(event: contexts_pb2.SavedContext) -> SavedContext:
    return SavedContext(context(event.context), event.computed_tokens, _seconds(event.elapsed))


def verification(response: contexts_pb2.VerifyContextResponse) -> Verification:
    return Verification(response.num_segments, response.intact_segments, response.missing_segments,
                        response.damaged_segments, response.bytes_checked, tuple(response.problems))

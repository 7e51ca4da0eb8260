"""What calls return."""
from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any, Iterable

import grpc

from .errors import Incomplete, RetroInferError
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
    """`token`: its bytes, often a part of a character. `rank`: 1 is what greedy takes; 0 in alternatives, which come in
    this order."""

    token_id: int
    token: bytes
    logprob: float
    alternatives: tuple[TokenLogprob, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class ScoredToken:
    """A token that was given. logprob: None for the first one of a prompt, which has rank 0. rank: 1 is what greedy
    takes."""

    token_id: int
    token: bytes
    logprob: float | None
    rank: int
    is_greedy: bool
    alternatives: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class ScoredText:
    """A prompt or a continuation, token by token."""

    tokens: tuple[ScoredToken, ...]

    @property
    def logprob(self) -> float:
        """Of the whole: the sum over its tokens, without the first one of a prompt."""
        return math.fsum(token.logprob for token in self.tokens if token.logprob is not None)

    @property
    def is_greedy(self) -> bool:
        """Whether greedy would have written just this."""
        return all(token.is_greedy for token in self.tokens if token.logprob is not None)

    @property
    def perplexity(self) -> float:
        """1 where nothing was measured."""
        measured = sum(token.logprob is not None for token in self.tokens)
        return math.exp(-self.logprob / measured) if measured else 1.0


@dataclass(frozen=True)
class ScoredPrompt:
    """Tokens of the prompt, from number `first_token` on; come with `prompt_logprobs`."""

    first_token: int
    tokens: tuple[ScoredToken, ...]


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
class UnseenMass:
    """Share of the softmax mass that steps did not attend to exactly, as the index predicts it: over the first step
    and at least one in sixteen of the others. It says how much was left to estimates, not how wrong they were."""

    mean: float
    largest: float


@dataclass(frozen=True)
class Finished:
    """The end of a continuation.

    reason: "stop", "length", "cancelled" or "time_limit". matched: the stop string or token that ended it.
    kv_read_ratio: share of the keys and values that its steps looked at. unseen_mass: what they left to estimates; no
    measure of accuracy. None without a step, and with the policy "streaming", which cannot tell.
    accepted_prediction_tokens: tokens that were guessed and took no step of their own; rejected_prediction_tokens: those
    that steps have tried for nothing.
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
    unseen_mass: UnseenMass | None = None
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


Event = Progress | ScoredPrompt | Output | Finished


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
    prompt: ScoredText | None = None  # with `prompt_logprobs`

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finished(self) -> Finished:
        return self.choices[0].finished


@dataclass(frozen=True)
class Scores:
    """What `score` returns. prompt: with `prompt_logprobs`. cached_tokens: of the prompt's. kv_read_ratio: share of the
    keys and values that the steps looked at. unseen_mass: as in `Finished`."""

    request_id: str
    prompt: ScoredText | None
    continuations: tuple[ScoredText, ...]
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    kv_read_ratio: float
    unseen_mass: UnseenMass | None = None


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
                     tuple(map(_alternative, position.alternatives)), position.rank)
        for token_id, position in zip(chunk.token_ids, chunk.logprobs))
    return Output(chunk.text, tuple(chunk.token_ids), logprobs, chunk.prompt_tokens, chunk.cached_tokens,
                  chunk.completion_tokens, index)


def _scored(given: generation_pb2.ScoredToken) -> ScoredToken:
    return ScoredToken(given.token_id, given.token_bytes, given.logprob if given.HasField("logprob") else None,
                       given.rank, given.is_greedy, tuple(map(_alternative, given.alternatives)))


def _timings(given: generation_pb2.Timings) -> Timings:
    first = _seconds(given.time_to_first_token) if given.HasField("time_to_first_token") else None
    return Timings(_seconds(given.queue), _seconds(given.prefill), first, _seconds(given.decode))


def _unseen(event: generation_pb2.Finished | generation_pb2.ScoreFinished) -> UnseenMass | None:
    if not event.HasField("unseen_mass"):
        return None
    return UnseenMass(event.unseen_mass.mean, event.unseen_mass.largest)


def _finished(event: generation_pb2.Finished, index: int) -> Finished:
    matched = event.WhichOneof("matched")
    return Finished(
        _REASONS.get(event.reason, "unknown"), None if matched is None else getattr(event, matched),
        event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.seed,
        _timings(event.timings), event.kv_read_ratio, index, _unseen(event),
        event.accepted_prediction_tokens, event.rejected_prediction_tokens)


def event_of(response: generation_pb2.GenerateResponse) -> Event | None:
    """None: an event that this version does not know."""
    kind = response.WhichOneof("event")
    if kind == "progress":
        return progress(response.progress, response.index)
    if kind == "output":
        return _output(response.output, response.index)
    if kind == "finished":
        return _finished(response.finished, response.index)
    if kind == "prompt":
        return ScoredPrompt(response.prompt.first_token, tuple(map(_scored, response.prompt.tokens)))
    return None


def _append(tokens: list[ScoredToken], first_token: int, new: Iterable[ScoredToken]) -> None:
    if first_token != len(tokens):
        raise RetroInferError(f"scores of token {first_token} came where those of {len(tokens)} belong",
                              grpc.StatusCode.INTERNAL)
    tokens.extend(new)


class ScoreBuilder:
    """Puts scores together from the responses of a call."""

    def __init__(self, num_continuations: int) -> None:
        self._request_id = ""
        self._prompt: list[ScoredToken] = []
        self._continuations: list[list[ScoredToken]] = [[] for _ in range(num_continuations)]
        self._end: generation_pb2.ScoreFinished | None = None

    def add(self, response: generation_pb2.ScoreResponse) -> Progress | None:
        self._request_id = response.request_id
        kind = response.WhichOneof("event")
        if kind == "progress":
            return progress(response.progress)
        if kind == "prompt":
            _append(self._prompt, response.prompt.first_token, map(_scored, response.prompt.tokens))
        elif kind == "continuation":
            part = response.continuation
            _append(self._continuations[part.continuation], part.first_token, map(_scored, part.tokens))
        elif kind == "finished":
            self._end = response.finished
        return None

    def scores(self) -> Scores:
        """Raises Incomplete unless everything was measured."""
        end = self._end or generation_pb2.ScoreFinished()
        scores = Scores(self._request_id, ScoredText(tuple(self._prompt)) if self._prompt else None,
                        tuple(ScoredText(tuple(tokens)) for tokens in self._continuations),
                        end.prompt_tokens, end.cached_tokens, _timings(end.timings), end.kv_read_ratio,
                        _unseen(end))
        if end.reason != generation_pb2.FINISH_REASON_LENGTH:
            why = _REASONS.get(end.reason, "it said no end")
            raise Incomplete(f"the server has ended the call before everything was scored ({why})", scores)
        return scores


class AnswerBuilder:
    """Puts an answer together from its events."""

    def __init__(self) -> None:
        self.request_id = ""
        self._prompt: list[ScoredToken] = []
        self._outputs: dict[int, list[Output]] = {}
        self._ends: dict[int, Finished] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, ScoredPrompt):
            _append(self._prompt, event.first_token, event.tokens)
        elif isinstance(event, Output):
            self._outputs.setdefault(event.index, []).append(event)
        elif isinstance(event, Finished):
            self._ends[event.index] = event

    def answer(self) -> Answer:
        return Answer(self.request_id, tuple(self._choice(index) for index in sorted(self._ends)),
                      ScoredText(tuple(self._prompt)) if self._prompt else None)

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

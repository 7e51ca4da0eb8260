"""Client of RetroInfer Server."""
from .client import Client, Contexts, Stream
from .async_client import AsyncClient, AsyncContexts, AsyncStream
from .channel import Tls
from .errors import (Busy, Cancelled, DeadlineExceeded, Incomplete, InvalidRequest, NotFound, RetroInferError,
                     Unauthenticated, Unavailable)
from .requests import ContextOptions, GenerateOptions, ScoreOptions, context_name
from .results import (Answer, Choice, Context, Event, Finished, Output, Progress, SavedContext, ScoredPrompt,
                      ScoredText, ScoredToken, Scores, Timings, TokenLogprob, Tokens, UnseenMass,
                      Verification)

__all__ = [
    "Answer", "AsyncClient", "AsyncContexts", "AsyncStream", "Busy", "Cancelled", "Choice", "Client",
    "Context", "ContextOptions", "Contexts", "DeadlineExceeded", "Event", "Finished", "GenerateOptions",
    "Incomplete", "InvalidRequest", "NotFound", "Output", "Progress", "RetroInferError", "SavedContext",
    "ScoreOptions", "ScoredPrompt", "ScoredText", "ScoredToken", "Scores", "Stream", "Timings", "Tls",
    "TokenLogprob", "Tokens", "Unauthenticated", "UnseenMass", "Unavailable", "Verification",
    "context_name",
]

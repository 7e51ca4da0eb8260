"""Client of RetroInfer Server."""
from .client import Client, Contexts, Stream
from .async_client import AsyncClient, AsyncContexts, AsyncStream
from .channel import Tls
from .errors import (Busy, Cancelled, DeadlineExceeded, InvalidRequest, NotFound, RetroInferError,
                     Unauthenticated, Unavailable)
from .requests import ContextOptions, GenerateOptions, context_name
from .results import (Answer, Choice, Context, Event, Finished, Output, Progress, SavedContext, Timings,
                      TokenLogprob, Tokens, Verification)

__all__ = [
    "Answer", "AsyncClient", "AsyncContexts", "AsyncStream", "Busy", "Cancelled", "Choice", "Client",
    "Context", "ContextOptions", "Contexts", "DeadlineExceeded", "Event", "Finished", "GenerateOptions",
    "InvalidRequest", "NotFound", "Output", "Progress", "RetroInferError", "SavedContext", "Stream", "Timings",
    "Tls", "TokenLogprob", "Tokens", "Unauthenticated", "Unavailable", "Verification", "context_name",
]

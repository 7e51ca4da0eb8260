"""The client for asyncio."""
from __future__ import annotations

from typing import Any, AsyncIterator, BinaryIO, Callable, Iterable, Sequence, Unpack

import grpc
import grpc.aio

from . import channel, requests, results
from .client import PIECE_BYTES
from .errors import RetroInferError, from_rpc_error
from .generation.v1 import contexts_pb2, contexts_pb2_grpc, generation_pb2, generation_pb2_grpc
from .requests import ContextOptions, Continuation, GenerateOptions, ScoreOptions
from .results import Answer, Context, Event, Progress, SavedContext, Scores, Tokens, Verification


class AsyncStream(AsyncIterator[Event]):
    """The events of a generation. Leaving its `async with` block, cancel(), or cancelling the task that waits
    for an event ends it in the server."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.request_id = ""

    async def __anext__(self) -> Event:
        while True:
            try:
                response = await self._call.read()
            except grpc.RpcError as error:
                raise from_rpc_error(error) from None
            if response is grpc.aio.EOF:  # type: ignore[attr-defined]
                raise StopAsyncIteration
            self.request_id = response.request_id
            if (event := results.event_of(response)) is not None:
                return event

    def cancel(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.cancel()


class AsyncClient:
    """As Client; to be made where an event loop runs, and used from that one."""

    def __init__(self, address: str = "127.0.0.1:50051", *, api_key: str | None = None,
                 tls: channel.Tls | None = None, timeout: float | None = None) -> None:
        self._api_key = api_key
        self._timeout = timeout
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=channel.OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, tls.credentials(),
                                                    options=channel.OPTIONS + tls.options())
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self.contexts = AsyncContexts(self)

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def call_options(self, timeout: float | None, context: str = "") -> dict[str, Any]:
        return {"timeout": self._timeout if timeout is None else timeout,
                "metadata": channel.call_metadata(self._api_key, context)}

    def stream(self, prompt: str | None = None, *, progress: bool = True, timeout: float | None = None,
               **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Begins a generation; its events come as they happen."""
        request, context = requests.generate_request(prompt, progress, options)
        return AsyncStream(self._stub.Generate(request, **self.call_options(timeout, context)))

    async def generate(self, prompt: str | None = None, *,
                       on_progress: Callable[[Progress], None] | None = None, timeout: float | None = None,
                       **options: Unpack[GenerateOptions]) -> Answer:
        """Generates and waits for the end."""
        builder = results.AnswerBuilder()
        async with self.stream(prompt, progress=on_progress is not None, timeout=timeout, **options) as stream:
            async for event in stream:
                if on_progress is not None and isinstance(event, Progress):
                    on_progress(event)
                builder.add(event)
            builder.request_id = stream.request_id
        return builder.answer()

    async def score(self, prompt: str | None = None, continuations: Iterable[Continuation] = (), *,
              on_progress: Callable[[Progress], None] | None = None, timeout: float | None = None,
              **options: Unpack[ScoreOptions]) -> Scores:
        """Measures how probable each continuation (text or token ids) is behind the prompt, in the steps that would
        have generated it; with `prompt_logprobs` the prompt, too. Raises Incomplete rather than return a part."""
        request, context = requests.score_request(prompt, continuations, on_progress is not None, options)
        builder = results.ScoreBuilder(len(request.continuations))
        call = self._stub.Score(request, **self.call_options(timeout, context))
        try:
            async for response in call:
                progress = builder.add(response)
                if on_progress is not None and progress is not None:
                    on_progress(progress)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()
        return builder.scores()

    async def tokenize(self, prompt: str | None = None, *, timeout: float | None = None,
                       **options: Unpack[ContextOptions]) -> Tokens:
        response = await self._ask(self._stub.Tokenize, requests.tokenize_request(prompt, options), timeout)
        return Tokens(tuple(response.token_ids), response.max_model_len)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False,
                         timeout: float | None = None) -> str:
        request = generation_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        text: str = (await self._ask(self._stub.Detokenize, request, timeout)).text
        return text

    async def model_info(self, *, timeout: float | None = None) -> generation_pb2.GetModelInfoResponse:
        """The model, the limits and defaults of the server, and what it is doing."""
        info: generation_pb2.GetModelInfoResponse = await self._ask(
            self._stub.GetModelInfo, generation_pb2.GetModelInfoRequest(), timeout)
        return info

    async def abort(self, request_id: str, *, timeout: float | None = None) -> bool:
        """Ends a request of any client; returns whether there was one."""
        request = generation_pb2.AbortRequest(request_id=request_id)
        return bool((await self._ask(self._stub.Abort, request, timeout)).found)

    async def _ask(self, method: Any, request: Any, timeout: float | None) -> Any:
        try:
            return await method(request, **self.call_options(timeout))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


class AsyncContexts:
    """Contexts that the server keeps under names; `cache_salt` says whose."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._stub = contexts_pb2_grpc.ContextServiceStub(client._channel)

    async def save(self, name: str, prompt: str | None = None, *, pinned: bool = False,
                   replace: bool = False, time_to_live: float | None = None,
                   on_progress: Callable[[Progress], None] | None = None,
                   timeout: float | None = None, **options: Unpack[ContextOptions]) -> SavedContext:
        """Reads a prompt, where that is not done yet, and keeps it; time_to_live in seconds. Raises InvalidRequest
        with reason CONTEXT_EXISTS if the name is taken, unless the context there is to be replaced."""
        request = requests.save_request(name, prompt, pinned, replace, time_to_live, options)
        saved = None
        call = self._stub.SaveContext(request, **self._client.call_options(timeout))
        try:
            async for response in call:
                if response.HasField("saved"):
                    saved = results.saved(response.saved)
                elif on_progress is not None and response.HasField("progress"):
                    on_progress(results.progress(response.progress))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()
        if saved is None:
            raise RetroInferError("the call ended without a context", grpc.StatusCode.INTERNAL)
        return saved

    async def list(self, *, cache_salt: str = "", timeout: float | None = None) -> tuple[Context, ...]:
        request = contexts_pb2.ListContextsRequest(cache_salt=cache_salt)
        response = await self._client._ask(self._stub.ListContexts, request, timeout)
        return tuple(map(results.context, response.contexts))

    async def pin(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> Context:
        """Never evicts it from now on."""
        request = contexts_pb2.PinContextRequest(name=name, cache_salt=cache_salt)
        return results.context((await self._client._ask(self._stub.PinContext, request, timeout)).context)

    async def unpin(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> Context:
        request = contexts_pb2.UnpinContextRequest(name=name, cache_salt=cache_salt)
        return results.context((await self._client._ask(self._stub.UnpinContext, request, timeout)).context)

    async def remove(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> int:
        """Returns how many bytes the disk has got back."""
        request = contexts_pb2.RemoveContextRequest(name=name, cache_salt=cache_salt)
        return int((await self._client._ask(self._stub.RemoveContext, request, timeout)).removed_bytes)

    async def verify(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> Verification:
        """Reads and checks every byte of it on the disk."""
        request = contexts_pb2.VerifyContextRequest(name=name, cache_salt=cache_salt)
        return results.verification(await self._client._ask(self._stub.VerifyContext, request, timeout))

    async def export(self, name: str, file: BinaryIO, *, cache_salt: str = "",
                     timeout: float | None = None) -> int:
        """Writes it to a file that is open for writing; returns its bytes. A file of a call that failed is not
        whole."""
        request = contexts_pb2.ExportContextRequest(name=name, cache_salt=cache_salt)
        call = self._stub.ExportContext(request, **self._client.call_options(timeout))
        written = 0
        try:
            async for response in call:
                file.write(response.data)
                written += len(response.data)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()
        return written

    async def import_file(self, file: BinaryIO, *, name: str = "", pinned: bool = False, replace: bool = False,
                          cache_salt: str = "", timeout: float | None = None) -> Context:
        """Takes in what export() wrote, here or beside the same model elsewhere."""
        async def pieces() -> AsyncIterator[contexts_pb2.ImportContextRequest]:
            yield contexts_pb2.ImportContextRequest(name=name, pinned=pinned, replace=replace,
                                                    cache_salt=cache_salt, data=file.read(PIECE_BYTES))
            while data := file.read(PIECE_BYTES):
                yield contexts_pb2.ImportContextRequest(data=data)

        return results.context((await self._client._ask(self._stub.ImportContext, pieces(), timeout)).context)

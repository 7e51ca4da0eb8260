"""The client that waits."""
from __future__ import annotations

from typing import Any, BinaryIO, Callable, Iterable, Iterator, Sequence, Unpack

import grpc

from . import channel, requests, results
from .errors import RetroInferError, from_rpc_error
from .generation.v1 import contexts_pb2, contexts_pb2_grpc, generation_pb2, generation_pb2_grpc
from .requests import ContextOptions, Continuation, GenerateOptions, ScoreOptions
from .results import Answer, Context, Event, Progress, SavedContext, Scores, Tokens, Verification

PIECE_BYTES = 1 << 20  # of a context file


class Stream(Iterator[Event]):
    """The events of a generation. Leaving its `with` block, or cancel(), ends it in the server."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.request_id = ""

    def __next__(self) -> Event:
        while True:
            try:
                response = next(self._call)
            except grpc.RpcError as error:
                raise from_rpc_error(error) from None
            self.request_id = response.request_id
            if (event := results.event_of(response)) is not None:
                return event

    def cancel(self) -> None:
        self._call.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()


class Client:
    """A connection to a server. Threads: any may use it.

    address: "host:port", or "unix:" and a path. timeout: seconds for each call that does not say; None: no limit.
    """

    def __init__(self, address: str = "127.0.0.1:50051", *, api_key: str | None = None,
                 tls: channel.Tls | None = None, timeout: float | None = None) -> None:
        self._api_key = api_key
        self._timeout = timeout
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=channel.OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, tls.credentials(),
                                                options=channel.OPTIONS + tls.options())
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self.contexts = Contexts(self)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call_options(self, timeout: float | None, context: str = "") -> dict[str, Any]:
        return {"timeout": self._timeout if timeout is None else timeout,
                "metadata": channel.call_metadata(self._api_key, context)}

    def stream(self, prompt: str | None = None, *, progress: bool = True, timeout: float | None = None,
               **options: Unpack[GenerateOptions]) -> Stream:
        """Begins a generation; its events come as they happen."""
        request, context = requests.generate_request(prompt, progress, options)
        return Stream(self._stub.Generate(request, **self.call_options(timeout, context)))

    def generate(self, prompt: str | None = None, *, on_progress: Callable[[Progress], None] | None = None,
                 timeout: float | None = None, **options: Unpack[GenerateOptions]) -> Answer:
        """Generates and waits for the end."""
        builder = results.AnswerBuilder()
        with self.stream(prompt, progress=on_progress is not None, timeout=timeout, **options) as stream:
            for event in stream:
                if on_progress is not None and isinstance(event, Progress):
                    on_progress(event)
                builder.add(event)
            builder.request_id = stream.request_id
        return builder.answer()

    def score(self, prompt: str | None = None, continuations: Iterable[Continuation] = (), *,
        on_progress: Callable[[Progress], None] | None = None, timeout: float | None = None,
        **options: Unpack[ScoreOptions]) -> Scores:
        """Measures how probable each continuation (text or token ids) is behind the prompt, in the steps that would
        have generated it; with `prompt_logprobs` the prompt, too. Raises Incomplete rather than return a part."""
        request, context = requests.score_request(prompt, continuations, on_progress is not None, options)
        builder = results.ScoreBuilder(len(request.continuations))
        call = self._stub.Score(request, **self.call_options(timeout, context))
        try:
            for response in call:
                progress = builder.add(response)
                if on_progress is not None and progress is not None:
                    on_progress(progress)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()
        return builder.scores()

    def tokenize(self, prompt: str | None = None, *, timeout: float | None = None,
                 **options: Unpack[ContextOptions]) -> Tokens:
        response = self._ask(self._stub.Tokenize, requests.tokenize_request(prompt, options), timeout)
        return Tokens(tuple(response.token_ids), response.max_model_len)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False,
                   timeout: float | None = None) -> str:
        request = generation_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        text: str = self._ask(self._stub.Detokenize, request, timeout).text
        return text

    def model_info(self, *, timeout: float | None = None) -> generation_pb2.GetModelInfoResponse:
        """The model, the limits and defaults of the server, and what it is doing."""
        info: generation_pb2.GetModelInfoResponse = self._ask(
            self._stub.GetModelInfo, generation_pb2.GetModelInfoRequest(), timeout)
        return info

    def abort(self, request_id: str, *, timeout: float | None = None) -> bool:
        """Ends a request of any client; returns whether there was one."""
        request = generation_pb2.AbortRequest(request_id=request_id)
        return bool(self._ask(self._stub.Abort, request, timeout).found)

    def _ask(self, method: Any, request: Any, timeout: float | None) -> Any:
        try:
            return method(request, **self.call_options(timeout))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


class Contexts:
    """Contexts that the server keeps under names; `cache_salt` says whose."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stub = contexts_pb2_grpc.ContextServiceStub(client._channel)

    def save(self, name: str, prompt: str | None = None, *, pinned: bool = False,
             replace: bool = False, time_to_live: float | None = None,
             on_progress: Callable[[Progress], None] | None = None,
             timeout: float | None = None, **options: Unpack[ContextOptions]) -> SavedContext:
        """Reads a prompt, where that is not done yet, and keeps it; time_to_live in seconds. Raises InvalidRequest
        with reason CONTEXT_EXISTS if the name is taken, unless the context there is to be replaced."""
        request = requests.save_request(name, prompt, pinned, replace, time_to_live, options)
        saved = None
        call = self._stub.SaveContext(request, **self._client.call_options(timeout))
        try:
            for response in call:
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

    def list(self, *, cache_salt: str = "", timeout: float | None = None) -> tuple[Context, ...]:
        response = self._client._ask(self._stub.ListContexts,
                                     contexts_pb2.ListContextsRequest(cache_salt=cache_salt), timeout)
        return tuple(map(results.context, response.contexts))

    def pin(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> Context:
        """Never evicts it from now on."""
        request = contexts_pb2.PinContextRequest(name=name, cache_salt=cache_salt)
        return results.context(self._client._ask(self._stub.PinContext, request, timeout).context)

    def unpin(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> Context:
        request = contexts_pb2.UnpinContextRequest(name=name, cache_salt=cache_salt)
        return results.context(self._client._ask(self._stub.UnpinContext, request, timeout).context)

    def remove(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> int:
        """Returns how many bytes the disk has got back."""
        request = contexts_pb2.RemoveContextRequest(name=name, cache_salt=cache_salt)
        return int(self._client._ask(self._stub.RemoveContext, request, timeout).removed_bytes)

    def verify(self, name: str, *, cache_salt: str = "", timeout: float | None = None) -> Verification:
        """Reads and checks every byte of it on the disk."""
        request = contexts_pb2.VerifyContextRequest(name=name, cache_salt=cache_salt)
        return results.verification(self._client._ask(self._stub.VerifyContext, request, timeout))

    def export(self, name: str, file: BinaryIO, *, cache_salt: str = "", timeout: float | None = None) -> int:
        """Writes it to a file that is open for writing; returns its bytes. A file of a call that failed is not
        whole."""
        request = contexts_pb2.ExportContextRequest(name=name, cache_salt=cache_salt)
        call = self._stub.ExportContext(request, **self._client.call_options(timeout))
        written = 0
        try:
            for response in call:
                file.write(response.data)
                written += len(response.data)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()
        return written

    def import_file(self, file: BinaryIO, *, name: str = "", pinned: bool = False, replace: bool = False,
                    cache_salt: str = "", timeout: float | None = None) -> Context:
        """Takes in what export() wrote, here or beside the same model elsewhere."""
        def pieces() -> Iterator[contexts_pb2.ImportContextRequest]:
            first = contexts_pb2.ImportContextRequest(name=name, pinned=pinned, replace=replace,
                                                      cache_salt=cache_salt, data=file.read(PIECE_BYTES))
            yield first
            while data := file.read(PIECE_BYTES):
                yield contexts_pb2.ImportContextRequest(data=data)

        return results.context(self._client._ask(self._stub.ImportContext, pieces(), timeout).context)

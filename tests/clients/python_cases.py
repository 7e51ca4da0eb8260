"""The package of clients/python, with the newest gRPC and protobuf."""
import asyncio
import importlib.metadata

import retroinfer
from table import case, expect


def cases(server, asked, answer):
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("grpcio", "protobuf"))
    name = f"retroinfer {importlib.metadata.version('retroinfer')} ({versions})"

    @case(name, "generate, stream, score, tokenize; asyncio, four at once; a wrong key")
    def _():
        with retroinfer.Client(server.address, api_key=server.key) as client:
            whole = client.generate(messages=asked, temperature=0, max_tokens=20)
            expect(whole.text.strip() == answer, whole.text)
            with client.stream(messages=asked, temperature=0, max_tokens=20) as stream:
                events = list(stream)
            expect("".join(event.text for event in events if isinstance(event, retroinfer.Output)) == whole.text)
            tokens = whole.choices[0].token_ids
            scores = client.score(messages=asked, continuations=[tokens, "else"])
            expect(scores.continuations[0].is_greedy and not scores.continuations[1].is_greedy)
            expect(client.detokenize(client.tokenize(answer, add_special_tokens=False).ids) == answer)

        async def four():
            async with retroinfer.AsyncClient(server.address, api_key=server.key) as many:
                return await asyncio.gather(*(many.score(f"{index} and", [" so on"]) for index in range(4)))
        expect(len(asyncio.run(four())) == 4)
        try:
            with retroinfer.Client(server.address, api_key="wrong") as stranger:
                stranger.model_info()
        except retroinfer.Unauthenticated:
            return
        raise AssertionError("not refused")

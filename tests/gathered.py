"""Whole answers of a replica's stream."""

from contextlib import aclosing

from service.messages.wire import Answer, Chunk, Ending, Failure, ReplicaStream


async def gathered(items: ReplicaStream) -> Answer | Failure:
    """The answer, or its failure."""
    chunks: list[Chunk] = []
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Failure):
                return item
            if isinstance(item, Chunk):
                chunks.append(item)
            ending = item if isinstance(item, Ending) else getattr(item, "ending", None)
            if ending is not None:
                return Answer.from_chunks(chunks, ending)
    raise AssertionError("a stream ended without an ending")

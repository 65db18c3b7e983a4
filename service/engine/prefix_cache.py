"""Which KV pages requests hold, and which ones they share: pages by the tokens they were computed from.

A block's KV depends on its sequence's tokens up to its end and on nothing else, so sequences that begin with the
same blocks may read the same pages. A tree has a node for every block that is written: its path from the root is
the sequence's tokens, compared one by one and never by a hash alone. A request holds the nodes of its leading
blocks; what nobody holds stays until its page is needed, least recently used first. Pages in the tree are never
written again. Knows pages and tokens; no tensors, no requests, no modes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from service.engine.kv_cache import PagePool

Tokens = tuple[int, ...]
_Nodes: TypeAlias = "dict[tuple[str, Tokens], _Node]"


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a request asks the cache for: its prompt's whole blocks, and whose pages it may share.

    `salt`: only requests with the same one share. `mrp`: whether it needs MRP's part of a page.
    """

    blocks: Sequence[Tokens] = ()
    salt: str = ""
    mrp: bool = False


@dataclass(eq=False, slots=True)
class _Node:
    """A written block, found by `key` among its `siblings`, the blocks that follow the same prefix.

    `holders`: live requests; `outdated`: the page it had before it got one with MRP's part.
    """

    siblings: _Nodes = field(repr=False)
    key: tuple[str, Tokens]
    page: int
    mrp: bool
    holders: int = 0
    outdated: int | None = None
    children: _Nodes = field(default_factory=dict, repr=False)


@dataclass(eq=False, slots=True)
class Lease:
    """The pages of one live request, in order, for its whole length.

    The first `num_shared` are the tree's and must not be written, the others are the request's own.
    """

    pages: list[int]
    prefix: Prefix = field(default_factory=Prefix)
    nodes: list[_Node] = field(default_factory=list, repr=False)

    @property
    def num_shared(self) -> int:
        """Leading pages that are written and in the tree."""
        return len(self.nodes)


class PrefixCache:
    """Hands out the pages of a pool. `shares`: whether written pages outlive and may be read beside their request."""

    def __init__(self, pool: PagePool, shares: bool = True) -> None:
        self._pool, self.shares = pool, shares
        self._first: _Nodes = {}
        # Nodes that nobody holds. Holders hold whole paths and let go of the deepest node first, so children stand
        # before their parents here: the first node is always a leaf.
        self._idle: OrderedDict[_Node, None] = OrderedDict()

    @property
    def num_used(self) -> int:
        """Pages that live requests hold."""
        return self._pool.num_used - len(self._idle)

    @property
    def capacity(self) -> int:
        """Pages there are."""
        return self._pool.capacity

    def reserve(self, count: int, prefix: Prefix) -> Lease | None:
        """`count` pages, the leading ones shared as far as the tree has them; None when too few can be had."""
        nodes = list(self._match(prefix))
        missing = count - len(nodes)
        idle = sum(not node.holders for node in nodes)
        if missing > self._pool.num_free + len(self._idle) - idle:
            return None
        for node in nodes:
            self._hold(node)
        while self._pool.num_free < missing:
            self._evict()
        own = self._pool.reserve(missing)
        return None if own is None else Lease([node.page for node in nodes] + own, prefix, nodes)

    def publish(self, lease: Lease, tokens: Tokens) -> None:
        """Shares the request's next block, which is written and final: MRP's part too if the request needs it.

        If the tree has the block already, the request goes on with the tree's page and its own is free.
        """
        if not self.shares:
            return
        siblings = lease.nodes[-1].children if lease.nodes else self._first
        page, index, mrp = lease.pages[lease.num_shared], lease.num_shared, lease.prefix.mrp
        key = (lease.prefix.salt, tokens)
        node = siblings.get(key)
        if node is None:
            node = siblings[key] = _Node(siblings, key, page, mrp)
        elif mrp and not node.mrp:
            self._replace(node, page)
        else:
            lease.pages[index] = node.page
            self._pool.release([page])
        self._hold(node)
        lease.nodes.append(node)

    def release(self, lease: Lease) -> None:
        """Takes back what a request holds and empties the lease, so that nothing is given back twice."""
        self._pool.release(lease.pages[lease.num_shared :])
        for node in reversed(lease.nodes):
            self._let_go(node)
        lease.nodes.clear()
        lease.pages.clear()

    def _match(self, prefix: Prefix) -> Iterator[_Node]:
        """The nodes of the leading blocks that are there with all that is needed."""
        nodes = self._first
        for tokens in prefix.blocks:
            node = nodes.get((prefix.salt, tokens))
            if node is None or (prefix.mrp and not node.mrp):
                return
            yield node
            nodes = node.children

    def _hold(self, node: _Node) -> None:
        self._idle.pop(node, None)
        node.holders += 1

    def _let_go(self, node: _Node) -> None:
        node.holders -= 1
        if not node.holders:
            self._idle[node] = None
            if node.outdated is not None:
                self._pool.release([node.outdated])
                node.outdated = None

    def _replace(self, node: _Node, page: int) -> None:
        """Gives a node a page that has MRP's part; who reads the old page may go on until nobody holds the node."""
        if node.holders:
            node.outdated = node.page
        else:
            self._pool.release([node.page])
        node.page, node.mrp = page, True

    def _evict(self) -> None:
        node, _ = self._idle.popitem(last=False)
        del node.siblings[node.key]
        self._pool.release([node.page])

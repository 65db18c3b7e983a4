"""The KV pages of requests, and the prefix cache: the pages that requests share.

The pages of a request grow with its answer. A tree has a node for every written block; a path is compared token by
token, never by a hash only. A request holds the nodes of its leading blocks. A node that no request holds stays until
its page is needed, the least recently used first. Pages in the tree are never written again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from service.errors import SettingsError

#: the tokens of one block
BlockTokens = tuple[int, ...]
_Nodes: TypeAlias = "dict[tuple[str, BlockTokens], _Node]"


@dataclass(frozen=True, slots=True)
class Prefix:
    """Whole blocks of a text. Only requests of one `salt` share pages. `mrp`: whether MRP's part is needed."""

    blocks: Sequence[BlockTokens] = ()
    salt: str = ""
    mrp: bool = False


@dataclass(eq=False, slots=True)
class _Node:
    """A written block. `siblings`: the blocks after the same prefix by `key`, itself included.

    `holders`: the number of running requests that hold it. `outdated`: its earlier page, without MRP's part.
    """

    siblings: _Nodes = field(repr=False)
    key: tuple[str, BlockTokens]
    page: int
    mrp: bool
    holders: int = 0
    outdated: int | None = None
    children: _Nodes = field(default_factory=dict, repr=False)


@dataclass(eq=False, slots=True)
class Lease:
    """The pages of one request, in order. Rows have the list itself, so it stays the same object.

    The first `num_shared` pages belong to the tree and must not be written. All later pages belong to the request.
    `limit`, `least`: the most and the fewest pages that the request can need in the end. `wanted`: the pages that its
    next rows need. `index`: the block that is decoded; `num_prompt`: the first one. `num_found`: the leading pages that
    were in the tree before.
    """

    pages: list[int]
    prefix: Prefix = field(default_factory=Prefix)
    limit: int = 0
    least: int = 0
    wanted: int = 0
    index: int = 0
    num_prompt: int = 0
    num_found: int = 0
    nodes: list[_Node] = field(default_factory=list, repr=False)

    def want(self, index: int) -> None:
        """The block of this index is decoded. Its row writes its page, perhaps beside the first row of the next one."""
        self.index = index
        self.wanted = min(self.limit, index + 2)

    @property
    def num_shared(self) -> int:
        """The number of leading pages that are written and in the tree."""
        return len(self.nodes)

    @property
    def num_own(self) -> int:
        """The number of pages that count as the request's: those that it did not find in the tree."""
        return len(self.pages) - self.num_found


class PrefixCache:
    """Gives KV pages to requests. `shares`: whether requests may read the pages of others. `capacity`: all pages."""

    def __init__(self, num_pages: int, shares: bool = True) -> None:
        if num_pages < 1:
            raise SettingsError(f"the KV cache has {num_pages} pages, at least 1 is needed", param="kv_cache_tokens")
        self.capacity, self.shares = num_pages, shares
        self._free = list(range(num_pages - 1, -1, -1))
        self._roots: _Nodes = {}
        # Nodes that no request holds. Requests hold whole paths and release the deepest node first, so children come
        # before their parents here and the first node is always a leaf.
        self._idle: OrderedDict[_Node, None] = OrderedDict()

    @property
    def num_used(self) -> int:
        return self.capacity - len(self._free) - len(self._idle)

    @property
    def num_available(self) -> int:
        """The number of pages that no request holds."""
        return len(self._free) + len(self._idle)

    def num_new(self, lease: Lease) -> int:
        """The number of pages that an empty lease would take, of those that no request holds now."""
        return _num_new(lease, self._match(lease.prefix))

    def fill(self, lease: Lease) -> bool:
        """Gives an empty lease the pages that it wants. The leading ones are shared if the tree has them.

        False if too few are free.
        """
        nodes = list(self._match(lease.prefix))
        if _num_new(lease, nodes) > self.num_available:
            return False
        for node in nodes:
            self._hold(node)
            lease.pages.append(node.page)
            lease.nodes.append(node)
        lease.num_found = lease.num_shared
        return self.grow(lease)

    def grow(self, lease: Lease) -> bool:
        """Adds the pages that the lease wants, as far as they are free. -> whether it has all."""
        for _ in range(min(lease.wanted - len(lease.pages), self.num_available)):
            if not self._free:
                self._evict()
            lease.pages.append(self._free.pop())
        return len(lease.pages) >= lease.wanted

    def extend(self, lease: Lease) -> int:
        """Shares the next written blocks of the prefix, before the request writes them. Returns their number."""
        before = lease.num_shared
        for node in list(self._match(lease.prefix, lease.nodes)):
            self._free.append(lease.pages[lease.num_shared])
            lease.pages[lease.num_shared] = node.page
            self._hold(node)
            lease.nodes.append(node)
        lease.num_found += lease.num_shared - before
        return lease.num_shared - before

    def publish(self, lease: Lease, tokens: BlockTokens) -> None:
        """Shares the request's next block, which is final and written. An equal block of the tree replaces it."""
        if not self.shares:
            return
        siblings = lease.nodes[-1].children if lease.nodes else self._roots
        page, index, mrp = lease.pages[lease.num_shared], lease.num_shared, lease.prefix.mrp
        key = (lease.prefix.salt, tokens)
        node = siblings.get(key)
        if node is None:
            node = siblings[key] = _Node(siblings, key, page, mrp)
        elif mrp and not node.mrp:
            self._replace(node, page)
        else:
            lease.pages[index] = node.page
            self._free.append(page)
        self._hold(node)
        lease.nodes.append(node)

    def release(self, lease: Lease) -> None:
        """Releases the pages of a request and empties the lease, so that no page is released twice.

        Its written blocks stay in the tree until their pages are needed, the last ones first.
        """
        self._free.extend(reversed(lease.pages[lease.num_shared :]))
        for node in reversed(lease.nodes):
            self._let_go(node)
        lease.nodes.clear()
        lease.pages.clear()
        lease.num_found = 0

    def drop_idle(self) -> None:
        """Drops the written blocks that no request holds."""
        while self._idle:
            self._evict()

    def clear(self) -> None:
        """Drops all written blocks: new weights give new keys and values. No request may hold a page."""
        self.drop_idle()
        if self.num_used:
            raise AssertionError("pages are in use while the cache is emptied")

    def _match(self, prefix: Prefix, held: Sequence[_Node] = ()) -> Iterator[_Node]:
        """The nodes of the leading blocks after those that are held, as far as the tree has them with all parts."""
        nodes = held[-1].children if held else self._roots
        for tokens in islice(prefix.blocks, len(held), None):
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
                self._free.append(node.outdated)
                node.outdated = None

    def _replace(self, node: _Node, page: int) -> None:
        """Gives a node a page with MRP's part. The old page stays readable until no request holds the node."""
        if node.holders:
            node.outdated = node.page
        else:
            self._free.append(node.page)
        node.page, node.mrp = page, True

    def _evict(self) -> None:
        node, _ = self._idle.popitem(last=False)
        del node.siblings[node.key]
        self._free.append(node.page)


def _num_new(lease: Lease, nodes: Iterable[_Node]) -> int:
    return lease.wanted - sum([node.holders > 0 for node in nodes])

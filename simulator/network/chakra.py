"""A trace as Chakra files, one per rank: a metadata message, then a message per node.

The dialects differ in the numbers of the node types and in the unit of a duration: nanoseconds in
the fork, whole microseconds upstream. With its roofline model on, upstream computes a node's time
from a number of operations instead. `files.system` sets that one takes half a nanosecond, so that
2 x ns + 1 of them, cut to whole nanoseconds, take ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any, NamedTuple

from google.protobuf import proto

from simulator.network.chakra_schema import AttributeProto, BoolList, GlobalMetadata
from simulator.network.chakra_schema import Node as NodeMessage
from simulator.network.config import CollectiveKind
from simulator.network.dialect import Dialect
from simulator.network.trace import Collective, Compute, MemoryAccess, Node, Place, Receive, Send

SCHEMA = "1.0.2-chakra.0.0.4"
NS_PER_MICRO = 1000


class NodeTypes(NamedTuple):
    """Numbers of the node types."""

    compute: int
    send: int
    receive: int
    collective: int
    load: int = 2
    store: int = 3


NODE_TYPES: dict[Dialect, NodeTypes] = {
    "upstream": NodeTypes(compute=4, send=5, receive=6, collective=7),
    "llmservingsim": NodeTypes(compute=5, send=6, receive=7, collective=8),
}
COMM_TYPES: dict[CollectiveKind, int] = {
    "all_reduce": 0,
    "all_gather": 2,
    "all_to_all": 6,
    "reduce_scatter": 7,
}
PLACES: dict[Place, int] = {"local": 1, "remote": 2, "cxl": 3}


def encoded(
    nodes: Iterable[Node],
    dialect: Dialect,
    *,
    rank: int,
    num_dimensions: int = 1,
    exact_ns: bool = False,
) -> bytes:
    """The .et file of one rank.

    `exact_ns` adds what upstream needs to run compute nodes to the nanosecond; it changes nothing in
    the fork's files. With one dimension a collective does not say which dimensions it involves.
    """
    out = BytesIO()
    metadata = GlobalMetadata(attr=[AttributeProto(name="schema", string_val=SCHEMA)])
    proto.serialize_length_prefixed(metadata, out)
    micros = _Micros()
    for i, node in enumerate(nodes):
        message = NodeMessage(id=i, name=node.name, data_deps=node.after)
        _FILL[type(node)](message, node, dialect, rank)
        if isinstance(node, Compute) and dialect == "upstream":
            message.duration_micros = micros.of(node.ns)
            if exact_ns:
                _attr(message, "num_ops", int64_val=2 * node.ns + 1)
                _attr(message, "tensor_size", uint64_val=1)
        if isinstance(node, Collective) and num_dimensions > 1:
            dims = range(num_dimensions) if node.dims is None else node.dims
            involved = [dim in dims for dim in range(num_dimensions)]
            _attr(message, "involved_dim", bool_list=BoolList(values=involved))
        proto.serialize_length_prefixed(message, out)
    return out.getvalue()


class _Micros:
    """Whole microseconds whose running sum stays within half of one of the true sum."""

    def __init__(self) -> None:
        self.ns = self.written = 0

    def of(self, ns: int) -> int:
        self.ns += ns
        micros = (self.ns + NS_PER_MICRO // 2) // NS_PER_MICRO - self.written
        self.written += micros
        return micros


def _attr(message: Any, name: str, **value: Any) -> None:
    message.attr.append(AttributeProto(name=name, **value))


def _compute(message: Any, node: Compute, dialect: Dialect, _: int) -> None:
    message.type = NODE_TYPES[dialect].compute
    if dialect == "llmservingsim":
        message.duration_micros = node.ns


def _collective(message: Any, node: Collective, dialect: Dialect, _: int) -> None:
    message.type = NODE_TYPES[dialect].collective
    _attr(message, "comm_type", int64_val=COMM_TYPES[node.kind])
    _attr(message, "comm_size", int64_val=node.num_bytes)


def _message(message: Any, node: Send | Receive, source: int, destination: int) -> None:
    _attr(message, "comm_src", int32_val=source)
    _attr(message, "comm_dst", int32_val=destination)
    _attr(message, "comm_size", int64_val=node.num_bytes)
    _attr(message, "comm_tag", int32_val=node.tag)


def _send(message: Any, node: Send, dialect: Dialect, rank: int) -> None:
    message.type = NODE_TYPES[dialect].send
    _message(message, node, rank, node.peer)


def _receive(message: Any, node: Receive, dialect: Dialect, rank: int) -> None:
    message.type = NODE_TYPES[dialect].receive
    _message(message, node, node.peer, rank)


def _access(message: Any, node: MemoryAccess, dialect: Dialect, _: int) -> None:
    types = NODE_TYPES[dialect]
    message.type = types.store if node.store else types.load
    _attr(message, "tensor_size", uint64_val=node.num_bytes)
    if dialect == "llmservingsim":
        _attr(message, "tensor_loc", uint32_val=PLACES[node.place])
        _attr(message, "tensor_device", uint32_val=node.device)


_FILL: dict[type[Any], Any] = {
    Compute: _compute,
    Collective: _collective,
    Send: _send,
    Receive: _receive,
    MemoryAccess: _access,
}


def decoded(data: bytes) -> Iterator[Any]:
    """The messages of an .et file: the metadata, then the nodes."""
    stream = BytesIO(data)
    yield proto.parse_length_prefixed(GlobalMetadata, stream)
    while (message := proto.parse_length_prefixed(NodeMessage, stream)) is not None:
        yield message

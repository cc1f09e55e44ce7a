"""The messages of a Chakra execution trace, as far as ASTRA-Sim reads them (proto3).

    message GlobalMetadata { string version = 1; repeated AttributeProto attr = 2; }
    message Node {
      optional uint64 id = 1; string name = 2; uint32 type = 3;
      repeated uint64 ctrl_deps = 4; repeated uint64 data_deps = 5;
      uint64 start_time_micros = 6; uint64 duration_micros = 7;
      repeated AttributeProto attr = 10;
    }
    message BoolList { repeated bool values = 1; }
    message AttributeProto {
      string name = 1; string doc_string = 2;
      oneof value {
        double double_val = 3; float float_val = 5; int32 int32_val = 7; int64 int64_val = 9;
        uint32 uint32_val = 11; uint64 uint64_val = 13; bool bool_val = 27; BoolList bool_list = 28;
        string string_val = 29; bytes bytes_val = 31;
      }
    }

`type` is an enum there whose numbers differ between the two dialects; on the wire it is the same.
Classes are made from the descriptors below when this module is imported, so no compiler is needed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto

PACKAGE = "ChakraProtoMsg"
ATTRIBUTE, BOOLS = f".{PACKAGE}.AttributeProto", f".{PACKAGE}.BoolList"

# message -> fields: name, number, type, and whether it is repeated.
MESSAGES: dict[str, list[tuple[str, int, Any, bool]]] = {
    "BoolList": [("values", 1, Field.TYPE_BOOL, True)],
    "AttributeProto": [
        ("name", 1, Field.TYPE_STRING, False),
        ("doc_string", 2, Field.TYPE_STRING, False),
        ("double_val", 3, Field.TYPE_DOUBLE, False),
        ("float_val", 5, Field.TYPE_FLOAT, False),
        ("int32_val", 7, Field.TYPE_INT32, False),
        ("int64_val", 9, Field.TYPE_INT64, False),
        ("uint32_val", 11, Field.TYPE_UINT32, False),
        ("uint64_val", 13, Field.TYPE_UINT64, False),
        ("bool_val", 27, Field.TYPE_BOOL, False),
        ("bool_list", 28, BOOLS, False),
        ("string_val", 29, Field.TYPE_STRING, False),
        ("bytes_val", 31, Field.TYPE_BYTES, False),
    ],
    "GlobalMetadata": [
        ("version", 1, Field.TYPE_STRING, False),
        ("attr", 2, ATTRIBUTE, True),
    ],
    "Node": [
        ("id", 1, Field.TYPE_UINT64, False),
        ("name", 2, Field.TYPE_STRING, False),
        ("type", 3, Field.TYPE_UINT32, False),
        ("ctrl_deps", 4, Field.TYPE_UINT64, True),
        ("data_deps", 5, Field.TYPE_UINT64, True),
        ("start_time_micros", 6, Field.TYPE_UINT64, False),
        ("duration_micros", 7, Field.TYPE_UINT64, False),
        ("attr", 10, ATTRIBUTE, True),
    ],
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="servesweep/chakra.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = Field.TYPE_MESSAGE, kind
            else:
                field.type = kind
            if name == "AttributeProto" and number > 2:
                field.oneof_index = 0
            if name == "Node" and field_name == "id":
                field.proto3_optional = True  # the first node's 0 is written out
                field.oneof_index = 0
                message.oneof_decl.add(name="_id")
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    return file


# A pool of our own: another package may have loaded its own messages of these names.
_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


AttributeProto = _message("AttributeProto")
BoolList = _message("BoolList")
GlobalMetadata = _message("GlobalMetadata")
Node = _message("Node")

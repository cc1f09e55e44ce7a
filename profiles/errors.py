"""The one kind of error a user's mistake raises."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)

MAX_BITS = 1024  # of a whole number in a file
NO_SUCH_FIELD = "no such field"


class InputError(ValueError):
    """A wrong input: names the file, the field, the value found and what was expected.

    The command line prints it as one line and exits with 2; it is never a traceback.
    """

    def __init__(self, source: str | Path, field: str, value: Any, expected: str) -> None:
        self.source = str(source)
        self.field = field
        self.value = value
        self.expected = expected
        text = f"{self.source}: {field}: got {_shown(value)}, expected {expected}"
        super().__init__(text.replace("\n", "\\n"))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, Any, str]]:
        return type(self), (self.source, self.field, self.value, self.expected)


@contextmanager
def named(source: str | Path, field: str) -> Iterator[None]:
    """An error in another file says which field of the point names that file."""
    try:
        yield
    except InputError as error:
        if error.source == str(source):
            raise
        where = f"{source}, {field}: {error.source}"
        raise InputError(where, error.field, error.value, error.expected) from None


def _shown(value: Any, limit: int = 120) -> str:
    text = value if isinstance(value, _Missing) else repr(value)
    text = str(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class _Missing:
    """Stands for a value that is not there at all."""

    def __str__(self) -> str:
        return "nothing"

    __repr__ = __str__


MISSING = _Missing()


def parse_model(model: type[Model], data: Any, source: str | Path) -> Model:
    """Validate `data` as `model`, turning pydantic's report into one InputError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise input_error(error, source, model) from None


def input_error(error: ValidationError, source: str | Path, model: type[BaseModel]) -> InputError:
    """The first problem pydantic found, in our words."""
    first = error.errors(include_url=False)[0]
    field = dotted(first["loc"]) or model.__name__
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        known = ", ".join(sorted(known_fields(model, first["loc"][:-1])))
        return InputError(source, field, first["input"], f"{NO_SUCH_FIELD}; known fields: {known}")
    if kind == "missing":
        return InputError(source, field, MISSING, "a value, it is required")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        field = dotted((*first["loc"], *filter(None, [cause.field]))) or model.__name__
        return InputError(source, field, cause.value, cause.expected)
    expected = message.removeprefix("Input should be ").removesuffix(" type")
    return InputError(source, field, first["input"], expected[:1].lower() + expected[1:])


class FieldError(ValueError):
    """Raised inside a model's validator to name the field at fault.

    `field` is relative to the model that raises; empty means the model itself.
    """

    def __init__(self, field: str, value: Any, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        super().__init__(f"{field}: got {_shown(value)}, expected {expected}")


def finite_number(value: Any) -> int | float:
    """For a field that takes either kind of number: an int stays one, however large.

    Raises FieldError.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError("", value, "a number")
    if not math.isfinite(value):
        raise FieldError("", value, "a finite number")
    return value


def dotted(location: Iterable[str | int]) -> str:
    """('engine', 'axes', 0) -> 'engine.axes[0]'."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def known_fields(model: type[BaseModel], location: Iterable[str | int]) -> set[str]:
    """The field names of the model that sits at `location` inside `model`."""
    current: Any = model
    for part in location:
        fields = getattr(current, "model_fields", {})
        if part not in fields:
            continue
        candidates = [fields[part].annotation, *getattr(fields[part].annotation, "__args__", ())]
        current = next((c for c in candidates if hasattr(c, "model_fields")), None)
        if current is None:
            return set()
    return set(getattr(current, "model_fields", {}))


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML takes the last of equal keys without a word; here they are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    problem = f"found the key {key_node.value!r} twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > MAX_BITS:  # Python cannot even show much larger ones
            problem = f"found a whole number of {value.bit_length()} bits"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


_UniqueKeys.add_constructor("tag:yaml.org,2002:int", _UniqueKeys.construct_yaml_int)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that must hold a mapping at its top; a key given twice is an error."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, "file", MISSING, "an existing file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, "file", str(error), "a readable UTF-8 file") from None
    try:
        data = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f"line {where.line + 1}" if where else "file"
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(path, line, problem, "valid YAML") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError) as error:
        # What PyYAML lets through: impossible dates, wrong tags, endless nesting.
        raise InputError(path, "file", f"{type(error).__name__}: {error}", "valid YAML") from None
    if not isinstance(data, dict):
        raise InputError(path, "file", data, "a mapping of fields to values")
    return data

"""What the settings say about the value at a place: its keys, and a right value to show or to reckon with.

Works on the annotations of the sections, so a new field needs nothing here: its examples stand beside it
(`Field(examples=[…])`, on the field or on the type of its value).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge
from pydantic.fields import FieldInfo

from infra.settings.base import Section
from infra.settings.mistakes import Location
from infra.settings.sections import Settings


@dataclass(frozen=True)
class Place:
    """What may stand at a place."""

    kind: Any
    """The annotation, without `None` and metadata."""
    metadata: tuple[Any, ...] = ()
    default: Any = None
    """The default, where the place is a key that has one."""
    required: bool = False
    """A key that must be there."""

    @property
    def section(self) -> type[Section] | None:
        """The section, if a section stands here."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, Section) else None

    def inner(self, part: str | int) -> Place | None:
        """What may stand at a key or an index below; None where nothing may."""
        if self.section:
            field = next((f for f in self.section.model_fields.values() if f.alias == part), None)
            return _place_of(field) if field else None
        arguments = get_args(self.kind)
        if get_origin(self.kind) is tuple and isinstance(part, int):
            return _bare(arguments[0])
        if get_origin(self.kind) is dict:
            return _bare(arguments[1])
        return None

    def example(self) -> Any:
        """A right value; text that says "VALUE" where none is known."""
        if given := next(self._examples(), None):
            return given
        if isinstance(self.default, int | str):
            return self.default
        if self.section:
            fields = self.section.model_fields.values()
            return {field.alias: _place_of(field).example() for field in fields if field.is_required()}
        if get_origin(self.kind) is tuple:
            return [_bare(get_args(self.kind)[0]).example()]
        if get_origin(self.kind) is dict:
            return {}
        if get_origin(self.kind) is Literal:
            return get_args(self.kind)[0]
        return next((part.ge for part in self.metadata if isinstance(part, Ge)), "VALUE")

    def _examples(self) -> Iterator[Any]:
        for part in self.metadata:
            if isinstance(part, FieldInfo):
                yield from part.examples or ()


def place_at(location: Location) -> Place | None:
    """What may stand at a location; None where nothing may."""
    place: Place | None = Place(Settings)
    for part in location:
        place = place.inner(part) if place else None
    return place


def keys_at(location: Location) -> list[str]:
    """The keys that the section at a location knows; none where keys are free, or where no section is."""
    place = place_at(location)
    return [str(field.alias) for field in place.section.model_fields.values()] if place and place.section else []


def _place_of(field: FieldInfo) -> Place:
    bare = _bare(field.annotation)
    default = None if field.is_required() else field.default
    # pydantic has merged the metadata of the outermost `Annotated` into the field itself.
    return Place(bare.kind, (field, *field.metadata, *bare.metadata), default, field.is_required())


def _bare(annotation: Any) -> Place:
    metadata: tuple[Any, ...] = ()
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            for part in more:
                metadata += (part, *part.metadata) if isinstance(part, FieldInfo) else (part,)
        elif get_origin(annotation) in (Union, UnionType):
            annotation = next(part for part in get_args(annotation) if part is not NoneType)
        else:
            return Place(annotation, metadata)

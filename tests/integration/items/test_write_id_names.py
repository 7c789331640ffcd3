"""Where the id of a write is stored."""

from __future__ import annotations

from typing import Any

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, VersionAttribute, VersionedMixin
from pynamo_locking.exceptions import ConfigurationError
from tests.support.models import declare
from tests.support.versioned_models import item_of
from tests.support.wire import count_requests


def model_with(meta: dict[str, Any], *, base: type[Any] | None = None, **attributes: Any) -> type[Any]:
    return declare("WithIds", base or VersionedMixin, hash_key="pk", numbers="" if base else "n", **meta, **attributes)


@pytest.mark.parametrize(
    ("meta", "attributes", "name"),
    [
        ({}, {"version": VersionAttribute()}, "version_write_id"),
        ({}, {"version": VersionAttribute(attr_name="v")}, "v_write_id"),
        ({"write_id": "w"}, {"version": VersionAttribute()}, "w"),
        ({"write_id": None}, {"version": VersionAttribute()}, None),
        ({"write_id": "w"}, {}, "w"),
        ({}, {}, None),
    ],
)
def test_where_the_write_id_is_stored(engine, meta, attributes, name):
    """Beside the version, where Meta says, or nowhere; each write leaves another one."""
    model = model_with(meta, **attributes)
    engine.bind(model)
    item, seen = model("a"), []
    for write in (item.save, item.save, lambda: item.update([model.n.add(1)])):
        write()
        stored = item_of(engine, model) or {}
        assert set(stored) == {"pk", "n"} | {a.attr_name for a in attributes.values()} | ({name} if name else set())
        seen.append(stored[name]["S"] if name else None)
    if name:
        assert len(set(seen)) == 3
    if name and attributes:  # without a version, nothing tells what an equal life would prove
        assert len({each.partition("-")[0] for each in seen}) == 1


@pytest.mark.parametrize("wrong", ["", 5, ["w"]], ids=repr)
def test_a_write_id_that_is_no_name_is_refused(memory, wrong):
    """At the first use, before anything is sent."""
    model = model_with({"write_id": wrong}, version=VersionAttribute())
    memory.bind(model)
    with count_requests() as counted, pytest.raises(ConfigurationError, match=r"Meta\.write_id"):
        model("a").save()
    assert counted.total == 0


def test_a_write_id_that_is_an_attribute_is_refused(memory):
    """Whether its name was given or is the usual one."""
    clashing = [
        model_with({"write_id": "n"}, version=VersionAttribute()),
        model_with({"write_id": "pk"}),
        model_with(
            {}, version=VersionAttribute(attr_name="v"), other=UnicodeAttribute(null=True, attr_name="v_write_id")
        ),
    ]
    for model in clashing:
        memory.bind(model)
        for write in (lambda: model("a").save(), lambda: model("a").update([model.n.add(1)])):  # noqa: B023 - called here
            with pytest.raises(ConfigurationError, match="another attribute of it"):
                write()
        assert item_of(memory, model) is None


def test_the_name_of_the_write_id_is_inherited_with_meta(memory):
    """By a subclass without a Meta, or whose Meta derives from the parent's; any other Meta has its own."""
    base = model_with({"write_id": "w"}, version=VersionAttribute())
    silent = type(Model)("Silent", (base,), {})
    derived = type(Model)("Derived", (base,), {"Meta": type("Meta", (base.Meta,), {"table_name": "derived"})})
    fresh = model_with({}, base=base)
    for model, name in ((base, "w"), (silent, "w"), (derived, "w"), (fresh, "version_write_id")):
        memory.bind(model)
        model("a").save()
        assert set(item_of(memory, model) or {}) == {"pk", "n", "version", name}


@pytest.mark.parametrize("name", ["modify", "touch", "guarded_batch"])
def test_names_that_an_attribute_must_not_have(name):
    """They would hide a method; the message says how to keep the stored name."""
    for bases in ((VersionedMixin, Model), (LockableModel,)):
        with pytest.raises(ConfigurationError, match=f"attr_name='{name}'"):
            type(Model)("Wrong", bases, {"pk": UnicodeAttribute(hash_key=True), name: UnicodeAttribute()})
    model: Any = type(Model)(
        "Right",
        (VersionedMixin, Model),
        {"pk": UnicodeAttribute(hash_key=True), f"{name}_": UnicodeAttribute(attr_name=name)},
    )
    assert model("a", **{f"{name}_": "x"}).serialize()[name] == {"S": "x"}

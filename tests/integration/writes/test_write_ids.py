"""Knowing your own write: answers and requests get lost, and every write still says truly what became of it."""

from __future__ import annotations

import json
import re
from types import MappingProxyType
from uuid import uuid4

import botocore.endpoint
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.retries.quota import RetryQuota
from pynamodb.attributes import ListAttribute, MapAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import DeleteError, PutError, UpdateError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import TransactWrite, VersionAttribute, VersionedMixin
from pynamo_locking.exceptions import Conflict, OutcomeUnknown, StaleVersion
from tests.support.models import meta
from tests.support.parties import without_pauses
from tests.support.wire import Chosen, between_attempts, count_requests, on

ALL_OF_BOTOCORE = 4
EVERYTHING = 100
ANYWAY = {"add_version_condition": False}


class Doc(VersionedMixin, Model):
    Meta = meta("docs")

    pk = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(null=True)
    n = NumberAttribute(default=0)
    tags = ListAttribute(default=list)
    marks = MapAttribute(default=dict)
    version = VersionAttribute()


class Counting(VersionedMixin, Model):
    """No version, but write ids."""

    Meta = meta("counting", write_id="w")

    pk = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(null=True)
    n = NumberAttribute(default=0)
    tags = ListAttribute(default=list)
    marks = MapAttribute(default=dict)


class _NoTime:
    @staticmethod
    def sleep(_seconds):
        pass


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """No pauses, neither botocore's nor ours, and no end to botocore's budget of retries."""
    monkeypatch.setattr(botocore.endpoint, "time", _NoTime)
    monkeypatch.setattr(RetryQuota, "acquire", lambda quota, amount: True)
    with without_pauses():
        yield


def decoded(image, id_name):
    """What an image of an item says."""
    return {
        "body": image.get("body", {}).get("S"),
        "n": int(image.get("n", {"N": "0"})["N"]),
        "tags": [tag["S"] for tag in image.get("tags", {"L": []})["L"]],
        "marks": set(image.get("marks", {"M": {}})["M"]),
        "version": int(image.get("version", {"N": "0"})["N"]),
        "id": image.get(id_name, {}).get("S"),
    }


def all_stored(engine, model):
    """The items that are in the table, by key, read past the library."""
    images = engine.client().scan(TableName=model.Meta.table_name, ConsistentRead=True)["Items"]
    return {image["pk"]["S"]: decoded(image, id_name(model)) for image in images}


def id_name(model):
    return "version_write_id" if model is Doc else "w"


def fill(engine, model, keys, *, has_marks=False):
    """Put items into the table as the library would have left them, and load them."""
    for at in range(0, len(keys), 25):
        puts = [
            {
                "pk": {"S": key},
                "body": {"S": ""},
                "n": {"N": "0"},
                "tags": {"L": []},
                "marks": {"M": {f"k{k}": {"N": "1"} for k in range(len(ROUNDS))} if has_marks else {}},
                id_name(model): {"S": f"life{key}-x{key}"},
                **({"version": {"N": "1"}} if model is Doc else {}),
            }
            for key in keys[at : at + 25]
        ]
        requests = [{"PutRequest": {"Item": put}} for put in puts]
        engine.client().batch_write_item(RequestItems={model.Meta.table_name: requests})
    return {item.pk: item for item in model.scan(consistent_read=True) if item.pk in keys}


# One lost message, or several, for one write


#: What gets lost, and how often, for the write of each item.
LOSSES = [
    *[(Chosen.lose_response, 1), (Chosen.lose_request, 1)] * 2,  # once more for an object that has nothing but the key
    *[(Chosen.lose_response, ALL_OF_BOTOCORE), (Chosen.lose_request, ALL_OF_BOTOCORE)] * 2,
    *[(Chosen.lose_response, EVERYTHING)] * 2,
]
ITEMS = len(LOSSES)
#: The second is of copies that know an answer to have been lost.
ROUNDS = [[(Chosen.lose_response, 1)] * ITEMS, LOSSES]

ACTIONS = {
    "set": lambda model, k: [model.body.set(f"b{k}")],
    "add": lambda model, k: [model.n.add(1)],
    "append": lambda model, k: [model.tags.set(model.tags.append([f"m{k}"]))],
    "remove": lambda model, k: [model.marks[f"k{k}"].remove()],
}
ACTIONS["mixed"] = lambda model, k: [action for name in EFFECTS for action in ACTIONS[name](model, k)]

#: How often the write of round k has been applied, by what was and is stored.
EFFECTS = {
    "set": lambda before, after, k: int(after["body"] == f"b{k}"),
    "add": lambda before, after, k: after["n"] - before["n"],
    "append": lambda before, after, k: after["tags"].count(f"m{k}"),
    "remove": lambda before, after, k: int(f"k{k}" not in after["marks"]),
}


class Case:
    """One way to write many items, round after round."""

    request = "UpdateItem"
    model = Doc
    once_only = False
    checked = True
    options = MappingProxyType({})
    actions = ""

    def __init__(self, engine):
        self.engine = engine
        self.before = self.after = {}

    def start(self, k):
        """Prepare a round."""
        if k == 0:
            keys = [f"a{i}" for i in range(ITEMS)]
            self.items = fill(self.engine, self.model, keys, has_marks=self.actions in ("remove", "mixed"))
        self.before = self.after or all_stored(self.engine, self.model)

    def write(self, i, k):
        raise NotImplementedError

    def times(self, i, k):
        """How often the write has been applied: a set with one number, if all its parts agree."""
        raise NotImplementedError

    def counted(self, key):
        return self.after[key]["version"] - self.before[key]["version"]

    def is_local_copy_right(self, i):
        return self.model is not Doc or self.items[f"a{i}"].version == self.after[f"a{i}"]["version"]


class Create(Case):
    request = "PutItem"

    def start(self, k):
        self.items = {f"a{i}": Doc(f"new{k}-{i}", body=f"b{k}") for i in range(ITEMS)}

    def write(self, i, k):
        self.items[f"a{i}"].save()

    def times(self, i, k):
        found = self.after.get(f"new{k}-{i}")
        return {0 if found is None else found["version"]}

    def is_local_copy_right(self, i):
        return self.items[f"a{i}"].version == 1


class Save(Case):
    request = "PutItem"

    def write(self, i, k):
        self.items[f"a{i}"].body = f"b{k}"
        self.items[f"a{i}"].save(**self.options)

    def times(self, i, k):
        key = f"a{i}"
        # An unchecked save may be counted twice: its second copy changes nothing else.
        return {EFFECTS["set"](self.before[key], self.after[key], k), *([self.counted(key)] if self.checked else [])}


class Update(Case):
    def is_key_only(self, i):
        """Without a check of the version, every other one is of an object that has nothing but the key."""
        return bool(self.options) and i % 2 == 1

    def write(self, i, k):
        item = self.model(f"a{i}") if self.is_key_only(i) else self.items[f"a{i}"]
        item.update(ACTIONS[self.actions](self.model, k), **self.options)

    def times(self, i, k):
        names = EFFECTS if self.actions == "mixed" else [self.actions]
        times = {EFFECTS[name](self.before[f"a{i}"], self.after[f"a{i}"], k) for name in names}
        # An unchecked one that can be repeated may be counted twice: its second copy changes nothing else.
        if self.model is Doc and (self.checked or self.once_only):
            times.add(self.counted(f"a{i}"))
        return times

    def is_local_copy_right(self, i):
        return self.is_key_only(i) or super().is_local_copy_right(i)


class Delete(Case):
    request = "DeleteItem"

    def start(self, k):
        self.items = fill(self.engine, Doc, [f"a{i}" for i in range(ITEMS)])

    def write(self, i, k):
        self.items[f"a{i}"].delete(**self.options)

    def times(self, i, k):
        return {int(f"a{i}" not in self.after)}

    def is_local_copy_right(self, i):
        return True


class Transaction(Case):
    """A save, an update and a delete of three items."""

    request = "TransactWriteItems"

    def start(self, k):
        if k == 0:
            self.saved = fill(self.engine, Doc, [f"b{i}" for i in range(ITEMS)])
            self.items = fill(self.engine, Doc, [f"a{i}" for i in range(ITEMS)], has_marks=True)
        self.deleted = fill(self.engine, Doc, [f"c{i}" for i in range(ITEMS)])
        self.before = all_stored(self.engine, Doc)

    def write(self, i, k):
        self.saved[f"b{i}"].body = f"b{k}"
        with TransactWrite(connection=Doc._get_connection().connection) as transaction:
            transaction.save(self.saved[f"b{i}"])
            transaction.update(self.items[f"a{i}"], ACTIONS["mixed"](Doc, k))
            transaction.delete(self.deleted[f"c{i}"])

    def times(self, i, k):
        updated = {effect(self.before[f"a{i}"], self.after[f"a{i}"], k) for effect in EFFECTS.values()}
        saved = {EFFECTS["set"](self.before[f"b{i}"], self.after[f"b{i}"], k), self.counted(f"b{i}")}
        return updated | saved | {self.counted(f"a{i}"), int(f"c{i}" not in self.after)}

    def is_local_copy_right(self, i):
        return super().is_local_copy_right(i) and self.saved[f"b{i}"].version == self.after[f"b{i}"]["version"]


def variant(kind, **facts):
    return type(kind.__name__, (kind,), facts)


UNCHECKED = {"checked": False, "options": ANYWAY}


def _updates():
    for name in ACTIONS:
        once_only = name not in ("set", "remove")
        yield f"update {name}", variant(Update, actions=name)
        unchecked = variant(Update, actions=name, once_only=once_only, **UNCHECKED)
        yield f"update {name}, no check", unchecked
        yield f"update {name}, no version", variant(unchecked, model=Counting, options={})


CASES = {
    "save, create": Create,
    "save": Save,
    "save, no check": variant(Save, request="UpdateItem", **UNCHECKED),
    **dict(_updates()),
    "delete": Delete,
    "delete, no check": variant(Delete, **UNCHECKED),
    "TransactWrite": Transaction,
}


def outcome_of(call):
    """What a write says of itself."""
    try:
        call()
    except OutcomeUnknown:
        return "unknown"
    except Conflict:
        return "rejected"
    return "applied"


def expected_outcome(case, losing, times):
    """What is promised of a write that no other writer competes with."""
    if case.once_only:
        return "unknown" if losing is Chosen.lose_request else "applied"
    return "unknown" if times == EVERYTHING else "applied"


def expected_hits(case, times):
    """How many attempts there are, all of which get lost if `times` is large."""
    if case.once_only:
        return 1
    has_ids_of_its_own = isinstance(case, Create) or (not case.checked and case.request != "DeleteItem")
    return min(times, ALL_OF_BOTOCORE + 1 if has_ids_of_its_own else 2 * ALL_OF_BOTOCORE)


@pytest.mark.parametrize("name", CASES)
def test_every_write_knows_itself(concurrent_engine, name):
    """Each write whose answer or request is lost is applied once and says so, or says that it does not know."""
    case = CASES[name](concurrent_engine)
    concurrent_engine.bind(case.model)
    for k, losses in enumerate(ROUNDS):
        case.start(k)
        outcomes = []
        for i, (losing, times) in enumerate(losses):
            with losing(on(case.request, times=times)) as lost:
                outcomes.append(outcome_of(lambda i=i, k=k: case.write(i, k)))
            assert lost.hits == expected_hits(case, times)
        case.after = all_stored(concurrent_engine, case.model)
        for i, (losing, times) in enumerate(losses):
            outcome = outcomes[i]
            assert outcome == expected_outcome(case, losing, times), (i, k, losing, times)
            once = {1} if outcome == "applied" or losing is Chosen.lose_response else {0}
            assert case.times(i, k) == once, (i, k, losing, times)
            assert outcome == "unknown" or case.is_local_copy_right(i), (i, k, losing, times)


# What DynamoDB does not promise, but can happen: others come between two attempts


@pytest.fixture
def doc(engine):
    """A stored document, and its table."""
    engine.bind(Doc, Counting)
    item = Doc("a", body="old", tags=["x", "y", "z"])
    item.save()
    return item


def write_on_top(mark="other"):
    Doc.get("a", consistent_read=True).update([Doc.tags.set(Doc.tags.append([mark]))])


def delete_and_recreate():
    Doc.get("a", consistent_read=True).delete()
    Doc("a", body="new").save()


def the_tags():
    return Doc.get("a", consistent_read=True).tags


WAYS = {
    "save": ("PutItem", lambda item: item.save()),
    "update": ("UpdateItem", lambda item: item.update([Doc.tags.set(Doc.tags.append(["mine"]))])),
    "touch": ("UpdateItem", lambda item: item.touch()),
}


@pytest.mark.parametrize("between", [lambda: Doc.get("new").delete(), None], ids=["deleted", "deleted and recreated"])
def test_a_create_whose_item_is_deleted_before_the_repetition(engine, between):
    """Created, answer lost, deleted by another party: it is created again, or, if the other recreated it, unknown."""
    engine.bind(Doc)

    def delete_and_recreate():
        Doc.get("new").delete()
        Doc("new", body="his").save()

    mine = Doc("new", body="mine")
    with between_attempts(between or delete_and_recreate) as calls, on("PutItem").lose_response():
        if between is None:
            with pytest.raises(OutcomeUnknown) as caught:
                mine.save()
            assert isinstance(caught.value, PutError)
        else:
            mine.save()
    assert calls
    assert Doc.get("new").body == ("his" if between is None else "mine")


@pytest.mark.parametrize("way", WAYS)
def test_another_party_writes_on_top_of_mine(doc, way):
    """Applied, answer lost, overwritten: unknown, and never a conflict."""
    request, write = WAYS[way]
    with between_attempts(write_on_top) as calls, on(request).lose_response(), pytest.raises(OutcomeUnknown) as caught:
        write(doc)
    assert calls
    assert not isinstance(caught.value, Conflict)
    assert caught.value.write_id
    assert Doc.get("a").version == 3


@pytest.mark.parametrize("losing", [Chosen.lose_response, Chosen.lose_request])
@pytest.mark.parametrize("way", WAYS)
def test_another_party_was_first(doc, way, losing):
    """He made the next version, and the answer with my refusal was lost: a conflict, not unknown."""
    request, write = WAYS[way]
    stale = Doc.get("a")
    write_on_top()
    with losing(on(request)) as lost, pytest.raises(StaleVersion) as caught:
        write(stale)
    assert lost.hits == 1
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert caught.value.current.tags == ["x", "y", "z", "other"]


@pytest.mark.parametrize("way", WAYS)
def test_another_party_deletes_and_recreates_after_mine(doc, way):
    """The version is the old one again, and still it is neither a conflict nor written over."""
    request, write = WAYS[way]
    with between_attempts(delete_and_recreate), on(request).lose_response(), pytest.raises(OutcomeUnknown):
        write(doc)
    assert (Doc.get("a").body, Doc.get("a").version) == ("new", 1)


def test_deletes(doc):
    """Deleted, answer lost: done. Recreated meanwhile: unknown, and the new item stays."""
    with on("DeleteItem", times=ALL_OF_BOTOCORE).lose_response():
        doc.delete()
    mine = Doc("a", body="second")
    mine.save()

    with (
        between_attempts(lambda: Doc("a", body="his").save()),
        on("DeleteItem").lose_response(),
        pytest.raises(OutcomeUnknown) as caught,
    ):
        mine.delete()
    assert isinstance(caught.value, DeleteError)
    assert Doc.get("a").body == "his"


@pytest.mark.parametrize("losing", [Chosen.lose_response, Chosen.lose_request])
def test_a_delete_of_what_another_party_has_changed(doc, losing):
    """The refusal got lost: a conflict all the same."""
    write_on_top()
    with losing(on("DeleteItem")), pytest.raises(StaleVersion) as caught:
        doc.delete()
    assert caught.value.current.version == 2


def test_a_delete_that_another_party_did_counts_as_done(doc):
    """My request never arrived, he deleted the same item: there is nothing left to do."""
    with between_attempts(lambda: Doc.get("a").delete()) as calls, on("DeleteItem").lose_request():
        doc.delete()
    assert calls
    assert Doc.count() == 0


# What must not be sent twice is not


def count_up(item, model):
    options = ANYWAY if model is Doc else {}
    item.update([model.n.add(1)], **options)


COUNTED = pytest.mark.parametrize("model", [Doc, Counting], ids=["no check", "no version"])


@COUNTED
def test_a_lost_request_to_count_is_not_sent_again(doc, model):
    """One attempt, then a look; nothing there, so it is unknown: the request may still be on its way."""
    with count_requests() as counted, on("UpdateItem").lose_request(), pytest.raises(OutcomeUnknown) as caught:
        count_up(model("a"), model)
    assert counted.by_operation == {"UpdateItem": 1, "GetItem": 1}
    assert counted.bodies[-1][1].get("ConsistentRead") is True, "a replica may not show yet what was applied"
    assert isinstance(caught.value, UpdateError)


@COUNTED
def test_another_party_counts_on_top_of_a_lost_answer(doc, model):
    """The look no longer finds my id: unknown, counted once each."""
    with (
        between_attempts(lambda: count_up(model("a"), model)),
        on("UpdateItem").lose_response(),
        pytest.raises(OutcomeUnknown),
    ):
        count_up(model("a"), model)
    assert model.get("a").n == 2


@COUNTED
def test_a_look_that_fails(doc, model):
    """Neither an answer nor a look: unknown."""
    with (
        on("GetItem", times=EVERYTHING).lose_response(),
        on("UpdateItem").lose_response(),
        pytest.raises(OutcomeUnknown),
    ):
        count_up(model("a"), model)
    assert model.get("a").n == 1


NOT_APPLIED = pytest.mark.parametrize(
    "answer", ["ProvisionedThroughputExceededException", EndpointConnectionError], ids=["throttled", "not connected"]
)


@NOT_APPLIED
@COUNTED
def test_what_was_certainly_not_applied_is_sent_again(doc, model, answer):
    """Throttled, or never sent since there was no connection: up to eight more attempts, counted once."""
    with count_requests() as counted, on("UpdateItem").answer(*[answer] * 8):
        count_up(model("a"), model)
    assert counted.by_operation["UpdateItem"] == 9
    assert model.get("a").n == 1


@NOT_APPLIED
@COUNTED
def test_the_budget_for_that_ends(doc, model, answer):
    """After nine attempts it is an error, and not an unknown outcome."""
    before = Doc.get("a").version
    with on("UpdateItem").answer(*[answer] * 9), pytest.raises(UpdateError) as caught:
        count_up(model("a"), model)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert Doc.get("a").version == before


def test_an_element_of_a_list_is_not_removed_twice(doc):
    """The second copy would remove the next element as well."""
    with on("UpdateItem").lose_response():
        doc.update([Doc.tags[0].remove()], add_version_condition=False)
    assert the_tags() == ["y", "z"]


def test_an_element_beyond_the_end_of_a_list_is_not_set_twice(doc):
    """DynamoDB appends it, so the second copy would append it again."""
    with on("UpdateItem").lose_response():
        doc.update([Doc.tags[9].set("new")], add_version_condition=False)
    assert the_tags().count("new") == 1


# Ids and lives that occur twice


def lost_update(item, between, mark="mine"):
    """Append a mark; the answer gets lost, and others come before the repetition. Returns what it said."""
    with between_attempts(between) as calls, on("UpdateItem").lose_response():
        said = outcome_of(lambda: item.update([Doc.tags.set(Doc.tags.append([mark]))]))
    assert calls
    return said


def test_a_life_is_not_carried_over_by_a_write_without_a_check(doc):
    """An old copy writes unchecked on a recreated item: its life must not prove that nothing was deleted."""
    old, mine = Doc.get("a"), Doc.get("a")

    def others():
        delete_and_recreate()
        old.update([Doc.n.add(1)], add_version_condition=False)

    assert lost_update(mine, others) == "unknown"  # it was applied, and deleted with the item


def another_attempt(body):
    """The same request as the library would send it again."""
    text = json.dumps(body)
    (write_id,) = set(re.findall(r'"([0-9a-f]{8}-[0-9a-f]{20})"', text))
    return json.loads(text.replace(write_id, "01234567-0123456789abcdefghij"))


@pytest.mark.parametrize(
    "write",
    [
        lambda item: Doc("new").save(),
        lambda item: item.save(add_version_condition=False),
        lambda item: item.update([Doc.body.set("x")], add_version_condition=False),
        lambda item: Doc("a", version=1).update([Doc.body.set("x")]),
    ],
    ids=["create", "unchecked save", "unchecked update", "no id known"],
)
def test_what_can_be_applied_twice_has_an_id_for_each_attempt(doc, write):
    """So an id that was read is never stored a second time, and a write that begins a life names it alone."""
    with (
        count_requests() as counted,
        on("PutItem").lose_response(),
        on("UpdateItem").lose_response(),
    ):
        write(doc)
    ids = [re.findall(r'"([0-9a-f]{8})-[0-9a-f]{20}"', json.dumps(body)) for _, body in counted.bodies]
    assert len(ids) == 2
    assert len(ids[0]) == len(ids[1]) == 1
    assert ids[0] != ids[1]


def test_the_second_copy_of_a_write_without_a_check(doc):
    """His set lands twice, below and on top of my update: mine must not be said to be refused."""
    said = []

    def mine():
        item = Doc.get("a", consistent_read=True)
        with between_attempts(let_his_second_copy_go), on("UpdateItem", where=has_mark).lose_response():
            said.append(outcome_of(lambda: item.update([Doc.tags.set(Doc.tags.append(["mine"]))])))

    # His first copy is applied, its answer lost; then I begin; his second copy; then my repetition.
    client, bodies = Doc._get_connection().connection.client, []

    def has_mark(body):
        return "list_append" in body.get("UpdateExpression", "")

    def let_his_second_copy_go():
        client.update_item(**another_attempt(bodies[0]))

    with count_requests() as counted:
        doc.update([Doc.body.set("his")], add_version_condition=False)
    bodies.append(counted.bodies[0][1])
    mine()

    assert "mine" in the_tags()
    assert said[0] in ("applied", "unknown")


def test_an_item_that_a_second_copy_brings_back(engine):
    """Its create lands twice, before and after a delete: two lives with one name prove nothing."""
    engine.bind(Doc)
    with count_requests() as counted:
        Doc("a", body="created").save()
    create = counted.bodies[0][1]
    mine = Doc.get("a", consistent_read=True)

    def others():
        Doc.get("a", consistent_read=True).delete()
        Doc._get_connection().connection.client.put_item(**another_attempt(create))
        write_on_top()

    assert lost_update(mine, others) == "unknown"  # it was applied, and deleted with the item


def test_a_transaction_that_is_repeated_with_its_token_is_done_once(concurrent_engine):
    """After no answer at all, the caller commits the same again under the same token: DynamoDB knows it."""
    concurrent_engine.bind(Doc)
    counted, created, deleted = Doc("a"), Doc("b", n=1), Doc("c")
    counted.save()
    deleted.save()
    token = str(uuid4())  # DynamoDB knows those of the last ten minutes

    def commit():
        connection = Doc._get_connection().connection
        with TransactWrite(connection=connection, client_request_token=token) as transaction:
            transaction.update(counted, [Doc.n.add(1)])
            transaction.save(created)
            transaction.delete(deleted)

    with on("TransactWriteItems", times=EVERYTHING).lose_response(), pytest.raises(OutcomeUnknown):
        commit()
    commit()
    assert (Doc.get("a").n, Doc.get("b").version) == (1, 1)


@pytest.mark.parametrize("how", ["another save", "a refresh after another writer"])
def test_a_model_that_goes_on_when_it_hears_of_its_write(doc, how):
    """PynamoDB calls `update_local_version_attribute` after a write; an override may use the instance there."""

    class Hearing(Doc):
        Meta = Doc.Meta
        is_new = True

        def update_local_version_attribute(self):
            super().update_local_version_attribute()
            if not Hearing.is_new:
                return
            Hearing.is_new = False
            if how == "another save":
                self.save()
            else:
                Doc.get("heard").update([Doc.n.add(1)])
                self.refresh()

    item = Hearing("heard")
    item.save()
    item.save()
    assert Doc.get("heard").version == item.version == 3


def test_of_a_transaction_of_pynamodb_the_id_is_not_known(doc):
    """It does not say which of its writes it has committed; the other's id would refuse the next save."""
    connection = Doc._get_connection().connection
    with StockTransactWrite(connection=connection) as committed:
        committed.save(doc)
        StockTransactWrite(connection=connection).save(doc)
    doc.save()
    assert Doc.get("a").version == doc.version == 3

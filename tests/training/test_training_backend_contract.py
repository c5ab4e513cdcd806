"""What torch asks of a rendezvous backend, asked of the two calls that stand for one here.

torch tests its own backends with a mixin (`rendezvous_backend_test.py` of its repository) that its wheel does not
bring. Its cases, restated: `EtcdClient.get` and `compare_and_swap` are `get_state` and `set_state`, the revision of a
write is the token. The mixin's token of a foreign type cannot happen: a revision comes from etcd's own answer, never
from outside, and the checker of types sees to that. Its equal is a number that etcd has never given out.
"""

from collections.abc import Iterator

import pytest
from local_agents import Etcd, etcd_server, patient_client, wipe
from memory_etcd import MemoryEtcd
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings, RendezvousTimeout

from training.launch.etcd_client import EtcdClient, KeyValue, parse_endpoints
from training.launch.fencing import Fence, Times
from training.launch.lease import StepLease
from training.launch.membership import StateHolder
from training.launch.rendezvous import KEEP_ALIVE_INTERVAL, LEASE
from training.launch.torch_private import NodeDesc

KEY = b"/trainyard/rendezvous/job/state"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(params=["real", "dictionary"])
def backend(request: pytest.FixtureRequest) -> EtcdClient | MemoryEtcd:
    """The real thing, and the double on which the tests of the rendezvous stand: both keep the contract."""
    if request.param == "dictionary":
        return MemoryEtcd()
    client = patient_client(parse_endpoints(request.getfixturevalue("server").endpoint)[0])
    wipe(client)
    return client


pytestmark = pytest.mark.engines


def set_state(backend: EtcdClient | MemoryEtcd, state: bytes, token: int = 0) -> tuple[bytes, int, bool]:
    has_set, held = backend.compare_and_swap(KEY, state, token)
    assert held is not None
    return held.value, held.mod_revision, has_set


def get_state(backend: EtcdClient | MemoryEtcd) -> KeyValue:
    held = backend.get(KEY)
    assert held is not None
    return held


def test_get_state_returns_nothing_before_a_state_was_set(backend: EtcdClient | MemoryEtcd) -> None:
    assert backend.get(KEY) is None


def test_set_state_without_token_creates_the_state(backend: EtcdClient | MemoryEtcd) -> None:
    state, token, has_set = set_state(backend, b"x")

    assert (state, has_set) == (b"x", True)
    assert get_state(backend) == KeyValue(key=KEY, value=b"x", mod_revision=token)


def test_set_state_without_token_does_not_overwrite(backend: EtcdClient | MemoryEtcd) -> None:
    _, first, _ = set_state(backend, b"x")

    assert set_state(backend, b"y") == (b"x", first, False)
    assert get_state(backend).value == b"x"


def test_set_state_with_the_current_token_writes_and_gives_a_new_one(backend: EtcdClient | MemoryEtcd) -> None:
    _, first, _ = set_state(backend, b"x")
    state, second, has_set = set_state(backend, b"y", first)
    assert (state, has_set) == (b"y", True)
    assert second != first

    state, third, has_set = set_state(backend, b"z", second)
    assert (state, has_set) == (b"z", True)
    assert get_state(backend).mod_revision == third


def test_set_state_with_a_stale_token_returns_what_is_there(backend: EtcdClient | MemoryEtcd) -> None:
    _, first, _ = set_state(backend, b"x")
    _, second, _ = set_state(backend, b"y", first)

    assert set_state(backend, b"z", first) == (b"y", second, False)
    assert get_state(backend).value == b"y"


def test_set_state_with_a_token_that_was_never_given_out_is_stale(backend: EtcdClient | MemoryEtcd) -> None:
    _, first, _ = set_state(backend, b"x")

    assert set_state(backend, b"y", first + 1_000_000) == (b"x", first, False)


def holder(backend: EtcdClient, name: int) -> StateHolder:
    settings = RendezvousSettings("job", 1, 4, RendezvousTimeout(), KEEP_ALIVE_INTERVAL, 3)
    fence = Fence(Times.of(settings.keep_alive_interval, 3), StepLease.create())
    node = NodeDesc("10.0.0.1", name, 0)
    return StateHolder(backend, KEY, settings, node=node, fence=fence, lease=LEASE, answers=lambda *_: False)


def test_the_holder_passes_tokens_on_and_says_whose_write_came_through(server: Etcd) -> None:
    client = patient_client(parse_endpoints(server.endpoint)[0])
    wipe(client)
    first, second = holder(client, 1), holder(client, 2)
    first.sync()
    second.sync()
    for each, number in ((first, 7), (second, 8)):
        each.state.round = number
        each.mark_dirty()

    assert (first.sync(), second.sync()) == (True, False)
    assert second.state.round == 7
    second.state.round = 9
    second.mark_dirty()
    assert second.sync()
    assert first.sync() is None
    assert first.state.round == 9


def test_of_errors_only_those_come_that_torch_understands(server: Etcd) -> None:
    client = patient_client(parse_endpoints(server.endpoint)[0])
    client.put(KEY, b"\x80\x04not ours")
    with pytest.raises(RendezvousStateError, match="not ours"):
        holder(client, 1).sync()

    refused = patient_client(parse_endpoints(server.endpoint)[0], user="nobody", password="wrong")
    with pytest.raises(RendezvousConnectionError):
        holder(refused, 1).sync()

"""The private names of torch that we build on, one test for each kind of use: a torch that changes one fails here."""

import inspect
import multiprocessing
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.run import get_args_parser
from torch.utils.data import DataLoader

from training.launch import python_private, torch_private


@pytest.mark.parametrize("name", torch_private.HANDLER_METHODS)
def test_the_handler_has_the_methods_that_ours_calls(name: str) -> None:
    assert callable(getattr(torch_private.Handler, name))


@pytest.mark.parametrize("name", torch_private.HANDLER_ATTRIBUTES)
def test_the_handler_has_the_attributes_that_ours_reads(name: str) -> None:
    assert f"self.{name} = " in inspect.getsource(torch_private.Handler.__init__)


@pytest.mark.parametrize("name", torch_private.AGENT_METHODS)
def test_the_agent_has_the_methods_that_ours_overrides(name: str) -> None:
    assert callable(getattr(LocalElasticAgent, name))


@pytest.mark.parametrize("name", torch_private.AGENT_ATTRIBUTES)
def test_the_agent_has_the_attributes_that_ours_reads(name: str) -> None:
    sources = "".join(inspect.getsource(cls) for cls in torch_private.AgentBase.__mro__ if cls is not object)
    assert f"self.{name}" in sources


@pytest.mark.parametrize("name", torch_private.EXECUTOR_ATTRIBUTES)
def test_the_executor_has_the_attributes_that_ours_reads(name: str) -> None:
    assert name in inspect.getsource(torch_private.OpExecutor.__init__) + "".join(
        torch_private.OpExecutor.__annotations__
    )


@pytest.mark.parametrize("name", torch_private.EXECUTOR_METHODS)
def test_the_executor_has_the_methods_that_ours_overrides(name: str) -> None:
    assert callable(getattr(torch_private.OpExecutor, name))


@pytest.mark.parametrize("name", torch_private.CONTEXT_ATTRIBUTES)
def test_the_context_of_processes_has_the_attributes_that_the_agent_reads(name: str) -> None:
    bases = (multiprocessing_api.SubprocessContext, multiprocessing_api.PContext)
    assert any(f"self.{name}" in inspect.getsource(base.__init__) for base in bases)


def test_the_context_of_processes_ends_siblings_by_the_method_that_the_agent_replaces() -> None:
    assert torch_private.CONTEXT_METHODS == ("_close", "close", "pids")
    assert list(inspect.signature(multiprocessing_api.SubprocessContext._close).parameters)[1:] == [
        "death_sig",
        "timeout",
    ]
    assert "self.close()" in inspect.getsource(multiprocessing_api.SubprocessContext._poll)
    parameters = list(inspect.signature(multiprocessing_api.PContext.close).parameters)
    assert parameters == ["self", "death_sig", "timeout"]


@pytest.mark.parametrize("name", torch_private.SUBPROCESS_ATTRIBUTES)
def test_the_handle_on_a_worker_has_the_attributes_that_ours_reads(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(SubprocessHandler.__init__)


@pytest.mark.parametrize("name", torch_private.SUBPROCESS_METHODS)
def test_the_handle_on_a_worker_has_the_methods_that_ours_overrides(name: str) -> None:
    assert callable(getattr(SubprocessHandler, name))


def ended_workers(agent_kind: Any, *, asked: int | None) -> tuple[signal.Signals, int]:
    """What the context of processes is told when an agent with a shutdown timeout of 50 s ends its workers."""
    told: list[tuple[signal.Signals, int]] = []
    agent = agent_kind.__new__(agent_kind)
    agent._worker_watchdog = agent._health_check_server = None
    agent._shutdown_timeout = 50
    agent._pcontext = SimpleNamespace(close=lambda number, timeout=30: told.append((number, timeout)))
    agent._shutdown(signal.SIGINT, asked)
    return told[0]


def test_workers_get_the_time_that_was_asked_for_in_every_release() -> None:
    assert ended_workers(torch_private.AgentBase, asked=7) == (signal.SIGINT, 7)
    assert ended_workers(torch_private.AgentBase, asked=None) == (signal.SIGINT, 50)


def test_newer_fields_are_those_that_this_torch_has() -> None:
    options = SimpleNamespace(duplicate_stdout_filters=["a"], duplicate_stderr_filters=[], virtual_local_rank=True)
    found = torch_private.newer_fields(options)
    assert found in ({}, vars(options))
    assert set(found) <= set(inspect.signature(WorkerSpec.__init__).parameters)


def test_the_interpreter_has_the_functions_that_end_it() -> None:
    assert callable(python_private.end_threads)
    assert callable(python_private.run_exit_functions)


def test_a_node_is_address_number_number_and_sorts_by_them() -> None:
    assert torch_private.NodeDesc("a", 2, 0) < torch_private.NodeDesc("b", 1, 0)
    assert list(inspect.signature(torch_private.NodeDesc).parameters) == ["addr", "pid", "local_id"]


def test_the_state_has_the_fields_that_are_encoded() -> None:
    assert set(vars(torch_private.RendezvousState())) == {
        *("round", "complete", "deadline", "closed", "participants", "wait_list", "redundancy_list", "last_heartbeats")
    }


def test_operations_are_asked_with_context_and_deadline() -> None:
    for operation in ("_RendezvousExitOp", "_RendezvousJoinOp", "_RendezvousCloseOp", "_RendezvousKeepAliveOp"):
        call = getattr(dynamic_rendezvous, operation).__call__
        assert list(inspect.signature(call).parameters) == ["self", "ctx", "deadline"]


def test_actions_have_the_names_that_ours_returns() -> None:
    names = {action.name for action in torch_private.Action}
    assert {"SYNC", "FINISH", "ADD_TO_PARTICIPANTS", "ADD_TO_WAIT_LIST", "ADD_TO_REDUNDANCY_LIST"} <= names
    assert {"REMOVE_FROM_PARTICIPANTS", "REMOVE_FROM_WAIT_LIST", "REMOVE_FROM_REDUNDANCY_LIST"} <= names
    assert {"MARK_RENDEZVOUS_COMPLETE", "MARK_RENDEZVOUS_CLOSED"} <= names


def test_the_state_holder_is_asked_for_state_sync_and_mark_dirty() -> None:
    assert torch_private.RendezvousStateHolder.__abstractmethods__ == {"state", "sync", "mark_dirty"}


def test_the_executor_takes_operation_deadline_and_its_renewal() -> None:
    parameters = list(inspect.signature(torch_private.OpExecutor.run).parameters)
    assert parameters == ["self", "state_handler", "deadline", "update_deadline"]
    assert "self._node" in inspect.getsource(torch_private.OpExecutor)
    assert "self._state = self._state_holder.state" in inspect.getsource(torch_private.OpExecutor.run)


def test_a_dropped_participant_has_an_epilogue() -> None:
    assert list(inspect.signature(torch_private.remove_participant_epilogue).parameters) == ["state", "settings"]


def test_shared_stores_are_turned_off_by_a_variable() -> None:
    assert torch_private.DISABLE_SHARED_STORE in inspect.getsource(torch_private.Handler.next_rendezvous)


def test_workers_are_started_by_a_factory_that_can_be_replaced() -> None:
    factory = getattr(multiprocessing_api, torch_private.SUBPROCESS_FACTORY)
    call = inspect.getsource(multiprocessing_api.SubprocessContext._start)

    assert "= get_subprocess_handler(" in call.replace(": get_subprocess_handler(", "= get_subprocess_handler(")
    assert {"entrypoint", "args", "env", "stdout", "stderr", "local_rank_id", "numa_options"} == set(
        inspect.signature(factory).parameters
    )
    assert "self.proc" in inspect.getsource(SubprocessHandler.__init__)
    assert list(inspect.signature(SubprocessHandler._popen).parameters) == ["self", "args", "env"]


def test_the_option_parser_reads_variables_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    assert get_args_parser().parse_args(["x.py"]).max_restarts == 5


def test_a_piece_of_a_checkpoint_is_where_torch_looks_for_it() -> None:
    info = torch_private.storage_info("__0_0.distcp", 64, 32)
    assert (info.relative_path, info.offset, info.length) == ("__0_0.distcp", 64, 32)
    assert f"{type(info).__module__}.{type(info).__name__}" == "torch.distributed.checkpoint.filesystem._StorageInfo"


def test_a_loader_with_persistent_workers_tells_which_processes_load() -> None:
    loader = DataLoader([torch.zeros(1)] * 2, num_workers=1, persistent_workers=True)  # type: ignore[arg-type,var-annotated]
    before = {process.pid for process in multiprocessing.active_children()}
    assert torch_private.loading_processes(loader) == []
    assert len(list(loader)) == 2
    started = {process.pid for process in multiprocessing.active_children()} - before
    assert len(started) == 1
    assert set(torch_private.loading_processes(loader)) == started


def test_this_is_the_torch_that_was_looked_at() -> None:
    assert torch.__version__.startswith("2.")

"""ASTRA-Sim run as a program: results read, and every way it can fail told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.astra.long_lived import LongLived
from orchestrator.astra.one_shot import OneShot
from orchestrator.astra.program import AstraError, find_program
from profiles.errors import InputError
from simulator.network.chakra import encoded
from simulator.network.config import NetworkConfig
from simulator.network.replay import replay
from simulator.network.trace import Collective, Compute, MemoryAccess, Node, Receive, Send, Trace
from tests.network.make import dimension, make_network
from tests.orchestrator.astra_fakes import BINARY, FORK, GOOD, needs_program, program

MEGA = 1 << 20


def work(*lengths: int) -> Trace:
    return Trace(tuple((Compute("c", ns),) for ns in lengths))


def one_shot(tmp_path: Path, body: str, ranks: int = 2, patience_s: float = 30.0) -> OneShot:
    network = make_network(ranks)
    return OneShot(
        program(tmp_path, body), network, patience_s=patience_s, cache=tmp_path / "cache"
    )


def long_lived(tmp_path: Path, body: str, ranks: int = 2, patience_s: float = 30.0) -> LongLived:
    return LongLived(program(tmp_path, body), make_network(ranks), patience_s=patience_s)


def test_cycles_are_read_back_and_kept_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    astra = one_shot(tmp_path, GOOD, ranks=3)
    assert astra.run(work(5, 6, 7)) == (1000, 2000, 3000)
    assert astra.run(work(5, 6, 7)) == (1000, 2000, 3000)
    runs = tmp_path / "runs"
    assert runs.read_text() == "run"
    astra.run(work(5, 6, 8))
    assert runs.read_text() == "runrun"
    other = OneShot(astra.program, make_network(3, endpoint_delay_ns=11), cache=astra.cache)
    other.run(work(5, 6, 7))
    assert runs.read_text() == "runrunrun"
    for kept in astra.cache.iterdir():
        kept.write_text("{damaged")
    assert astra.run(work(5, 6, 7)) == (1000, 2000, 3000)
    assert runs.read_text() == "run" * 4


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit(3)", "fake_astra ended with status 3 before ranks 0, 1 did. It printed nothing"),
        (
            "say('sys[0] finished, 5 cycles'); say('bad file'); os.kill(os.getpid(), signal.SIGSEGV)",
            "was ended by SIGSEGV before rank 1 did. It printed: sys[0] finished, 5 cycles | bad",
        ),
        ("say('hello'); say('sys[0] finished, x cycles')", "ended with status 0 before ranks 0, 1"),
        ("say('sys[7] finished, 5 cycles'); time.sleep(60)", "ended rank 7 of 2: sys[7] finished"),
        ("[say('sys[0] finished, 5 cycles') for _ in range(2)]", "ended rank 0 twice"),
        ("os.write(1, bytes(range(256)) * 100)", "ended with status 0 before ranks 0, 1 did"),
    ],
)
def test_a_crash_and_garbage_are_told(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(AstraError) as caught:
        one_shot(tmp_path, body).run(work(1, 1))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failed_run_is_not_kept(tmp_path: Path) -> None:
    astra = one_shot(tmp_path, "sys.exit(3)")
    for _ in range(2):
        with pytest.raises(AstraError):
            astra.run(work(1, 1))
    assert not astra.cache.exists()


@pytest.mark.parametrize(
    "body",
    ["time.sleep(600)", "while True: print('Checking', flush=True)"],
    ids=["silent", "endless output"],
)
def test_a_hang_is_ended_and_told(tmp_path: Path, body: str) -> None:
    before = f"(open(os.path.join({str(tmp_path)!r}, 'pid'), 'w').write(str(os.getpid())))\n"
    with pytest.raises(AstraError, match="hangs: ranks 0, 1 did not come to an end within 3 s"):
        one_shot(tmp_path, before + body, patience_s=3.0).run(work(1, 1))
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_progress_renews_the_patience(tmp_path: Path) -> None:
    body = "for r in range(4): time.sleep(1.1); say(f'sys[{r}] finished, {r} cycles')"
    assert one_shot(tmp_path, body, 4, patience_s=4.0).run(work(1, 1, 1, 1)) == (0, 1, 2, 3)


def test_a_crash_after_all_results_is_only_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    astra = one_shot(tmp_path, GOOD.replace("..", ".") + "\nos.abort()")
    assert astra.run(work(1, 1)) == (1000, 2000)
    assert "was ended by SIGABRT after every rank had ended" in caplog.text


def test_a_trace_that_would_hang_is_not_even_started(tmp_path: Path) -> None:
    trace = Trace(((Send("s", 1, 8),), (Receive("r", 0, 9),)))
    with pytest.raises(InputError, match="a receive of that size"):
        one_shot(tmp_path, "sys.exit(3)").run(trace)


def test_upstream_has_no_memory_beside_the_ranks(tmp_path: Path) -> None:
    network = make_network(2, remote_memory={"bandwidth_gbps": 256.0})
    trace = Trace(((MemoryAccess("tokens", "remote", 8),), ()))
    with pytest.raises(InputError, match="tokens: got 'remote', expected no access"):
        OneShot(program(tmp_path, GOOD), network, cache=tmp_path).run(trace)


def length(nodes: tuple[Node, ...], rank: int) -> int:
    return len(encoded(nodes, "llmservingsim", rank=rank))


def test_one_process_runs_workload_after_workload(tmp_path: Path) -> None:
    traces = [work(5, 6, 7), work(10**6, 1, 10**9), work(1, 1, 1), work(5, 6, 7)]
    with long_lived(tmp_path, FORK, ranks=3) as astra:
        for trace in traces:
            lengths = tuple(length(nodes, rank) for rank, nodes in enumerate(trace.ranks))
            assert astra.run(trace) == lengths
        process = astra.running().process
        assert process.poll() is None
    assert process.returncode == 0
    assert not Path(astra.folder.name).exists()


def test_one_rank(tmp_path: Path) -> None:
    with long_lived(tmp_path, FORK, ranks=1) as astra:
        found = [astra.run(work(ns)) for ns in (5, 300, 70_000)]
    assert found == [(length((Compute("c", ns),), 0),) for ns in (5, 300, 70_000)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            ("say('[workload] [info] Waiting')", "os.abort()"),
            "was ended by SIGABRT before ranks 0, 1",
        ),
        (("sys[{rank}]", "sys[9]"), "waits for no rank"),
        (
            ("{done[rank]} fin", "{done[rank] + 1} fin"),
            "ended workload 1 of rank 0 where 0 was due",
        ),
        (("cycles, exp", "lycles, exp"), "waits for no rank"),
    ],
)
def test_the_long_lived_one_fails_clearly(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    with (
        pytest.raises(AstraError, match=says),
        long_lived(tmp_path, FORK.replace(*change)) as astra,
    ):
        astra.run(work(1, 1))


def test_a_rank_that_never_ends_while_others_ask_for_work(tmp_path: Path) -> None:
    hung = FORK.replace("return os", "return 10**18 * rank or os").replace(
        "if ns > clock", "if False"
    )
    with (
        pytest.raises(AstraError, match="hangs: rank 1 did not come to an end within 4 s"),
        long_lived(tmp_path, hung, patience_s=4.0) as astra,
    ):
        astra.run(work(1, 1))


def test_a_crash_between_workloads(tmp_path: Path) -> None:
    body = FORK.replace("due[rank] = clock + work", "os.abort(); due[rank] = clock + work")
    with long_lived(tmp_path, body) as astra:
        astra.run(work(1, 1))
        with pytest.raises(AstraError, match="was ended by SIGABRT"):
            astra.run(work(1, 1))


def test_where_the_program_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_SIM_BIN", raising=False)
    with pytest.raises(InputError, match="environment: ASTRA_SIM_BIN: got nothing, expected the"):
        find_program()
    monkeypatch.setenv("ASTRA_SIM_BIN", str(tmp_path / "none"))
    with pytest.raises(InputError, match="a file that can be executed"):
        find_program()
    there = program(tmp_path, "")
    assert find_program(there) == there
    there.chmod(0o644)
    with pytest.raises(InputError, match="command line: --binary"):
        find_program(there)
    broken = tmp_path / "broken"
    broken.write_text("neither a script nor a program")
    broken.chmod(0o755)
    with pytest.raises(AstraError, match="does not start"):
        OneShot(broken, make_network(2), cache=tmp_path / "cache").run(work(1, 1))


def real_cases() -> list[tuple[NetworkConfig, Trace]]:
    two = make_network(4, dimension(2, "Switch", latency_ns=20000.0))
    step: tuple[Node, ...] = (
        Compute("a", 12_345),
        Collective("b", "all_reduce", 3 * MEGA, (0,), (0,)),
        Collective("c", "all_to_all", MEGA, None, (1,)),
        Compute("d", 999, (2,)),
        Compute("e", 54_321, (0,)),
    )
    ring: tuple[Node, ...] = (Compute("a", 777), Send("s", 1, MEGA, 3, (0,)))
    back: tuple[Node, ...] = (Receive("r", 0, MEGA, 3), Compute("b", 888, (0,)))
    return [
        (two, Trace((step,) * 8)),
        (make_network(dimension(2, "FullyConnected")), Trace((ring, back))),
        (make_network(8, all_reduce="halvingDoubling"), Trace((step[:2],) * 8)),
    ]


@needs_program("upstream")
def test_the_real_one_agrees_to_the_nanosecond(tmp_path: Path) -> None:
    assert BINARY is not None
    for network, trace in real_cases():
        astra = OneShot(Path(BINARY), network, cache=tmp_path)
        assert astra.run(trace) == replay(trace, network).rank_ns


@needs_program("llmservingsim")
def test_the_real_fork_agrees_to_the_nanosecond() -> None:
    assert BINARY is not None
    for network, trace in real_cases():
        with LongLived(Path(BINARY), network) as astra:
            for _ in range(3):
                assert astra.run(trace) == replay(trace, network).rank_ns

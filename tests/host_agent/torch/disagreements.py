# SPDX-License-Identifier: Apache-2.0
"""Programs whose ranks disagree; torchrun runs them on three ranks: ``disagreements.py FOLDER [NAME ...]``.

Each is run in a new group. What a rank's error said and how long it took is written to FOLDER/RANK.json, by
the program's name.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from weir.host_agent.collectives import data_movement
from weir.host_agent.compression.sparsifiers.topk import TopK
from weir.host_agent.torch.process_group import WeirProcessGroup

Program = Callable[[int, dist.ProcessGroup], object]


@dataclass(frozen=True)
class Row:
    """What ranks 0 and 2 do, and rank 1; what each of them calls when it fails; which operation it is."""

    usual: Program
    odd: Program
    calls: tuple[str, str]
    operation: int | None = 1


def ones(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def sums(*counts: int) -> Program:
    """Return all-reduces of this many elements, one after the other."""

    def program(_rank: int, group: dist.ProcessGroup) -> None:
        for count in counts:
            dist.all_reduce(ones(count), group=group)

    return program


def barrier(_rank: int, group: dist.ProcessGroup) -> None:
    dist.barrier(group)


def broadcast(count: int, root: int, dtype: torch.dtype = torch.float32) -> Program:
    return lambda _rank, group: dist.broadcast(ones(count, dtype), group_src=root, group=group)


def reduce(count: int, root: int) -> Program:
    return lambda _rank, group: dist.reduce(ones(count), group_dst=root, group=group)


def all_gather(own: int, *sizes: int) -> Program:
    return lambda _rank, group: dist.all_gather([ones(size) for size in sizes], ones(own), group=group)


def gather_single(count: int) -> Program:
    return lambda _rank, group: dist.all_gather_into_tensor(ones(3 * count), ones(count), group=group)


def reduce_scatter(*sizes: int) -> Program:
    return lambda rank, group: dist.reduce_scatter(
        ones(sizes[rank]), [ones(size) for size in sizes], group=group
    )


def scatter_single(op: dist.ReduceOp.RedOpType) -> Program:
    return lambda _rank, group: dist.reduce_scatter_tensor(ones(2), ones(6), op, group=group)


def gather(root: int) -> Program:
    def program(rank: int, group: dist.ProcessGroup) -> None:
        dist.gather(ones(2), [ones(2)] * 3 if rank == root else None, group_dst=root, group=group)

    return program


def scatter(count: int) -> Program:
    def program(rank: int, group: dist.ProcessGroup) -> None:
        dist.scatter(ones(count), [ones(count)] * 3 if rank == 0 else None, group_src=0, group=group)

    return program


def all_to_all(dtype: torch.dtype) -> Program:
    return lambda _rank, group: dist.all_to_all(
        [ones(2, dtype) for _ in range(3)], [ones(2, dtype) for _ in range(3)], group=group
    )


def all_to_all_single(_rank: int, group: dist.ProcessGroup) -> None:
    dist.all_to_all_single(ones(6), ones(6), group=group)


def later(*counts: int) -> Program:
    """Return all-reduces of which all are begun before the first is waited for."""

    def program(_rank: int, group: dist.ProcessGroup) -> None:
        works = [dist.all_reduce(ones(count), group=group, async_op=True) for count in counts]
        for work in reversed(works):  # all of them say so
            work.wait()

    return program


def threads(*counts: int) -> Program:
    """Return all-reduces of threads that begin in this order."""

    def program(_rank: int, group: dist.ProcessGroup) -> None:
        errors: list[BaseException] = []
        begun = [threading.Event() for _ in counts]

        def run(place: int) -> None:
            if place:
                begun[place - 1].wait()
            work = dist.all_reduce(ones(counts[place]), group=group, async_op=True)
            begun[place].set()
            try:
                work.wait()
            except Exception as error:
                errors.append(error)

        made = [threading.Thread(target=run, args=(place,)) for place in range(len(counts))]
        for thread in made:
            thread.start()
        for thread in made:
            thread.join()
        assert len(errors) == len(counts)
        raise errors[0]

    return program


def objects(count: int) -> Program:
    return lambda _rank, group: dist.broadcast_object_list([None] * count, group_src=0, group=group)


def train(bucket_mb: float = 25.0, width: int = 64, **options: Any) -> Program:
    """Return two steps of a small model with the hook; without it when ``options`` say ``hook=False``."""

    def program(_rank: int, group: dist.ProcessGroup) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, width), torch.nn.Linear(width, 64), torch.nn.Linear(64, 4)]
        model = torch.nn.Sequential(*layers)
        # With unused parameters, buckets of the first step are cut as the last ones are.
        ddp = DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=bucket_mb, find_unused_parameters=True
        )
        if options.get("hook", True):
            state = weir.torch.HookState(ddp, **options)
            ddp.register_comm_hook(state, weir.torch.hook)
        for _ in range(2):
            ddp(torch.ones(2, 64)).sum().backward()

    return program


ReduceOp = dist.ReduceOp
SUM5, SUM3 = "all_reduce(float32[5], SUM)", "all_reduce(float32[3], SUM)"
HOOK = "weir.torch.hook(bucket 0: 6 parameters, 8580 elements, "


def of(dtype: torch.dtype, op: dist.ReduceOp.RedOpType = ReduceOp.SUM) -> Program:
    """Return an all-reduce of 8 elements."""
    return lambda _rank, group: dist.all_reduce(ones(8, dtype), op, group=group)


def both(*programs: Program) -> Program:
    """Return one program after the other."""

    def program(rank: int, group: dist.ProcessGroup) -> None:
        for one in programs:
            one(rank, group)

    return program


def sum8(dtype: str, op: str = "SUM") -> str:
    return f"all_reduce({dtype}[8], {op})"


ROWS: dict[str, Row] = {
    "5 elements, 3 elements": Row(sums(5), sums(3), (SUM5, SUM3)),
    "3000 elements, 1000 elements": Row(
        sums(3000), sums(1000), ("all_reduce(float32[3000], SUM)", "all_reduce(float32[1000], SUM)")
    ),
    "5 elements, many slots": Row(sums(5), sums(200_000), (SUM5, "all_reduce(float32[200000], SUM)")),
    "many slots, 5 elements": Row(sums(200_000), sums(5), ("all_reduce(float32[200000], SUM)", SUM5)),
    "no elements, 5 elements": Row(sums(0), sums(5), ("all_reduce(float32[0], SUM)", SUM5)),
    "float32, float64": Row(of(torch.float32), of(torch.float64), (sum8("float32"), sum8("float64"))),
    "float32, int32": Row(of(torch.float32), of(torch.int32), (sum8("float32"), sum8("int32"))),
    "float16, bfloat16": Row(of(torch.float16), of(torch.bfloat16), (sum8("float16"), sum8("bfloat16"))),
    "SUM, MAX": Row(of(torch.int32), of(torch.int32, ReduceOp.MAX), (sum8("int32"), sum8("int32", "MAX"))),
    "SUM, AVG": Row(
        of(torch.float32), of(torch.float32, ReduceOp.AVG), (sum8("float32"), sum8("float32", "AVG"))
    ),
    "BOR, BXOR": Row(
        of(torch.uint8, ReduceOp.BOR),
        of(torch.uint8, ReduceOp.BXOR),
        (sum8("uint8", "BOR"), sum8("uint8", "BXOR")),
    ),
    "all_reduce, broadcast": Row(sums(5), broadcast(5, 1), (SUM5, "broadcast(float32[5], root 1)")),
    "barrier, all_reduce": Row(barrier, sums(5), ("barrier()", SUM5)),
    "reduce, barrier": Row(reduce(700, 0), barrier, ("reduce(float32[700], root 0, SUM)", "barrier()")),
    "root of a broadcast": Row(
        broadcast(4, 0), broadcast(4, 1), ("broadcast(float32[4], root 0)", "broadcast(float32[4], root 1)")
    ),
    "root of a reduce": Row(
        reduce(4, 0), reduce(4, 2), ("reduce(float32[4], root 0, SUM)", "reduce(float32[4], root 2, SUM)")
    ),
    "all_gather of 3, of 2": Row(
        all_gather(3, 3, 3, 3),
        all_gather(2, 2, 2, 2),
        (
            "all_gather([float32[3], float32[3], float32[3]], float32[3])",
            "all_gather([float32[2], float32[2], float32[2]], float32[2])",
        ),
    ),
    "all_gather, sizes per rank": Row(
        all_gather(3, 3, 3, 3),
        all_gather(4, 3, 4, 3),
        (
            "all_gather([float32[3], float32[3], float32[3]], float32[3])",
            "all_gather([float32[3], float32[4], float32[3]], float32[4])",
        ),
    ),
    "all_gather_into_tensor": Row(
        gather_single(2),
        gather_single(4),
        (
            "all_gather_into_tensor(float32[6], float32[2])",
            "all_gather_into_tensor(float32[12], float32[4])",
        ),
    ),
    "reduce_scatter": Row(
        reduce_scatter(1, 2, 3),
        reduce_scatter(1, 2, 4),
        (", [float32[1], float32[2], float32[3]], SUM)", ", [float32[1], float32[2], float32[4]], SUM)"),
    ),
    "reduce_scatter_tensor": Row(
        scatter_single(ReduceOp.SUM),
        scatter_single(ReduceOp.MAX),
        (
            "reduce_scatter_tensor(float32[2], float32[6], SUM)",
            "reduce_scatter_tensor(float32[2], float32[6], MAX)",
        ),
    ),
    "root of a gather": Row(
        gather(0), gather(1), ("gather(float32[2], root 0)", "gather(float32[2], root 1)")
    ),
    "scatter": Row(scatter(2), scatter(3), ("scatter(float32[2], root 0)", "scatter(float32[3], root 0)")),
    "all_to_all": Row(
        all_to_all(torch.int64),
        all_to_all(torch.float32),
        ("all_to_all([int64[2], int64[2], int64[2]], ", "all_to_all([float32[2], float32[2], float32[2]], "),
    ),
    "all_to_all_single, all_gather_into_tensor": Row(
        all_to_all_single,
        gather_single(2),
        ("all_to_all_single(float32[6], float32[6])", "all_gather_into_tensor(float32[6], float32[2])"),
    ),
    "broadcast of 2 objects, of 3": Row(
        objects(2), objects(3), ("broadcast(int64[2], root 0)", "broadcast(int64[3], root 0)")
    ),
    "another order": Row(sums(9, 5, 3), sums(9, 3, 5), (SUM5, SUM3), 2),
    "another order, not waited for": Row(later(9, 5, 3), later(9, 3, 5), (SUM5, SUM3), 2),
    "threads in another order": Row(threads(5, 3), threads(3, 5), (SUM5, SUM3)),
    "one left out": Row(
        both(sums(9, 5), barrier), both(sums(5), barrier), ("all_reduce(float32[9], SUM)", SUM5)
    ),
    "one left out of several alike": Row(
        both(sums(5, 5, 5), barrier), both(sums(5, 5), barrier), (SUM5, "barrier()"), 3
    ),
    "hook, no hook": Row(train(), train(hook=False), (HOOK, "all_reduce(float32[8580], SUM)"), None),
    "hook, another method": Row(
        train(sparsifier="dense"), train(sparsifier="topk"), (f"{HOOK}dense()", f"{HOOK}topk("), None
    ),
    "hook, another density": Row(
        train(density=0.1), train(density=0.2), ("dfs(density=0.1, ", "dfs(density=0.2, "), None
    ),
    "hook, another encoding": Row(
        train(sparsifier="topk-block", encoding="dense"),
        train(sparsifier="topk-block", encoding="blocks:64"),
        ("encoding=dense", "encoding=blocks:64"),
        None,
    ),
    "hook, without error feedback": Row(
        train(), train(error_feedback=False), ("lane_error=0.02)", "no error feedback)"), None
    ),
    "hook, another loss policy": Row(
        train(loss_policy=0.1), train(loss_policy=0.2), ("(up to 0.1)", "(up to 0.2)"), None
    ),
    "hook, other buckets": Row(
        train(sparsifier="dense", width=4096, bucket_mb=1),
        train(sparsifier="dense", width=4096, bucket_mb=25),
        ("bucket 0: 3 parameters, 324 elements", "bucket 0: 6 parameters, 528708 elements"),
        None,
    ),
}


def alone(error: Exception) -> Program:
    """Return an operation that raises when it begins, in the group's thread."""

    def begin() -> None:
        raise error

    def program(_rank: int, group: dist.ProcessGroup) -> None:
        assert isinstance(group, WeirProcessGroup)
        group.submit(begin).wait()

    return program


def half_done(_rank: int, group: dist.ProcessGroup) -> None:
    """Run out of memory between the two reductions of an all_to_all."""
    inputs, outputs = [ones(2) for _ in range(3)], [ones(2) for _ in range(3)]
    with patch.object(data_movement, "deliver", side_effect=MemoryError("no room for the parts")):
        dist.all_to_all(outputs, inputs, group=group)


def sparse(_rank: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(ones(5).reshape(1, 5).to_sparse_csr(), group=group)


def faulty(rank: int, group: dist.ProcessGroup) -> None:
    """Train with a method whose code has a fault that this rank meets."""
    fault = IndexError("index 12 is out of bounds")
    with patch.object(TopK, "encode", side_effect=fault), patch.object(TopK, "encode_all", side_effect=fault):
        train(sparsifier="topk")(rank, group)


def caught(program: Program) -> Program:
    """Return a program that goes on after an error as if nothing had been, and calls something else."""

    def run(rank: int, group: dist.ProcessGroup) -> None:
        try:
            program(rank, group)
        except TypeError as error:
            with contextlib.suppress(weir.torch.GroupBrokenError):
                dist.all_reduce(ones(3), group=group)
            raise error from None

    return run


@dataclass(frozen=True)
class Failure:
    """What ranks 0 and 2 do, and rank 1, which fails alone; its error; what the others called."""

    usual: Program
    odd: Program
    error: str
    calls: tuple[str, ...]


FAILURES: dict[str, Failure] = {
    "an operator that is not defined": Failure(
        sums(5),
        lambda _rank, group: dist.all_reduce(ones(3), ReduceOp.BAND, group=group),
        "TypeError: RedOpType.BAND is defined for integers and bool, not for torch.float32",
        ("rank 1 failed in all_reduce(float32[3], BAND): ", SUM5),
    ),
    "the same, caught": Failure(
        sums(5),
        caught(lambda _rank, group: dist.all_reduce(ones(3), ReduceOp.BAND, group=group)),
        "TypeError: RedOpType.BAND is defined for integers and bool, not for torch.float32",
        ("rank 1 failed in all_reduce(float32[3], BAND): ", SUM5),
    ),
    "a tensor that is refused at once": Failure(
        sums(5), sparse, "TypeError: this is a tensor of layout torch.sparse_csr", ("rank 1 failed: ", SUM5)
    ),
    "sizes that do not fit": Failure(
        gather_single(2),
        lambda _rank, group: dist.all_gather_into_tensor(ones(5), ones(2), group=group),
        "ArgumentError: allgather: invalid tensor size at index 0 (expected 3 times (2,), got (5,))",
        ("rank 1 failed: ", "all_gather_into_tensor(float32[6]"),
    ),
    "no memory before it begins": Failure(
        sums(200_000),
        alone(MemoryError("no page-locked memory")),
        "MemoryError: no page-locked memory",
        ("rank 1 failed: ",),
    ),
    "no memory in its middle": Failure(
        all_to_all(torch.float32),
        half_done,
        "MemoryError: no room for the parts",
        ("rank 1 failed in all_to_all([float32[2], float32[2], float32[2]], ", "all_to_all("),
    ),
    "a method's fault": Failure(
        train(sparsifier="topk"),
        faulty,
        "IndexError: index 12 is out of bounds",
        (f"rank 1 failed in {HOOK}", HOOK),
    ),
}


def groups(*wanted: tuple[list[int], dict[str, Any]] | None) -> Callable[[int], object]:
    """Return the making of a group with these members and options by each rank; None: by all ranks."""

    def make(rank: int) -> object:
        ranks, options = wanted[rank] or (None, {})
        return dist.new_group(ranks, pg_options=weir.torch.GroupOptions(**options) if options else None)

    return make


GROUPS: dict[str, tuple[Callable[[int], object], tuple[str, str]]] = {
    "members": (
        groups(None, ([0, 1], {}), None),
        ("ranks 0, 2 called new_group([0, 1, 2])", "rank 1 called new_group([0, 1])"),
    ),
    "members, in a circle": (
        groups(([0, 1], {}), ([1, 2], {}), ([0, 2], {})),
        (
            "rank 0 called new_group([0, 1]); rank 1 called new_group([1, 2])",
            "rank 2 called new_group([0, 2])",
        ),
    ),
    "options": (
        groups(None, ([0, 1, 2], {"slots": 8}), None),
        ("ranks 0, 2 called new_group([0, 1, 2])", "rank 1 called new_group([0, 1, 2], GroupOptions(slots=8"),
    ),
}


def outcome(program: Program, rank: int, group: dist.ProcessGroup) -> dict[str, Any]:
    """Return what the program said, how long it took, and what the group says to one more call."""
    began, said = time.monotonic(), "nothing: it returned"
    try:
        program(rank, group)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    seconds, after = time.monotonic() - began, "nothing: it returned"
    try:
        dist.all_reduce(ones(5), group=group)
    except Exception as error:
        after = f"{type(error).__name__}: {error}"
    return {"said": said, "seconds": seconds, "after": after}


def main() -> None:
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("weir")
    rank = dist.get_rank()
    outcomes = {}
    for name in names or (*ROWS, *FAILURES):
        group = dist.new_group()
        assert group is not None
        row = (ROWS | FAILURES)[name]
        outcomes[name] = outcome(row.odd if rank == 1 else row.usual, rank, group)
        dist.barrier()
        dist.destroy_process_group(group)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(outcomes))
    for name in () if names else GROUPS:
        began, said = time.monotonic(), "nothing: it returned"
        try:
            GROUPS[name][0](rank)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        outcomes[name] = {"said": said, "seconds": time.monotonic() - began}
        dist.barrier()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(outcomes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""NCCL through PyTorch on two GPUs: all-reduce, all-gather and broadcast, values checked (contract 8).

torch_nccl.py [rounds]: one process for each GPU, by spawn. Fresh tensors each round, so that with
PYTORCH_NO_CUDA_MEMORY_CACHING=1 NCCL meets newly allocated memory each time. Prints PASS and FAIL
lines, exits 0 or 1.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
SIZES = [1, 1000, 1 << 16, (1 << 20) + 1, 1 << 23]
PROCESSES = 2
SECONDS = 15


def work(rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=PROCESSES,
                                   device_id=torch.device("cuda", rank))
    wrong = {"all_reduce": 0, "all_gather": 0, "broadcast": 0}
    counter = {name: torch.zeros((), dtype=torch.int64, device="cuda") for name in wrong}
    going = torch.ones((), device="cuda")
    begin = time.monotonic()
    rounds = 0
    for i in range(ROUNDS):
        size = SIZES[i % len(SIZES)]
        mine = torch.full((size,), float(rank + 1 + i), device="cuda")
        total = mine.clone()
        distributed.all_reduce(total)
        counter["all_reduce"] += (total != 2.0 * i + 3.0).sum()
        gathered = [torch.empty_like(mine) for _ in range(PROCESSES)]
        distributed.all_gather(gathered, mine)
        for other, tensor in enumerate(gathered):
            counter["all_gather"] += (tensor != float(other + 1 + i)).sum()
        given = mine.clone()
        distributed.broadcast(given, src=i % PROCESSES)
        counter["broadcast"] += (given != float(i % PROCESSES + 1 + i)).sum()
        del mine, total, gathered, given
        rounds += 1
        if i % 10 == 9:  # both stop in the same round
            going.fill_(float(time.monotonic() - begin < SECONDS))
            distributed.all_reduce(going, op=distributed.ReduceOp.MIN)
            if going.item() == 0:
                break
    torch.cuda.synchronize()
    results.put((rank, rounds, {name: int(value.item()) for name, value in counter.items()}))
    distributed.destroy_process_group()


def main():
    if torch.cuda.device_count() < PROCESSES:
        print("two GPUs are needed", file=sys.stderr)
        return 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    failed = False
    try:
        multiprocessing.spawn(work, args=(port, results), nprocs=PROCESSES)
    except Exception as error:
        failed = True
        print(f"FAIL processes end well: {str(error).strip().splitlines()[-1][:200]}", flush=True)
    else:
        print("PASS processes end well", flush=True)
        for _ in range(PROCESSES):
            rank, rounds, wrong = results.get()
            for name, count in wrong.items():
                right = count == 0 and rounds > 0
                failed = failed or not right
                print(f"{'PASS' if right else 'FAIL'} {name} on {rank}: {count} wrong values in "
                      f"{rounds} rounds", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

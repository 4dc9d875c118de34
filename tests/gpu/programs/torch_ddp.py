# SPDX-License-Identifier: Apache-2.0
"""The training loop of torch_train.py on two GPUs: a process for each, gradients summed by NCCL, batches copied
by a prefetch stream. So its work goes to many streams.

torch_ddp.py [steps] [own]: prints rank 0's final loss with full precision and its milliseconds per step. With "own"
PyTorch's caching allocator stays on.
"""
import os
import socket
import sys
import time

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
if "own" not in sys.argv:
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variables above must be set first)
import torch.distributed as distributed  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
from torch import nn  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_train import WARM_UP, Prefetch, network  # noqa: E402

RANKS = 2


def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=torch.device("cuda", rank))
    torch.manual_seed(1234)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    model = nn.parallel.DistributedDataParallel(network().cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(99 + rank)
    images = torch.randn(64, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 100, (64,), generator=generator)
    prefetch = Prefetch(lambda i: (images + 0.01 * i, (labels + i) % 100))
    for i in range(STEPS):
        if i == WARM_UP:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        x, y = prefetch.next(i)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    if rank == 0:
        print(f"result loss={loss.item()!r}")
        print(f"time ms_per_step={(time.perf_counter() - begin) * 1e3 / (STEPS - WARM_UP):.4f}", flush=True)
    distributed.destroy_process_group()


def main():
    if torch.cuda.device_count() < RANKS or STEPS <= WARM_UP:
        print(f"{RANKS} GPUs and more than {WARM_UP} steps are needed", file=sys.stderr)
        return 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(work, args=(port,), nprocs=RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())

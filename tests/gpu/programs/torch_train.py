# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training loop without PyTorch's caching allocator, with fixed seeds.

torch_train.py [steps] [count] [own] [prefetch] [stream]: prints the final loss with full precision and the milliseconds per
step. With "count" the run is profiled, to learn from CUPTI how often cudaMalloc and cudaFree are
called: a count that owes nothing to cupool (run it without the preload; under it, calls that cupool
serves never reach the runtime library). With "own" PyTorch's caching allocator stays on. With "prefetch" a second
stream copies the next batch while a step runs. With "stream" the steps run on a stream of PyTorch's, not on the
legacy default stream.
"""
import os
import sys
import time

if "own" not in sys.argv:
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (the variables above must be set first)
from torch import nn  # noqa: E402

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
COUNT = "count" in sys.argv
PREFETCH = "prefetch" in sys.argv
WARM_UP = 10


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(),
        *[Block(64) for _ in range(6)],
        nn.AvgPool2d(8), nn.Flatten(),
        nn.Linear(64 * 16, 512), nn.ReLU(), nn.Linear(512, 100),
    )


class Prefetch:
    """Copies batch by batch on a stream of its own, one batch ahead, from two pinned buffers."""

    def __init__(self, batch):
        self.batch = batch
        self.stream = torch.cuda.Stream()
        self.pinned = [[part.pin_memory() for part in batch(0)] for _ in range(2)]
        self.copied = [None, None]
        self.ahead = None
        self.copy(0)

    def copy(self, i):
        if self.copied[i % 2] is not None:
            self.copied[i % 2].synchronize()
        for pinned, part in zip(self.pinned[i % 2], self.batch(i)):
            pinned.copy_(part)
        with torch.cuda.stream(self.stream):
            self.ahead = [part.cuda(non_blocking=True) for part in self.pinned[i % 2]]
            self.copied[i % 2] = torch.cuda.Event()
            self.copied[i % 2].record()

    def next(self, i):
        torch.cuda.current_stream().wait_stream(self.stream)
        parts = self.ahead
        for part in parts:
            part.record_stream(torch.cuda.current_stream())
        self.copy(i + 1)
        return parts


def train(steps):
    torch.manual_seed(1234)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(99)
    images = torch.randn(64, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 100, (64,), generator=generator)

    def batch(i):
        return images + 0.01 * i, (labels + i) % 100

    prefetch = Prefetch(batch) if PREFETCH else None
    begin = time.perf_counter()
    for i in range(steps):
        if i == WARM_UP:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        # A fresh batch each step, copied as a data loader's would be.
        x, y = prefetch.next(i) if PREFETCH else [part.cuda() for part in batch(i)]
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - begin) * 1e3 / max(1, steps - WARM_UP)
    return loss.item(), milliseconds


def main():
    if not COUNT:
        with torch.cuda.stream(torch.cuda.Stream() if "stream" in sys.argv else None):
            loss, milliseconds = train(STEPS)
        print(f"result loss={loss!r}")
        print(f"time ms_per_step={milliseconds:.4f}")
        return
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        loss, _ = train(STEPS)
    calls = {}
    for event in profiler.key_averages():
        calls[event.key] = calls.get(event.key, 0) + event.count
    print(f"result loss={loss!r}")
    print(f"counts mallocs={calls.get('cudaMalloc', 0)} frees={calls.get('cudaFree', 0)}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""PyTorch with worker processes, as data loaders have them (contract 11).

torch_multi.py: workers forked before CUDA is used, which hand over host tensors; workers forked after
it, which use none; workers by spawn that use the GPU themselves. Prints PASS and FAIL lines, exits 0
or 1.
"""
import sys

import torch
import torch.multiprocessing as multiprocessing
from torch.utils.data import DataLoader, Dataset

FAILED = []


def verdict(right, name, details=""):
    print(f"{'PASS' if right else 'FAIL'} {name}: {details}", flush=True)
    if not right:
        FAILED.append(name)


class Numbers(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        return torch.full((1000,), float(i))


def load(name, start, pinned):
    total = 0.0
    loader = DataLoader(Numbers(), batch_size=16, num_workers=2, multiprocessing_context=start,
                        pin_memory=pinned)
    for batch in loader:
        moved = batch.cuda(non_blocking=pinned)
        total += (moved * 2.0).sum().item()
    expected = 2.0 * 1000 * sum(range(256))
    verdict(total == expected, name, f"sum {total}, expected {expected}")


def compute(number, answers):
    torch.manual_seed(number)
    wrong = 0
    for i in range(100):
        x = torch.full((1 << (8 + i % 12),), float(i + number), device="cuda")
        wrong += int((x * 2 != 2.0 * (i + number)).sum().item())
    answers.put((number, wrong))


def spawned():
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    workers = [context.Process(target=compute, args=(n, answers)) for n in range(3)]
    for worker in workers:
        worker.start()
    outcome = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=30)
    codes = [worker.exitcode for worker in workers]
    verdict(all(wrong == 0 for _, wrong in outcome) and codes == [0, 0, 0],
            "workers by spawn use the GPU", f"{sorted(outcome)} exit codes {codes}")


def main():
    parts = [("loader forked before CUDA", lambda name: load(name, "fork", False)),
             ("loader forked after CUDA was used", lambda name: load(name, "fork", False)),
             ("loader forked, pinned memory", lambda name: load(name, "fork", True)),
             ("workers by spawn use the GPU", lambda name: spawned())]
    for name, part in parts:
        try:
            part(name)
        except Exception as error:  # the other parts are judged all the same
            verdict(False, name, f"{type(error).__name__} {str(error).splitlines()[0][:200]}")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())

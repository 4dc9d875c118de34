# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors shared between two processes on one GPU, through torch.multiprocessing.

torch_share.py [rounds]: a producer sends tensors of many sizes to a consumer (started by spawn),
which checks every value on the GPU, writes into the tensor, and gives it up; the producer sees what
was written, frees, and goes on. With PYTORCH_NO_CUDA_MEMORY_CACHING=1 every tensor is an allocation
of its own. Prints PASS and FAIL lines, exits 0 or 1. Run it without the preload first: where PyTorch
itself refuses to share uncached memory, it does so there as well.
"""
import sys
import time

import torch
import torch.multiprocessing as multiprocessing

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
SIZES = [1, 100, 1000, 4096, 65536, 300000, 1 << 20, (1 << 22) + 3]
PATIENCE = 120


def consume(offers, answers):
    """Answers each tensor with how many of its values were wrong, after writing to it."""
    while True:
        offer = offers.get(timeout=PATIENCE)
        if offer is None:
            break
        tensor, value = offer
        wrong = int((tensor != value).sum().item())
        tensor.add_(1)
        torch.cuda.synchronize()
        del tensor, offer  # closes the memory, so that the producer may free it
        answers.put(wrong)
    answers.put("done")


def produce(offers, answers):
    """Returns how many values were wrong in the consumer, and here after its writes."""
    wrong_there = wrong_here = 0
    value = 0
    for _ in range(ROUNDS):
        for count in SIZES:
            value += 2
            tensor = torch.full((count,), value, dtype=torch.int32, device="cuda")
            torch.cuda.synchronize()
            offers.put((tensor, value))
            wrong_there += answers.get(timeout=PATIENCE)
            wrong_here += int((tensor != value + 1).sum().item())
            del tensor
            # Memory of the same size, written at once: it must not be the consumer's.
            torch.full((count,), -1, dtype=torch.int32, device="cuda")
        torch.cuda.ipc_collect()
    return wrong_there, wrong_here


def verdict(right, what):
    print("PASS" if right else "FAIL", what, flush=True)
    return right


def main():
    context = multiprocessing.get_context("spawn")
    offers, answers = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(offers, answers))
    consumer.start()
    begin = time.perf_counter()
    right = True
    try:
        wrong_there, wrong_here = produce(offers, answers)
        offers.put(None)
        ended = answers.get(timeout=PATIENCE) == "done"
        consumer.join(PATIENCE)
        right &= verdict(wrong_there == 0, "the consumer saw the producer's values")
        right &= verdict(wrong_here == 0, "the producer saw the consumer's values")
        right &= verdict(ended and consumer.exitcode == 0, "the consumer ended well")
    except Exception as error:  # a refusal of PyTorch or of the driver is the result
        print("info", type(error).__name__, str(error).splitlines()[0], flush=True)
        right = verdict(False, "tensors can be shared")
    finally:
        if consumer.is_alive():
            consumer.terminate()
    milliseconds = (time.perf_counter() - begin) * 1e3 / (ROUNDS * len(SIZES))
    print(f"time ms_per_tensor={milliseconds:.3f}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

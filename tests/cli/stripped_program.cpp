// SPDX-License-Identifier: Apache-2.0
// What is left of a static CUDA runtime in a stripped program: texts. Seen in programs of
// nvcc 13.0.
#include <cstdio>

int main(int argc, char**) {
  static const char* const texts[] = {"libcuda.so.1", "cuGetProcAddress_v2",
                                      "cudaErrorInvalidValue"};
  std::puts(texts[argc % 3]);
}

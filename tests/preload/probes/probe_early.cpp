// SPDX-License-Identifier: Apache-2.0
// A program that does nothing: its library's constructor has the word (early_library.cpp).
extern "C" int early_library();

int main() {
  return early_library();
}

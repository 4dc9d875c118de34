#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shipped library ($1) contains no mutation. The same search finds them in the library with
# mutations ($2).
switch=CUPOOL_TEST_MUTATION
if grep -q "$switch" "$1"; then
  echo "$1 can be made wrong by $switch"
  exit 1
fi
if ! grep -q "$switch" "$2"; then
  echo "$2 should know $switch: the search proves nothing"
  exit 1
fi

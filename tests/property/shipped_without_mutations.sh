#!/bin/sh
# The shipped library ($1) has none of the test's faults, and looking for them finds them in the
# library ($2) that has.
switch=CUPOOL_TEST_MUTATION
if grep -q "$switch" "$1"; then
  echo "$1 can be made wrong by $switch"
  exit 1
fi
if ! grep -q "$switch" "$2"; then
  echo "$2 should know $switch: the search proves nothing"
  exit 1
fi

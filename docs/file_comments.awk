# SPDX-License-Identifier: Apache-2.0
# The filter of docs/Doxyfile. The comment that each source opens with, below the licence, becomes the
# description of the file. In the C interface, whose comments are plain C, those at the beginning of a
# line become the descriptions of what follows, those behind a member its own. Lines keep their numbers.
FNR == 1 && /^\/\/ SPDX-License-Identifier:/ {
  opening = 1
  print "/// \\file"
  next
}
opening && /^\/\/ / {
  print "/" $0
  next
}
opening && (/^\/\* / || inside_opening) {
  inside_opening = !/\*\/$/
  opening = inside_opening
  sub(/^(\/\*| \*)/, "///")
  sub(/ \*\/$/, "")
  print
  next
}
{ opening = 0 }
FILENAME ~ /cupool\.h$/ {
  sub(/^\/\* /, "/** ")
  sub(/[;,0-9] +\/\* /, "&< ") && sub(/\/\* < /, "/**< ")
}
{ print }

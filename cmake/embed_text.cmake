# SPDX-License-Identifier: Apache-2.0
# Makes a C++ source with the text of a file in it; run by cmake -P at build time with INPUT, OUTPUT,
# NAME (of the constant, in namespace cupool::cli) and HEADER (which declares it).
cmake_minimum_required(VERSION 3.18)
file(READ ${INPUT} text)
string(LENGTH "${text}" length)
# A string literal may be limited to 64 KiB by the language's minimum; longer ones are joined.
set(pieces "")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${text}" ${at} 8000 piece)
  string(APPEND pieces "R\"cupool_text(${piece})cupool_text\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${OUTPUT}
     "// Made from ${NAME}'s file by embed_text.cmake.\n#include \"${HEADER}\"\n"
     "namespace cupool::cli {\nconst char* const ${NAME} =\n${pieces};\n}\n")

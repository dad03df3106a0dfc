# cmake -DPROGRAM=host.c -DLANGUAGE=c -DDOCUMENT=embedding.md -P snippet.cmake: a block ```c of DOCUMENT is PROGRAM.
file(READ "${PROGRAM}" program)
file(READ "${DOCUMENT}" document)
string(FIND "${document}" "```${LANGUAGE}\n${program}```" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${DOCUMENT}: no block ```${LANGUAGE} is ${PROGRAM}: copy that")
endif()

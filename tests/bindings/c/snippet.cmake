# cmake -DPROGRAM=host.c -DDOCUMENT=embedding.md -P snippet.cmake: the one block ```c of DOCUMENT is PROGRAM.
file(READ "${PROGRAM}" program)
file(READ "${DOCUMENT}" document)
string(FIND "${document}" "```c\n${program}```" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${DOCUMENT}: its block ```c is not ${PROGRAM}: copy that")
endif()

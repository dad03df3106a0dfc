# cmake -DFILE=report.json -DEXPECT="call=a;checks.0.status=passed" -P expect_json.cmake: fails if FILE is no JSON or a
# value differs. Dots join names of members; an element of an array is a number.
file(READ "${FILE}" text)
foreach(expected IN LISTS EXPECT)
  string(REGEX MATCH "^([^=]*)=(.*)$" _ "${expected}")
  set(wanted "${CMAKE_MATCH_2}")
  string(REPLACE "." ";" path "${CMAKE_MATCH_1}")
  string(JSON value ERROR_VARIABLE error GET "${text}" ${path})
  if(error)
    message(FATAL_ERROR "${FILE}: ${CMAKE_MATCH_1}: ${error}")
  elseif(NOT value STREQUAL wanted)
    message(FATAL_ERROR "${FILE}: ${CMAKE_MATCH_1} is '${value}', expected '${wanted}'")
  endif()
endforeach()

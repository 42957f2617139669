# The shared library exports every function of the public headers and nothing else. Called with -D nm, library, headers.

execute_process(COMMAND ${nm} -D --defined-only --format=posix ${library}
  OUTPUT_VARIABLE table OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE " [^\n]*" "" exported "${table}")
string(REPLACE "\n" ";" exported "${exported}")

file(GLOB header_files ${headers}/*.h)
foreach(header ${header_files})
  file(READ ${header} text)
  string(REGEX MATCHALL "CUFLASH_API [a-z_ *]*cuflash_[a-z_]+\\(" functions "${text}")
  list(APPEND declared ${functions})
endforeach()
list(TRANSFORM declared REPLACE ".*[ *](cuflash_[a-z_]+)\\(" "\\1")

list(SORT exported)
list(SORT declared)
if(NOT declared OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "the headers declare ${declared}\nthe library exports ${exported}")
endif()

# The shared library exports every function of cuflash.h and nothing else. Called with -D nm, library, header.

execute_process(COMMAND ${nm} -D --defined-only --format=posix ${library}
  OUTPUT_VARIABLE table OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE " [^\n]*" "" exported "${table}")
string(REPLACE "\n" ";" exported "${exported}")

file(READ ${header} text)
string(REGEX MATCHALL "CUFLASH_API [a-z_ *]*cuflash_[a-z_]+\\(" declared "${text}")
list(TRANSFORM declared REPLACE ".*[ *](cuflash_[a-z_]+)\\(" "\\1")

list(SORT exported)
list(SORT declared)
if(NOT declared OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "cuflash.h declares ${declared}\nthe library exports ${exported}")
endif()

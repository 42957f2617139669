# What the documents show is a test: programs are compiled and run, generated pages are generated again.
# tools/run_docs.py says what is done with which block. Python programs run in the tests of the Python package.

find_program(CUFLASH_DOCS_PYTHON NAMES python3)
if(CUFLASH_SANITIZE OR NOT TARGET cuflash_cli)
  return() # programs built against a sanitized library need the sanitizer, too
endif()
if(NOT CUFLASH_DOCS_PYTHON)
  message(STATUS "cuflash: python3 not found, the documents are not tested (Debian, Ubuntu: python3)")
  return()
endif()

add_test(NAME docs_test COMMAND ${CUFLASH_DOCS_PYTHON} ${PROJECT_SOURCE_DIR}/tools/run_docs.py
  --build ${PROJECT_BINARY_DIR} --cxx ${CMAKE_CXX_COMPILER} --cc ${CMAKE_C_COMPILER} --cmake ${CMAKE_COMMAND}
  "--launcher=${CMAKE_CXX_COMPILER_LAUNCHER}")
set_tests_properties(docs_test PROPERTIES TIMEOUT 300)

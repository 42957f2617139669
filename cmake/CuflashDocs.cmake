# Tests of the docs: compile and run their programs, provoke the messages, and generate the generated pages again.
# tools/run_docs.py says how each block is tested. The tests of the Python package run the Python programs.

find_program(CUFLASH_DOCS_PYTHON NAMES python3)
if(NOT TARGET cuflash_cli)
  return()
endif()
if(NOT CUFLASH_DOCS_PYTHON)
  message(STATUS "cuflash: python3 not found, the documents are not tested (Debian, Ubuntu: python3)")
  return()
endif()

# The program that provokes messages, with fake drivers.
set(no_driver_dir ${CMAKE_CURRENT_BINARY_DIR}/no_driver)
foreach(name libcuda.so libcuda.so.1)
  file(WRITE ${no_driver_dir}/${name} "") # found before a real driver, and not a library
endforeach()
add_executable(provoke docs/provoke.cpp docs/host_messages.cpp docs/cuda_messages.cpp docs/cache_messages.cpp)
cuflash_configure_target(provoke)
target_link_libraries(provoke PRIVATE cuflash_check)
target_compile_definitions(provoke PRIVATE CUFLASH_FAKE_GPU_DIR="${fake_gpu_dir}"
  CUFLASH_RECORDING_DIR="$<TARGET_FILE_DIR:recording_libcuda>" CUFLASH_NO_DRIVER_DIR="${no_driver_dir}")
add_dependencies(provoke fake_libcuda fake_libnvrtc recording_libcuda)

add_test(NAME docs_test COMMAND ${CUFLASH_DOCS_PYTHON} ${PROJECT_SOURCE_DIR}/tools/run_docs.py
  --build ${PROJECT_BINARY_DIR} --cxx ${CMAKE_CXX_COMPILER} --cc ${CMAKE_C_COMPILER} --cmake ${CMAKE_COMMAND}
  "--launcher=${CMAKE_CXX_COMPILER_LAUNCHER}" --provoke $<TARGET_FILE:provoke>)
set_tests_properties(docs_test PROPERTIES TIMEOUT 300)

# Benchmark tables and charts are generated from docs/data; the test fails if a page does not match.
add_test(NAME docs_benchmarks_test COMMAND ${CUFLASH_DOCS_PYTHON} ${PROJECT_SOURCE_DIR}/tools/benchmark_tables.py --check)
# The built-in tiles for sets of options are generated from docs/data, too.
add_test(NAME tile_tables_test COMMAND ${CUFLASH_DOCS_PYTHON} ${PROJECT_SOURCE_DIR}/tools/tile_tables.py --check)

# The library, shared and static, from one set of objects.

find_package(Threads REQUIRED)

file(GLOB_RECURSE library_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp)
file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cpu/*.cpp)

# The loops over tiles need fused multiply-add and vectorised selections. -std=c++20 turns contraction off in GCC, and
# support for errno and floating-point traps, which nothing here reads, prevents vectorisation. Properties of source
# files are local to a directory, so the sanitized library (tests/sanitized) calls this again with its level of
# optimisation.
function(cuflash_set_kernel_flags optimisation)
  set(flags -ffp-contract=fast -fno-math-errno -fno-trapping-math ${optimisation})
  set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS "${flags}" SKIP_PRECOMPILE_HEADERS ON)
  # Each instruction set's file, and no other, may use it: src/cpu/isa/kernels.cpp asks the processor before it calls one.
  set(isa ${PROJECT_SOURCE_DIR}/src/cpu/isa)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set_source_files_properties(${isa}/avx2.cpp PROPERTIES COMPILE_OPTIONS "${flags};-mavx2;-mfma;-mf16c")
    set_source_files_properties(${isa}/avx512.cpp PROPERTIES COMPILE_OPTIONS "${flags};-mavx512f;-mfma;-mf16c")
    set_source_files_properties(${isa}/amx.cpp PROPERTIES
      COMPILE_OPTIONS "${flags};-mavx512f;-mavx512bw;-mavx512bf16;-mfma;-mf16c;-mamx-tile;-mamx-bf16")
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set_source_files_properties(${isa}/bfmmla.cpp ${isa}/bfmmla_decode.cpp PROPERTIES
      COMPILE_OPTIONS "${flags};-march=armv8.2-a+bf16")
  endif()
endfunction()
cuflash_set_kernel_flags($<$<NOT:$<CONFIG:Debug>>:-O3>)

set(public_includes
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# Kernels are compiled at run time, so the library contains their headers.
file(GLOB_RECURSE kernel_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.h)
set(embedded_kernels ${CMAKE_CURRENT_BINARY_DIR}/embedded_kernels.cpp)
add_custom_command(OUTPUT ${embedded_kernels}
  COMMAND ${CMAKE_COMMAND} -D folder=${PROJECT_SOURCE_DIR}/kernels -D output=${embedded_kernels}
    -P ${PROJECT_SOURCE_DIR}/cmake/EmbedKernels.cmake
  DEPENDS ${kernel_headers} ${PROJECT_SOURCE_DIR}/cmake/EmbedKernels.cmake
  COMMENT "Embedding kernel headers" VERBATIM)

set(library_includes ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/kernels ${PROJECT_SOURCE_DIR}/include)
if(CUFLASH_OBJECTS_OF)
  set(library_objects ${CUFLASH_OBJECTS_OF}/CMakeFiles/cuflash_embedded_kernels.dir/embedded_kernels.cpp.o)
  foreach(source ${library_sources})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    list(APPEND library_objects ${CUFLASH_OBJECTS_OF}/CMakeFiles/cuflash_objects.dir/${source}.o)
  endforeach()
  set_source_files_properties(${library_objects} PROPERTIES EXTERNAL_OBJECT ON)
else()
  add_library(cuflash_embedded_kernels OBJECT ${embedded_kernels})
  cuflash_configure_target(cuflash_embedded_kernels)
  target_include_directories(cuflash_embedded_kernels PRIVATE ${library_includes})
  add_library(cuflash_objects OBJECT ${library_sources})
  cuflash_configure_target(cuflash_objects)
  target_include_directories(cuflash_objects PRIVATE ${library_includes})
  cuflash_precompile_headers(cuflash_objects)
  set(library_objects $<TARGET_OBJECTS:cuflash_objects> $<TARGET_OBJECTS:cuflash_embedded_kernels>)
endif()

add_library(cuflash SHARED ${library_objects})
cuflash_configure_target(cuflash)
target_include_directories(cuflash PUBLIC ${public_includes})
target_link_libraries(cuflash PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
# The visibility flags do not hide templates of the standard library; the version script does.
set(export_script ${PROJECT_SOURCE_DIR}/cmake/exports.map)
target_link_options(cuflash PRIVATE LINKER:--version-script=${export_script})
# Worker threads sleep in the library's code until the process ends, so dlclose must not unload it (docs/design.md).
set(stay_loaded LINKER:-z,nodelete)
target_link_options(cuflash PRIVATE ${stay_loaded})
# Before 1.0 a minor version may break the ABI.
set_target_properties(cuflash PROPERTIES
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS ${export_script})

add_library(cuflash_static STATIC ${library_objects})
set_target_properties(cuflash cuflash_static PROPERTIES LINKER_LANGUAGE CXX)
cuflash_configure_target(cuflash_static)
target_compile_definitions(cuflash_static PUBLIC CUFLASH_STATIC)
target_include_directories(cuflash_static PUBLIC ${public_includes})
target_link_libraries(cuflash_static PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
# A shared library or plugin that links the static library must stay loaded, too.
set(consumer $<TARGET_PROPERTY:TYPE>)
target_link_options(cuflash_static INTERFACE
  $<$<OR:$<STREQUAL:${consumer},SHARED_LIBRARY>,$<STREQUAL:${consumer},MODULE_LIBRARY>>:${stay_loaded}>)
set_target_properties(cuflash_static PROPERTIES OUTPUT_NAME cuflash EXPORT_NAME static)

add_library(cuflash::cuflash ALIAS cuflash)
add_library(cuflash::static ALIAS cuflash_static)

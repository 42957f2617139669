# Compiler flags of every target of the project.

set(address_sanitizer -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
set(thread_sanitizer -fsanitize=thread -fno-omit-frame-pointer)

# Flags for code that compiles slowly and runs briefly: kernels on the host, and the tool's options.
set(brief_flags $<$<NOT:$<CONFIG:Debug>>:-O1>)
# Flags for tests and instrumented code: -Og compiles almost as fast as -O0 and runs faster, but GCC then tracks too few
# values to tell which are initialised.
set(test_flags $<$<NOT:$<CONFIG:Debug>>:-Og> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)

if(CUFLASH_BUILD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "CUFLASH_BUILD_FUZZ needs clang, which has libFuzzer, but the compiler is ${CMAKE_CXX_COMPILER_ID}: "
      "configure with -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++, or run make fuzz")
  endif()
  set(fuzz_flags ${address_sanitizer} -fsanitize=fuzzer-no-link)
endif()

function(cuflash_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    C_STANDARD 99
    C_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${CUFLASH_WERROR}>:-Werror> ${fuzz_flags})
  target_link_options(${target} PRIVATE ${fuzz_flags})
endfunction()

# Precompiles the standard headers, which are half of what the compiler reads for a small file. A target with the same
# flags reuses the headers of the target that it passes as second argument; to GCC after 12, -O counts, because it implies
# flags of the processor. Builds inside another project, by pip or with the objects of another build, and the library
# under ThreadSanitizer do not precompile, which shows that every file includes what it uses. A compiler launcher such as
# ccache does not support precompiled headers, and is faster without them.
function(cuflash_precompile_headers target)
  if(NOT PROJECT_IS_TOP_LEVEL OR SKBUILD OR CUFLASH_OBJECTS_OF OR CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  # GCC forgets that precompiled headers are system headers, and warns about code that it inlines from them.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>)
  if(ARGC GREATER 1)
    target_precompile_headers(${target} REUSE_FROM ${ARGV1})
  else()
    target_precompile_headers(${target} PRIVATE <algorithm> <array> <atomic> <bit> <cmath> <cstdint> <cstring> <functional>
      <limits> <memory> <mutex> <optional> <span> <sstream> <string> <string_view> <thread> <utility> <vector>)
  endif()
endfunction()

# The oracle, the naive baseline and the engine of random checks: used by the tools and the tests, never installed.

file(GLOB_RECURSE check_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/reference/*.cpp ${PROJECT_SOURCE_DIR}/check/*.cpp)
add_library(cuflash_check STATIC ${check_sources})
cuflash_configure_target(cuflash_check)
cuflash_precompile_headers(cuflash_check cuflash_objects)
target_include_directories(cuflash_check PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/kernels)
target_link_libraries(cuflash_check PUBLIC cuflash_static)

# Timing, and the ceilings of this machine's processor: for the tool and for the programs of bench/.
file(GLOB measure_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/shared/*.cpp)
add_library(cuflash_measure STATIC EXCLUDE_FROM_ALL ${measure_sources})
cuflash_configure_target(cuflash_measure)
target_include_directories(cuflash_measure PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(cuflash_measure PUBLIC Threads::Threads)

# find_package(cuflash) gives cuflash::cuflash and cuflash::static; pkg-config gives cuflash.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cuflash)
install(TARGETS cuflash cuflash_static EXPORT cuflashTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cuflash DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT cuflashTargets NAMESPACE cuflash:: DESTINATION ${package_dir})
if(TARGET cuflash_cli)
  install(TARGETS cuflash_cli)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/cuflashConfig.cmake.in cuflashConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(cuflashConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/cuflashConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/cuflashConfigVersion.cmake
  DESTINATION ${package_dir})

# Paths relative to the file itself, so that an install tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR
  BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE pkgconfig_to_include)
configure_file(${PROJECT_SOURCE_DIR}/cmake/cuflash.pc.in cuflash.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/cuflash.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

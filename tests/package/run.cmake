# Installs the build tree, moves the install tree, and builds and runs this folder's project against it.
# Called with -D build, source, work, version, generator, c_compiler, cxx_compiler, pkg_config (may be empty).

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/first)
file(RENAME ${work}/first ${work}/prefix)

run(${CMAKE_COMMAND} -S ${source} -B ${work}/user -G ${generator} -D CMAKE_PREFIX_PATH=${work}/prefix
  -D CMAKE_C_COMPILER=${c_compiler} -D CMAKE_CXX_COMPILER=${cxx_compiler} -D expected_version=${version})
run(${CMAKE_COMMAND} --build ${work}/user)
foreach(program c_cuflash cpp_cuflash c_static cpp_static)
  run(${work}/user/${program})
endforeach()

if(pkg_config)
  file(GLOB_RECURSE description ${work}/prefix/cuflash.pc)
  cmake_path(GET description PARENT_PATH pkgconfig_dir)
  set(ENV{PKG_CONFIG_PATH} ${pkgconfig_dir})
  execute_process(COMMAND ${pkg_config} --cflags --libs "cuflash = ${version}"
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  cmake_path(GET pkgconfig_dir PARENT_PATH library_dir)
  run(${c_compiler} -DEXPECTED_VERSION="${version}" ${source}/main.c ${flags} -Wl,-rpath,${library_dir}
    -o ${work}/pkgconfig_user)
  run(${work}/pkgconfig_user)
endif()

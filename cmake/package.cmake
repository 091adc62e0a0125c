# The targets that programs link, fourfold::fourfold and fourfold::model, in this build and as an installed package.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
include(package/fourfoldTorch)

# Separate from libfourfold, which the Python modules link without torch's libraries, because torch is loaded already.
add_library(fourfold_program INTERFACE)
add_library(fourfold::fourfold ALIAS fourfold_program)
target_include_directories(fourfold_program INTERFACE "${PROJECT_SOURCE_DIR}/cpp/include")
target_link_libraries(fourfold_program INTERFACE fourfold)
fourfold_serve_programs(fourfold_program "$<TARGET_FILE:fourfold>" "${TORCH_INSTALL_PREFIX}")

# The runner of saved models uses torch's unstable C++ API, so each program compiles it.
add_library(fourfold_model INTERFACE)
add_library(fourfold::model ALIAS fourfold_model)
target_sources(fourfold_model INTERFACE "${PROJECT_SOURCE_DIR}/cpp/model/sources.cpp")
target_link_libraries(fourfold_model INTERFACE fourfold_program)

# Installs the library, its headers and the package for find_package(fourfold). The folders are parameters, because in a
# wheel all are inside the Python package.
function(fourfold_install component library_dir include_dir cmake_dir)
  set(files "${PROJECT_BINARY_DIR}/package/${component}")
  cmake_path(SET FOURFOLD_LIBRARY_FILE NORMALIZE "${library_dir}/${CMAKE_SHARED_LIBRARY_PREFIX}fourfold${CMAKE_SHARED_LIBRARY_SUFFIX}")
  set(FOURFOLD_INCLUDE_DIR "${include_dir}")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/package/fourfoldConfig.cmake.in"
    "${files}/fourfoldConfig.cmake" INSTALL_DESTINATION "${cmake_dir}"
    PATH_VARS FOURFOLD_LIBRARY_FILE FOURFOLD_INCLUDE_DIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file("${files}/fourfoldConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  set(rules COMPONENT ${component} ${ARGN})
  if(FOURFOLD_LIBRARY)
    install(IMPORTED_RUNTIME_ARTIFACTS fourfold LIBRARY DESTINATION "${library_dir}" ${rules})
  else()
    # On Windows, CMake calls a DLL a runtime, and its import library an archive.
    install(TARGETS fourfold
      LIBRARY DESTINATION "${library_dir}" ${rules}
      RUNTIME DESTINATION "${library_dir}" ${rules}
      ARCHIVE DESTINATION "${library_dir}" ${rules})
  endif()
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/cpp/include/fourfold" DESTINATION "${include_dir}" ${rules})
  # A program compiles the sources in model/ and graph/, which use system/.
  set(compiled "${PROJECT_SOURCE_DIR}/cpp/model" "${PROJECT_SOURCE_DIR}/cpp/graph" "${PROJECT_SOURCE_DIR}/cpp/system")
  install(DIRECTORY ${compiled} DESTINATION "${include_dir}/fourfold" ${rules})
  install(FILES "${files}/fourfoldConfig.cmake" "${files}/fourfoldConfigVersion.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/package/fourfoldTorch.cmake" DESTINATION "${cmake_dir}" ${rules})
endfunction()

# Installs the facts with which a build of the Python modules checks the library (built_library.cmake).
function(fourfold_install_facts)
  include(source_digest)
  set(_library_file "${CMAKE_INSTALL_LIBDIR}/${CMAKE_SHARED_LIBRARY_PREFIX}fourfold${CMAKE_SHARED_LIBRARY_SUFFIX}")
  set(facts "${PROJECT_BINARY_DIR}/package/build_facts.cmake")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/build_facts.cmake.in" "${facts}" @ONLY)
  fourfold_library_sources("${PROJECT_SOURCE_DIR}" sources)
  list(TRANSFORM sources PREPEND "${PROJECT_SOURCE_DIR}/")
  set(output "${PROJECT_BINARY_DIR}/package/build.cmake")
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}" "-DFACTS=${facts}" "-DOUTPUT=${output}"
      -P "${PROJECT_SOURCE_DIR}/cmake/source_digest.cmake"
    DEPENDS "${facts}" ${sources} COMMENT "Writing the digest of the library's sources" VERBATIM)
  add_custom_target(fourfold_facts ALL DEPENDS "${output}")
  install(FILES "${output}" DESTINATION share/fourfold COMPONENT fourfold)
endfunction()

if(FOURFOLD_INSTALL AND NOT FOURFOLD_LIBRARY)
  fourfold_install(fourfold
    "${CMAKE_INSTALL_LIBDIR}" "${CMAKE_INSTALL_INCLUDEDIR}" "${CMAKE_INSTALL_LIBDIR}/cmake/fourfold")
  if(PROJECT_IS_TOP_LEVEL)  # a project that adds these sources builds no wheels
    fourfold_install_facts()
  endif()
endif()
if(FOURFOLD_PYTHON)
  # Into the Python package; excluded from a plain `cmake --install`.
  fourfold_install(python . include share/cmake/fourfold EXCLUDE_FROM_ALL)
endif()
